#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/checkpoint/module_state.h>

#include "base/text.h"
#include "checkpoint/load_converted.h"
#include "checkpoint/tied_names.h"
#include "tensor/mismatch.h"

namespace lockstep {
namespace {

// Of modules that Python wraps around a model: DistributedDataParallel, torch.compile.
constexpr std::array<std::string_view, 2> kWrapperPrefixes = {"module.", "_orig_mod."};

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

struct Match {
  std::vector<at::Tensor> sources{};  // for each entry of ModuleNames::tensors; undefined: none
  LoadReport report{};
};

/// What stands before a name of the model in each of `names`, as "model." in the files of Lightning; "": no such text.
std::string common_prefix(const std::vector<std::string>& names, const ModuleNames& own) {
  if (names.empty()) {
    return {};
  }
  const std::string& first = names.front();
  for (auto dot = first.find('.'); dot != std::string::npos; dot = first.find('.', dot + 1)) {
    const std::string prefix = first.substr(0, dot + 1);
    if (std::ranges::all_of(names, [&](const std::string& name) {
          return name.starts_with(prefix) && own.index.contains(name.substr(prefix.size()));
        })) {
      return prefix;
    }
  }
  return {};
}

std::string hint_for(const Mismatch& mismatch, const ModuleNames& own, bool any_matches) {
  if (const std::string prefix = common_prefix(mismatch.unexpected, own); !prefix.empty()) {
    return fmt::format(R"(remove "{0}" from the names: load_module(module, rename(tensors, without_prefix("{0}"))))",
                       printable(prefix));
  }
  const std::string hint = "load it into the model it was saved from";
  return any_matches ? hint +
                           ", or allow a partial match: --checkpoint.allow_partial, or load_module(..., "
                           "/*allow_partial=*/true)"
                     : hint + ", or give its tensors the names of this model with rename()";
}

/// In the dtype of `own` if both are floating-point numbers.
at::Tensor converted(const at::Tensor& tensor, const at::Tensor& own) {
  const bool is_convertible = tensor.is_floating_point() && own.is_floating_point();
  return is_convertible ? tensor.to(own.scalar_type()) : tensor;
}

/// `converts`: weights of another precision match, too. Throws: CheckpointError.
Match match(const ModuleNames& own, const NamedTensors& tensors, bool allow_partial, bool converts = false) {
  const auto find = [&](const std::string& name) {
    auto found = own.index.find(name);
    std::string_view rest = name;
    while (found == own.index.end()) {
      const auto prefix = std::ranges::find_if(kWrapperPrefixes, [&](auto each) { return rest.starts_with(each); });
      if (prefix == kWrapperPrefixes.end()) {
        break;
      }
      rest.remove_prefix(prefix->size());
      found = own.index.find(std::string(rest));
    }
    return found;
  };
  Mismatch mismatch;
  Match result{.sources = std::vector<at::Tensor>(own.tensors.size())};
  std::vector<bool> given(own.tensors.size(), false);
  for (const auto& [name, saved] : tensors) {
    const auto found = find(name);
    if (found == own.index.end()) {
      mismatch.unexpected.push_back(name);
      continue;
    }
    given[found->second] = true;
    const at::Tensor& mine = own.tensors[found->second].second;
    const at::Tensor tensor = converts ? converted(saved, mine) : saved;
    if (mismatch.compare(found->first, tensor, mine)) {
      result.sources[found->second] = tensor;
    }
  }
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (!given[i]) {
      mismatch.missing.push_back(own.tensors[i].first);
    }
    if (result.sources[i].defined()) {
      result.report.loaded.push_back(own.tensors[i].first);
    }
  }
  if (mismatch.any() && !allow_partial) {
    throw CheckpointError("the checkpoint does not match the model: " + mismatch.text(),
                          hint_for(mismatch, own, !result.report.loaded.empty()));
  }
  if (mismatch.any() && log_rank() == 0) {  // every rank finds the same mismatch
    log_warning("the checkpoint matches only a part of the model: " + mismatch.text());
  }
  result.report.missing = std::move(mismatch.missing);
  result.report.unexpected = std::move(mismatch.unexpected);
  result.report.different = std::move(mismatch.different);
  return result;
}

}  // namespace

NamedTensors module_tensors(const torch::nn::Module& module) { return names_of(module).tensors; }

std::map<std::string, std::string> tied_names(const torch::nn::Module& module) {
  const ModuleNames names = names_of(module);
  std::map<std::string, std::string> tied;
  for (const auto& [name, index] : names.index) {
    if (const std::string& first = names.tensors[index].first; name != first) {
      tied.emplace(name, first);
    }
  }
  return tied;
}

void check_module(const torch::nn::Module& module, const NamedTensors& tensors) {
  match(names_of(module), tensors, /*allow_partial=*/false);
}

namespace {

LoadReport load(torch::nn::Module& module, const NamedTensors& tensors, bool allow_partial, bool converts) {
  const ModuleNames own = names_of(module);
  Match matched = match(own, tensors, allow_partial, converts);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < matched.sources.size(); ++i) {
    if (matched.sources[i].defined()) {
      own.tensors[i].second.copy_(matched.sources[i]);
    }
  }
  return std::move(matched.report);
}

}  // namespace

LoadReport load_module(torch::nn::Module& module, const NamedTensors& tensors, bool allow_partial) {
  return load(module, tensors, allow_partial, /*converts=*/false);
}

LoadReport load_converted(torch::nn::Module& module, const NamedTensors& tensors, bool allow_partial) {
  return load(module, tensors, allow_partial, /*converts=*/true);
}

bool fits_converted(const torch::nn::Module& module, const NamedTensors& tensors) {
  try {
    match(names_of(module), tensors, /*allow_partial=*/false, /*converts=*/true);
    return true;
  } catch (const CheckpointError&) {
    return false;
  }
}

NamedTensors rename(const NamedTensors& tensors, const std::function<std::string(const std::string&)>& name) {
  NamedTensors renamed;
  std::unordered_set<std::string> used;
  for (const auto& [old_name, tensor] : tensors) {
    std::string new_name = name(old_name);
    if (new_name.empty()) {
      continue;
    }
    if (!used.insert(new_name).second) {
      throw CheckpointError("rename: found the new name " + new_name + " twice",
                            "return \"\" for tensors that shall be left out");
    }
    renamed.emplace_back(std::move(new_name), tensor);
  }
  return renamed;
}

std::function<std::string(const std::string&)> without_prefix(std::string prefix) {
  return [prefix = std::move(prefix)](const std::string& name) {
    return name.starts_with(prefix) ? name.substr(prefix.size()) : name;
  };
}

}  // namespace lockstep
