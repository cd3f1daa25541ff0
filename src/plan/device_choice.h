// Chooses the devices of this node's ranks from the request and the hardware. Torch-free.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/plan/plan.h>

namespace lockstep {

/// Messages of the planning.
struct Findings {
  std::vector<Problem> problems{};  ///< with any of them there is no plan
  std::vector<std::string> warnings{};
  std::vector<std::string> notes{};

  void problem(std::string what, std::string hint) { problems.push_back({std::move(what), std::move(hint)}); }
};

/// One device per rank of this node, in ascending order. nullopt: rejected, with the reasons in `findings`.
std::optional<std::vector<DeviceId>> choose_devices(const TrainConfig& config, const Hardware& hardware,
                                                    const std::optional<Identity>& identity, Findings& findings);

/// Why no GPU can be used: "no NVIDIA driver", ... Call it only if none can.
std::string why_no_gpu(const Hardware& hardware);

/// The request for exactly these devices: "cpu", "0," or "0,2".
std::string devices_text(const std::vector<DeviceId>& devices);

}  // namespace lockstep
