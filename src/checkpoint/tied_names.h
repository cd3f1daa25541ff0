// Names of tied weights.
#pragma once

#include <map>
#include <string>

#include <torch/nn/module.h>

namespace lockstep {

/// The other names of the tensors of module_tensors(): name -> the name that it gives them.
std::map<std::string, std::string> tied_names(const torch::nn::Module& module);

}  // namespace lockstep
