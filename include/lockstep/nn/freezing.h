// lockstep/nn/freezing.h
//
// Parameters that are not trained.
#pragma once

#include <cstddef>
#include <string>

#include <lockstep/fwd.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Sets requires_grad of the parameters that the pattern selects; see named(). Returns how many. Call it before fit()
/// or in a callback. Throws: ConfigError if it selects none.
std::size_t freeze(torch::nn::Module& module, const std::string& pattern);
std::size_t unfreeze(torch::nn::Module& module, const std::string& pattern);

}  // namespace lockstep
