// A stop during a validation, in which no gradients carry the requests.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <lockstep/base/control.h>
#include <lockstep/world/world.h>

namespace lockstep {

/// All ranks check for requests after the same batches, on the control plane: about once per second, every 16 batches
/// at least, or after every batch if there is only one rank. The check does not wait for the device.
class AgreedStop {
 public:
  /// `least`: weaker kinds are not looked for; nullopt: nothing is.
  AgreedStop(World& world, const TrainControl& control, std::optional<StopKind> least = StopKind::program)
      : world_(world), control_(control), least_(least) {}

  /// This rank was asked; the ranks have not agreed on it.
  bool is_asked() const { return least_ && control_.stop_requested() >= *least_; }
  /// Collective: call it after the same batch on every rank. True on every rank or on none.
  bool look();
  /// Checks at once, even if the next check is not due.
  bool look_now();

 private:
  using Clock = std::chrono::steady_clock;

  World& world_;
  const TrainControl& control_;
  std::optional<StopKind> least_;
  Clock::time_point looked_ = Clock::now();
  std::int64_t batches_ = 0;  // since the last check
  std::int64_t due_ = 1;      // batches between two checks
};

/// Kind and reason of an agreed stop.
struct StopReason {
  StopKind kind = StopKind::none;
  std::string text{};
};
/// Collective. Returns the strongest kind and its reason.
StopReason agree_on_reason(World& world, const TrainControl& control);

}  // namespace lockstep
