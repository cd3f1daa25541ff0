#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/checkpoint/module_state.h>

#include "tensor/mismatch.h"

namespace lockstep {
namespace {

constexpr std::string_view kPythonDdpPrefix = "module.";

struct ModuleNames {
  NamedTensors tensors{};                                // each storage once, under its first name
  std::unordered_map<std::string, std::size_t> index{};  // every name -> index in `tensors`
};

ModuleNames names_of(const torch::nn::Module& module) {
  ModuleNames result;
  std::map<std::tuple<const void*, std::int64_t, std::vector<std::int64_t>, std::vector<std::int64_t>>, std::size_t>
      seen;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return;
    }
    // Views of different parts of one storage are different tensors.
    const auto [found, is_new] = seen.try_emplace({tensor.storage().unsafeGetStorageImpl(), tensor.storage_offset(),
                                                   tensor.sizes().vec(), tensor.strides().vec()},
                                                  result.tensors.size());
    if (is_new) {
      result.tensors.emplace_back(name, tensor.detach());
    }
    result.index.emplace(name, found->second);
  };
  for (const auto& parameter : module.named_parameters()) {
    add(parameter.key(), parameter.value());
  }
  for (const auto& buffer : module.named_buffers()) {
    add(buffer.key(), buffer.value());
  }
  return result;
}

/// The tensor to copy into each entry of `own`; undefined: none. Throws: CheckpointError.
std::vector<at::Tensor> match(const ModuleNames& own, const NamedTensors& tensors, bool allow_partial) {
  const auto find = [&](const std::string& name) {
    const auto found = own.index.find(name);
    return found == own.index.end() && name.starts_with(kPythonDdpPrefix)
               ? own.index.find(name.substr(kPythonDdpPrefix.size()))
               : found;
  };
  Mismatch mismatch;
  std::vector<at::Tensor> sources(own.tensors.size());
  std::vector<bool> given(own.tensors.size(), false);
  for (const auto& [name, tensor] : tensors) {
    const auto found = find(name);
    if (found == own.index.end()) {
      mismatch.unexpected.push_back(name);
      continue;
    }
    given[found->second] = true;
    if (mismatch.compare(found->first, tensor, own.tensors[found->second].second)) {
      sources[found->second] = tensor;
    }
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (!given[i]) {
      mismatch.missing.push_back(own.tensors[i].first);
    }
  }
  if (mismatch.any() && !allow_partial) {
    throw CheckpointError("the checkpoint does not match the model: " + mismatch.text(),
                          "load it into the model it was saved from, or allow a partial match "
                          "(--checkpoint.allow_partial=true)");
  }
  if (mismatch.any() && log_rank() == 0) {  // every rank finds the same mismatch
    log_warning("the checkpoint matches only a part of the model: " + mismatch.text());
  }
  return sources;
}

}  // namespace

NamedTensors module_tensors(const torch::nn::Module& module) { return names_of(module).tensors; }

void check_module(const torch::nn::Module& module, const NamedTensors& tensors) {
  match(names_of(module), tensors, /*allow_partial=*/false);
}

void load_module(torch::nn::Module& module, const NamedTensors& tensors, bool allow_partial) {
  const ModuleNames own = names_of(module);
  const std::vector<at::Tensor> sources = match(own, tensors, allow_partial);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].defined()) {
      own.tensors[i].second.copy_(sources[i]);
    }
  }
}

}  // namespace lockstep
