#include "parallel/parameter_sync.h"

#include <sstream>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <lockstep/base/error.h>

#include "base/text.h"
#include "world/agreement.h"
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

void broadcast(std::vector<at::Tensor> tensors, World& world) {
  if (tensors.empty() || world.size() == 1) {
    return;
  }
  std::int64_t bytes = 0;
  for (const auto& tensor : tensors) {
    bytes += static_cast<std::int64_t>(tensor.nbytes());
  }
  ProgressRecord& progress = WorldAccess::progress(world);
  progress.begin(Operation::broadcast, bytes);
  c10d::broadcast_coalesced(WorldAccess::group(world), tensors, kBroadcastBytes, 0);
  progress.end();
}

}  // namespace

void compare_parameters(const torch::nn::Module& module, World& world) {
  if (const auto difference = find_disagreement(world.gather(description(module)))) {
    throw CommError(
        fmt::format("rank {} has another model: its entry {} is {}, {} {}", difference->rank, difference->line,
                    printable(difference->found), difference->others, printable(difference->expected)),
        "build the same module on every rank, whatever its rank", ExitCode::disagree);
  }
}

void broadcast_module(const torch::nn::Module& module, World& world) {
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : module.parameters()) {
    tensors.push_back(parameter.detach());
  }
  for (const auto& buffer : module.buffers()) {
    tensors.push_back(buffer.detach());
  }
  broadcast(std::move(tensors), world);
}

void broadcast_buffers(const torch::nn::Module& module, World& world) {
  const at::NoGradGuard no_grad;
  broadcast(module.buffers(), world);
}

}  // namespace lockstep
