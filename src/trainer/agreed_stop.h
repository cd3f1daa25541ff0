// A stop during a validation, where no gradients carry requests.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include <lockstep/base/control.h>
#include <lockstep/world/world.h>

namespace lockstep {

/// Ranks look together after the same batches: every one of a single rank, else as many apart as take about a second,
/// on the control plane. Nothing waits for the device.
class AgreedStop {
 public:
  AgreedStop(World& world, const TrainControl& control) : world_(world), control_(control) {}

  /// Collective: after the same batch on every rank. True on every rank or on none.
  bool look();
  /// The same, whatever time has passed.
  bool look_now();

 private:
  using Clock = std::chrono::steady_clock;

  World& world_;
  const TrainControl& control_;
  Clock::time_point looked_ = Clock::now();
  std::int64_t batches_ = 0;  // since then
  std::int64_t due_ = 1;      // batches from one look to the next
};

/// Who asked for a stop that all ranks have agreed on, and why.
struct StopReason {
  StopKind kind = StopKind::none;
  std::string text{};
};
/// Collective. The strongest kind, and the reason that goes with it.
StopReason agree_on_reason(World& world, const TrainControl& control);

}  // namespace lockstep
