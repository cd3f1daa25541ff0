// Where the time of a rank went. Torch-free.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/config/train_config.h>

#include "base/event_log.h"
#include "ipc/progress_record.h"

namespace lockstep {

/// Time between two moments, in seconds.
class TimeShares {
 public:
  TimeShares(const PhaseTimes& begin, const PhaseTimes& end);

  double total() const noexcept { return total_; }
  /// Without waiting for other ranks.
  double of(Phase phase) const noexcept;
  /// "data", "copy" (of batches to a GPU), "forward", "backward", "optimizer", "task" (the rest of Task::optimize),
  /// "callback", "report", "validation", "save" and "communication" (waiting for other ranks).
  std::vector<std::pair<std::string_view, double>> parts() const;

  EventFields fields(std::string_view prefix = {}) const;  ///< "seconds", "data_seconds" and so on
  std::string text() const;  ///< "backward 43 %, forward 31 %, data 9 %": the largest parts
  /// What to do if much of the time was waiting for data. `workers`: data.workers. `one_reader`: see BatchSource.
  std::optional<std::string> advice_on_data(int workers, bool one_reader) const;
  /// What to do if much of the time was waiting for copies of batches to a GPU.
  std::optional<std::string> advice_on_copies(const DataConfig& data) const;
  /// What to do if much of the time was saving.
  std::optional<std::string> advice_on_saves() const;

 private:
  PhaseTimes spent_{};
  double total_ = 0;
};

}  // namespace lockstep
