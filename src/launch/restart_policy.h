// Decides whether and when a failed launch is restarted. Pure: reports in, decisions out. Torch-free.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <lockstep/launch/launcher.h>

namespace lockstep {

struct RestartDecision {
  bool restart = false;
  bool halves = false;  ///< the micro-batch
  std::chrono::seconds wait{0};
  std::string reason{};  ///< why there is no restart although restarts were requested; "": nothing failed
};

/// Allows at most `max_restarts` consecutive restarts without progress. Progress resets their number and the waits,
/// which grow as 0, 1, 2, 4 ... 30 s. There is no restart after a requested stop, after errors of settings, data or
/// disagreeing ranks, and after the same failure twice in a row at the same step. After ExitCode::out_of_memory there
/// always is one on one machine, at once: the ranks will find that their micro-batch has to be smaller. But the rank
/// must have reported its failure: other programs may end with this code, too.
class RestartPolicy {
 public:
  explicit RestartPolicy(int max_restarts, bool is_on_one_machine = true)
      : max_(max_restarts), left_(max_restarts), is_on_one_machine_(is_on_one_machine) {}

  RestartDecision after(const LaunchReport& report);
  int left() const noexcept { return left_; }
  int halvings() const noexcept { return halvings_; }  ///< restarts with half the micro-batch

 private:
  struct Signature {
    std::string text{};
    std::int64_t steps = -1;  // of all fits
    bool operator==(const Signature&) const = default;
  };

  int max_;
  int left_;
  bool is_on_one_machine_;
  int halvings_ = 0;
  std::chrono::seconds next_wait_{0};
  std::int64_t furthest_ = -1;  // steps of all fits
  std::optional<Signature> last_{};
};

}  // namespace lockstep
