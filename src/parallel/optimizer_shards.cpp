#include "parallel/optimizer_shards.h"

#include <algorithm>
#include <cstdint>

#include <ATen/ATen.h>

#include "base/json.h"
#include "parallel/parameter_sync.h"
#include "tensor/tensor_layout.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

std::string parameter_of(const std::string& state) { return state.substr(0, state.rfind('.')); }

}  // namespace

// The largest parameter goes first, each to the rank that has the fewest elements.
OptimizerShards::OptimizerShards(const NamedTensors& parameters, World& world) : world_(world) {
  NamedTensors sorted = parameters;
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return std::pair(-a.second.numel(), a.first) < std::pair(-b.second.numel(), b.first);
  });
  std::vector<std::int64_t> elements(static_cast<std::size_t>(world.size()), 0);
  for (const auto& [name, parameter] : sorted) {
    const auto least = std::min_element(elements.begin(), elements.end());
    *least += parameter.numel();
    const int owner = static_cast<int>(least - elements.begin());
    owners_[name] = owner;
    if (owner != world.rank()) {
      elsewhere_.insert(name);
    }
  }
}

OptimizerShards::OwnGradients::OwnGradients(const OptimizerShards& shards, NamedTensors& parameters) {
  for (auto& [name, parameter] : parameters) {
    if (shards.elsewhere_.contains(name)) {
      hidden_.emplace_back(parameter, std::exchange(parameter.mutable_grad(), {}));
    }
  }
}

OptimizerShards::OwnGradients::~OwnGradients() {
  for (auto& [parameter, gradient] : hidden_) {
    parameter.mutable_grad() = std::move(gradient);
  }
}

void OptimizerShards::send_updates(const NamedTensors& parameters) const {
  std::vector<std::vector<at::Tensor>> of_rank(static_cast<std::size_t>(world_.size()));
  for (const auto& [name, parameter] : parameters) {
    of_rank[static_cast<std::size_t>(owners_.at(name))].push_back(parameter.detach());
  }
  for (int rank = 0; rank < world_.size(); ++rank) {
    broadcast_tensors(of_rank[static_cast<std::size_t>(rank)], world_, rank);
  }
}

NamedTensors OptimizerShards::gather(NamedTensors mine, const NamedTensors& parameters) const {
  const std::vector<std::string> all = world_.gather(dump_json(tensor_layout(mine)));
  std::unordered_map<std::string, NamedTensors> of_parameter;
  for (int rank = 0; rank < world_.size(); ++rank) {
    // On the device there is one of them at a time.
    const NamedTensors states = empty_tensors(parse_json(all[static_cast<std::size_t>(rank)]), at::kMeta);
    for (std::size_t i = 0; i < states.size(); ++i) {
      const auto& [name, layout] = states[i];
      const auto owner = owners_.find(parameter_of(name));
      if (owner == owners_.end() || owner->second != rank) {
        continue;
      }
      const at::Tensor tensor = world_.rank() == rank ? mine[i].second.to(world_.device())
                                                      : at::empty_like(layout, at::device(world_.device()));
      if (rank != 0) {
        world_.broadcast(tensor, rank);
      }
      if (world_.is_main()) {
        of_parameter[owner->first].emplace_back(name, WorldAccess::on_host(world_, tensor));
      }
    }
  }
  if (!world_.is_main()) {
    return mine;
  }
  NamedTensors result;
  for (const auto& [name, parameter] : parameters) {
    NamedTensors& states = of_parameter[name];
    std::move(states.begin(), states.end(), std::back_inserter(result));
  }
  std::copy_if(mine.begin(), mine.end(), std::back_inserter(result),
               [&](const auto& entry) { return !owners_.contains(parameter_of(entry.first)); });
  return result;
}

}  // namespace lockstep
