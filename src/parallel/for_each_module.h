// A walk over the parts of a module that is fast enough for a step.
#pragma once

#include <memory>

#include <torch/nn/module.h>

namespace lockstep {

/// Calls `visit(part, pointer)` for the module and all its parts, each before its own parts, in the order of
/// registration; a part that is registered twice is visited twice. `pointer` is the std::shared_ptr to the part, empty
/// for `module` itself. Unlike Module::named_modules() it makes no names, which take most of the time: a step can call
/// it.
template <class Visit>
void for_each_module(const torch::nn::Module& module, const Visit& visit,
                     const std::shared_ptr<torch::nn::Module>& pointer = nullptr) {
  visit(module, pointer);
  for (const auto& part : module.children()) {
    for_each_module(*part, visit, part);
  }
}

}  // namespace lockstep
