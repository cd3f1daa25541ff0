#include "parallel/ddp.h"

#include <string>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <torch/nn/modules/embedding.h>

#include <lockstep/base/error.h>
#include <lockstep/world/world.h>

#include "base/text.h"
#include "parallel/ddp_optimizer.h"
#include "parallel/for_each_module.h"
#include "parallel/parameter_sync.h"
#include "world/agreement.h"
#include "world/world_access.h"

namespace lockstep {

namespace {

std::unordered_set<const c10::TensorImpl*> sparse_parameters(const torch::nn::Module& module) {
  std::unordered_set<const c10::TensorImpl*> sparse;
  for_each_module(module, [&sparse](const torch::nn::Module& part, const auto&) {
    if (const auto* embedding = part.as<torch::nn::EmbeddingImpl>();
        embedding != nullptr && embedding->options.sparse()) {
      sparse.insert(embedding->weight.unsafeGetTensorImpl());
    } else if (const auto* bag = part.as<torch::nn::EmbeddingBagImpl>(); bag != nullptr && bag->options.sparse()) {
      sparse.insert(bag->weight.unsafeGetTensorImpl());
    }
  });
  return sparse;
}

}  // namespace

void check_sparse_backend(std::span<const std::string> sparse, std::string_view backend) {
  if (!sparse.empty() && backend != "gloo") {
    throw ConfigError(
        fmt::format("{} sends no sparse gradients, but these parameters have them: {}", backend, join(sparse, ", ")),
        "build the embeddings without sparse(true), or use --backend gloo");
  }
}

Ddp::Ddp(const OptimConfig& optim, const DistConfig& dist, World& world, Precision precision, std::uint64_t seed,
         GradientHook hook)
    : SingleDevice(optim, dist, world, precision, seed), hook_(std::move(hook)) {}

void Ddp::prepare(torch::nn::Module& module, std::span<const OptimizerSpec> optimizers) {
  SingleDevice::prepare(module, optimizers);
  compare_parameters(module, world_);
  compare_hooks();
  broadcast_module(module, world_);
  if (lane_) {
    lane_->clear();
  } else {
    lane_.emplace(world_.device());
  }
  statistics_ = SyncStatistics::make(module, world_);
  make_reducers();
}

void Ddp::compare_hooks() {
  if (const auto difference = find_disagreement(hook_ ? "a gradient hook" : "no gradient hook", world_)) {
    throw_disagreement(*difference, world_, "has", "give Trainer::use_strategy the same strategy on every rank");
  }
}

void Ddp::prepare_again() {
  compare_frozen(*module_, world_);
  SingleDevice::prepare_again();
  make_reducers();
}

std::unique_ptr<SingleDeviceOptimizer> Ddp::make_optimizer(const OptimizerSpec& spec) {
  return std::make_unique<DdpOptimizer>(spec, *this);
}

void Ddp::make_reducers() {
  const auto sparse = sparse_parameters(*module_);
  const bool shares_memory = WorldAccess::shares_memory(world_);
  for (const auto& optimizer : optimizers_) {
    static_cast<DdpOptimizer&>(*optimizer).make_reducer(sparse);
  }
  if (shares_memory && !WorldAccess::shares_memory(world_)) {  // there was not enough for all: none takes it
    for (const auto& optimizer : optimizers_) {
      static_cast<DdpOptimizer&>(*optimizer).remove_reducer();
      static_cast<DdpOptimizer&>(*optimizer).make_reducer(sparse);
    }
  }
  buffers_due_ = true;
}

void Ddp::begin_step(std::int64_t number, StepRequests mine) {
  SingleDevice::begin_step(number, mine);
  lane_->begin_step();
  buffers_due_ = true;
}

void Ddp::send_buffers() {
  if (buffers_due_ && dist_.broadcast_buffers) {
    broadcast_buffers(*module_, world_);
    buffers_due_ = false;
  }
}

void Ddp::end_forward(bool ran) {
  if (statistics_ == nullptr) {
    return;
  }
  if (ran) {
    statistics_->end_pass();
  } else {
    statistics_->take_part();
  }
}

StepRequests Ddp::agreed() {
  if (const c10::Event* copied = lane_->on_its_way()) {
    progress_.begin_waiting();
    WorldAccess::wait_for(world_, *copied);
    progress_.end_waiting();
  }
  end_step();
  return lane_->requests();
}

}  // namespace lockstep
