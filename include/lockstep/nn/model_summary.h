// lockstep/nn/model_summary.h
//
// The parts of a model and their parameters, as text.
#pragma once

#include <string>

#include <lockstep/fwd.h>

namespace [[gnu::visibility("default")]] lockstep {

/// A table with a row for each submodule down to `depth` levels: name, type, number of parameters, and of those that
/// are trained (requires_grad); then totals and bytes. Parameters that several modules share are counted once in the
/// totals.
std::string model_summary(const torch::nn::Module& module, int depth = 1);

}  // namespace lockstep
