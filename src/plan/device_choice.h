// Chooses the devices of this node's ranks from the request and the hardware. Torch-free.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <lockstep/plan/plan.h>

#include "plan/findings.h"

namespace lockstep {

/// One device per rank of this node, in ascending order. nullopt: rejected, with the reasons in `findings`.
std::optional<std::vector<DeviceId>> choose_devices(const TrainConfig& config, const Hardware& hardware,
                                                    const std::optional<Identity>& identity, Findings& findings);

/// Why no GPU can be used: "no NVIDIA driver", ... Call it only if none can.
std::string why_no_gpu(const Hardware& hardware);

/// The request for exactly these devices: "cpu", "0," or "0,2".
std::string devices_text(const std::vector<DeviceId>& devices);

}  // namespace lockstep
