#include "parallel/parameter_sync.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/parallel/sync_batch_norm.h>

#include "base/assertion.h"
#include "base/mapped.h"
#include "base/text.h"
#include "parallel/for_each_module.h"
#include "parallel/tensor_digest.h"
#include "tensor/tensor_bytes.h"
#include "world/agreement.h"
#include "world/peer_errors.h"
#include "world/world_access.h"

namespace lockstep {

namespace {

constexpr std::size_t kBroadcastBytes = std::size_t{250} << 20;

std::string description(const torch::nn::Module& module) {
  std::ostringstream text;
  const auto add = [&](const char* kind, const std::string& name, const at::Tensor& tensor) {
    text << kind << ' ' << name << ' ' << tensor.sizes() << ' ' << tensor.scalar_type()
         << (tensor.requires_grad() ? "" : " frozen") << '\n';
  };
  for (const auto& item : module.named_parameters()) {
    add("parameter", item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    add("buffer", item.key(), item.value());
  }
  return text.str();
}

}  // namespace

void compare_parameters(const torch::nn::Module& module, World& world) {
  if (const auto difference = find_disagreement(description(module), world)) {
    throw_disagreement(*difference, world, fmt::format("has another model: its entry {} is", difference->line),
                       "build the same module on every rank, whatever its rank");
  }
}

void compare_frozen(const torch::nn::Module& module, World& world) {
  std::string text;
  for (const auto& item : module.named_parameters()) {
    text += fmt::format("{} ({})\n", item.key(), item.value().requires_grad() ? "trained" : "frozen");
  }
  if (const auto difference = find_disagreement(text, world)) {
    throw_disagreement(*difference, world, "freezes other parameters: it has",
                       "freeze and unfreeze the same parameters on every rank, at the same step");
  }
}

void broadcast_tensors(const std::vector<at::Tensor>& tensors, World& world, int root) {
  const at::NoGradGuard no_grad;
  if (tensors.empty() || world.size() == 1) {
    return;
  }
  // Sent as bytes, because not every backend supports every dtype.
  std::vector<at::Tensor> bytes;
  std::vector<std::pair<at::Tensor, at::Tensor>> staged;  // a non-contiguous tensor and its contiguous copy
  std::int64_t total = 0;
  for (const auto& tensor : tensors) {
    if (tensor.numel() == 0) {
      continue;
    }
    const at::Tensor dense = tensor.contiguous();
    if (!dense.is_same(tensor)) {
      staged.emplace_back(tensor, dense);
    }
    bytes.push_back(dense.view({-1}).view(at::kByte));
    total += bytes.back().numel();
  }
  if (bytes.empty()) {
    return;
  }
  ProgressRecord& progress = WorldAccess::progress(world);
  progress.begin(Operation::broadcast, total);
  with_peers(world, "broadcast of parameters or buffers",
             [&] { c10d::broadcast_coalesced(WorldAccess::group(world), bytes, kBroadcastBytes, root); });
  progress.end();
  for (const auto& [tensor, dense] : staged) {
    tensor.copy_(dense);
  }
}

void broadcast_module(const torch::nn::Module& module, World& world) {
  auto tensors = mapped(module.parameters(), [](const at::Tensor& parameter) { return parameter.detach(); });
  for (const auto& buffer : module.buffers()) {
    tensors.push_back(buffer.detach());
  }
  broadcast_tensors(tensors, world, /*root=*/0);
}

void broadcast_buffers(const torch::nn::Module& module, World& world) {
  std::vector<at::Tensor> buffers;
  for_each_module(module, [&](const torch::nn::Module& part, const auto&) {
    std::ranges::move(part.buffers(/*recurse=*/false), std::back_inserter(buffers));
  });
  broadcast_tensors(buffers, world, /*root=*/0);
}

namespace {

/// Shape [tensors], int64, on the device of the first one.
at::Tensor digests_of(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sums;
  for (const at::Tensor& tensor : tensors) {
    sums.push_back(digest_of(tensor).to(tensors.front().device()));
  }
  return sums.empty() ? at::empty({0}, at::kLong) : at::stack(sums);
}

}  // namespace

NamedTensors replicated_buffers(const torch::nn::Module& module) {
  std::set<std::string> with_own_statistics;
  const auto look_at = [&](const std::string& name, const torch::nn::Module& part) {
    if (part.named_buffers(/*recurse=*/false).contains("running_mean") && part.as<SyncBatchNormImpl>() == nullptr) {
      with_own_statistics.insert(name);
    }
  };
  look_at("", module);
  for (const auto& part : module.named_modules({}, /*include_self=*/false)) {
    look_at(part.key(), *part.value());
  }
  NamedTensors buffers;
  for (const auto& buffer : module.named_buffers()) {
    const auto dot = buffer.key().rfind('.');
    if (!with_own_statistics.contains(dot == std::string::npos ? "" : buffer.key().substr(0, dot))) {
      buffers.emplace_back(buffer.key(), buffer.value());
    }
  }
  return buffers;
}

at::Tensor parameter_digests(const torch::nn::Module& module) { return digests_of(module.parameters()); }

void check_replicas(const torch::nn::Module& module, World& world, const NamedTensors& more,
                    std::optional<std::int64_t> since) {
  if (world.size() == 1) {
    return;
  }
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : module.named_parameters()) {
    names.push_back(parameter.key());
    tensors.push_back(parameter.value());
  }
  for (const auto& [name, tensor] : more) {
    names.push_back(name);
    tensors.push_back(tensor);
  }
  const at::Tensor digests = digests_of(tensors).cpu();
  constexpr const char* kHint =
      "the previous checkpoint is valid. Look for code that changes parameters, buffers or the optimizer on one rank "
      "only, and for hardware errors on that rank's machine";
  if (WorldAccess::all_equal(world, text_of_bytes(digests))) {
    if (since) {
      throw CommError(fmt::format("the parameters of the ranks differed after step {}, and are equal now", *since),
                      kHint, ExitCode::disagree);
    }
    return;
  }
  std::string lines;
  for (std::size_t i = 0; i < names.size(); ++i) {
    lines +=
        fmt::format("{} {:016x}\n", names[i], static_cast<std::uint64_t>(digests.const_data_ptr<std::int64_t>()[i]));
  }
  const auto difference = find_disagreement(world.gather(lines));
  LOCKSTEP_ASSERT(difference.has_value(), "the digests differ");
  throw_about_rank(
      difference->rank, world,
      CommError(fmt::format("the replicas have diverged{}: rank {} has {} (name and digest), {} {}",
                            since ? fmt::format(", first after step {}", *since) : "", difference->rank,
                            printable(difference->found), difference->others, printable(difference->expected)),
                kHint, ExitCode::disagree));
}

}  // namespace lockstep
