// The devices of this node's ranks, from a wish and the facts. Torch-free.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <lockstep/plan/plan.h>

#include "plan/findings.h"

namespace lockstep {

/// One device per rank of this node, in ascending order. nullopt: refused, the reasons are in `findings`.
std::optional<std::vector<DeviceId>> choose_devices(const TrainConfig& config, const Hardware& hardware,
                                                    const std::optional<Identity>& identity, Findings& findings);

/// Why no GPU can be used here: "no NVIDIA driver", ... Only where none can.
std::string why_no_gpu(const Hardware& hardware);

/// The wish that names exactly these devices: "cpu", "0," or "0,2".
std::string devices_text(const std::vector<DeviceId>& devices);

}  // namespace lockstep
