// Validations, tests and predictions that the program asks for: Trainer::validate, test and predict. Alone, or in a
// callback of a fit.
#pragma once

#include <cstdint>
#include <filesystem>

#include <lockstep/tensor/named_tensors.h>
#include <lockstep/trainer/train_state.h>

#include "trainer/fit.h"

namespace lockstep {

/// Collective, as all of these. Throws: Stopped if all ranks agreed on a stop.
Metrics validate_alone(TrainerParts& trainer, Task& task, BatchSource& data);
Metrics test_alone(TrainerParts& trainer, Task& task, BatchSource& data);
/// The results of all ranks, in the order of the data.
NamedTensors predict_alone(TrainerParts& trainer, Task& task, BatchSource& data);
/// The results as files, one for every `every_steps` steps.
void predict_into(TrainerParts& trainer, Task& task, BatchSource& data, const std::filesystem::path& directory,
                  std::int64_t every_steps);

}  // namespace lockstep
