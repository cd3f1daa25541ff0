// How much of their data validations, tests and predictions use.
#pragma once

#include <cstdint>
#include <string_view>

#include <lockstep/config/train_config.h>
#include <lockstep/data/data_loader.h>

namespace lockstep {

/// One of the settings `....max_batches`.
struct StepLimit {
  std::string_view setting;
  StepCount steps;

  /// Maximum number of steps; 0: no limit. Throws: ConfigError if it is a part and the length of `data` is not known.
  std::int64_t of(const BatchSource& data) const;
};

inline StepLimit limit_of_validation(const TrainConfig& config) {
  return {"validate.max_batches", config.validate.max_batches};
}
inline StepLimit limit_of_test(const TrainConfig& config) { return {"test.max_batches", config.test.max_batches}; }
inline StepLimit limit_of_prediction(const TrainConfig& config) {
  return {"predict.max_batches", config.predict.max_batches};
}

/// Logs on the main rank that `what` ("the test") has left out the data after `steps`.
void tell_part(std::string_view what, std::int64_t steps, const StepLimit& limit, const TrainConfig& config);

}  // namespace lockstep
