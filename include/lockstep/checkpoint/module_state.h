// lockstep/checkpoint/module_state.h
//
// A module's parameters and buffers <-> named tensors.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <lockstep/fwd.h>
#include <lockstep/tensor/named_tensors.h>

namespace [[gnu::visibility("default")]] lockstep {

/// Parameters and buffers under their names in the module, as detached aliases (no copy). Storage with several names
/// appears once, under the first name.
NamedTensors module_tensors(const torch::nn::Module& module);

/// What load_module() did with each name.
struct LoadReport {
  std::vector<std::string> loaded{};
  std::vector<std::string> missing{};     ///< in the module, not among the tensors; the module keeps its values
  std::vector<std::string> unexpected{};  ///< among the tensors, not in the module
  std::vector<std::string> different{};  ///< another shape or dtype: "fc.weight is Float [5, 2], expected Float [3, 2]"
};

/// Copies the tensors into the module, from any device; removes a leading "module." (Python DDP) and "_orig_mod."
/// (torch.compile) from names that the module does not have. Throws: CheckpointError with the first ten missing and
/// unexpected names, and both shapes and dtypes where they differ; the module is then unchanged. `allow_partial`: loads
/// the matching tensors and warns about the others.
LoadReport load_module(torch::nn::Module& module, const NamedTensors& tensors, bool allow_partial = false);

/// The tensors under the names that `name` returns; it returns "" for a tensor to leave out. Throws: CheckpointError
/// (two tensors with one new name).
[[nodiscard]] NamedTensors rename(const NamedTensors& tensors,
                                  const std::function<std::string(const std::string&)>& name);

/// For rename(): removes the prefix, and keeps names that do not begin with it.
std::function<std::string(const std::string&)> without_prefix(std::string prefix);

/// Throws in the same cases as load_module() without `allow_partial`; copies nothing.
void check_module(const torch::nn::Module& module, const NamedTensors& tensors);

}  // namespace lockstep
