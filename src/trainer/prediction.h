// Trainer::predict: the results of every sample of a source, over all ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/trainer/task.h>
#include <lockstep/world/world.h>

#include "trainer/callbacks/callback_list.h"

namespace lockstep {

class Prediction {
 public:
  /// `at`: what `callbacks` get before and after each batch of this rank. `least_stop`: weaker stops do not end it;
  /// nullopt: no stop does.
  Prediction(Task& task, BatchSource& data, const TrainConfig& config, CallbackList& callbacks, const StageContext& at,
             std::optional<StopKind> least_stop);

  /// Collective. Predicts to the end of the epoch, or continues the files in `directory`. False: all ranks agreed on a
  /// stop.
  bool run();
  bool run_into(const std::filesystem::path& directory, std::int64_t every_steps);

  /// Collective, after run(). All results in order, on the main rank; {} on the others.
  NamedTensors gather();

 private:
  bool write_parts(const std::filesystem::path& directory, std::int64_t every_steps);
  /// Collective. Writes what the steps from `first` on have predicted, and returns the names of the files of all ranks.
  std::vector<std::string> write_part(const std::filesystem::path& directory, std::int64_t first);
  void tell_what_is_left(const std::filesystem::path& directory) const;

  enum class End { flush, stop, epoch };

  /// Collective. The first steps, whose results are dropped. False: all ranks agreed on a stop.
  bool try_steps(std::int64_t most);
  /// Collective. Predicts until the epoch ends, a stop is agreed, or so many steps are done; 0: no such limit.
  End run_steps(std::int64_t most);
  void add(const Batch& batch);
  void notify(Stage stage);
  /// What this rank has predicted since the last call: the sort keys, then the results.
  NamedTensors take();

  Task& task_;
  BatchSource& data_;
  World& world_;
  const TrainConfig& config_;
  CallbackList& callbacks_;
  StageContext at_;
  std::optional<StopKind> least_stop_;
  const bool is_combined_;    // each loader has ids of its own
  std::int64_t step_ = 0;     // of the prediction
  std::int64_t written_ = 0;  // steps whose results are in files
  std::vector<std::int64_t> keys_{};
  std::vector<std::int64_t> loaders_{};
  bool has_ids_ = true;
  std::string layout_{};  // of the results of this rank
  std::vector<NamedTensors> results_{};
};

}  // namespace lockstep
