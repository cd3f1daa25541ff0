#include "parallel/ddp.h"

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/distributed/c10d/debug.h>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/nn/modules/embedding.h>

#include <lockstep/base/error.h>
#include <lockstep/world/world.h>

#include "base/text.h"
#include "parallel/parameter_sync.h"
#include "world/world_access.h"

namespace lockstep {

namespace {

// Gradients travel in half precision and are averaged there. With a hook the reducer does not divide, so the hook does.
class CompressionHook final : public c10d::CommHookInterface {
 public:
  CompressionHook(c10::intrusive_ptr<c10d::ProcessGroup> group, at::ScalarType dtype)
      : group_(std::move(group)), dtype_(dtype) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const at::Tensor full = bucket.getBuffer();
    std::vector<at::Tensor> half{full.to(dtype_).div_(group_->getSize())};
    return group_->allreduce(half)->getFuture()->then(
        [full, half](c10::ivalue::Future& future) {
          future.value();  // rethrows
          full.copy_(half[0]);
          return c10::IValue(full);
        },
        c10::TensorType::get());
  }

  at::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  at::ScalarType dtype_;
};

// Counts travel in this unit, so that half precision does not overflow; a power of two, so that nothing else is
// rounded.
constexpr double kCountUnit = 1024;

std::unordered_set<const c10::TensorImpl*> sparse_parameters(const torch::nn::Module& module) {
  std::unordered_set<const c10::TensorImpl*> sparse;
  const auto add = [&sparse](const torch::nn::Module& part) {
    if (const auto* embedding = part.as<torch::nn::EmbeddingImpl>();
        embedding != nullptr && embedding->options.sparse()) {
      sparse.insert(embedding->weight.unsafeGetTensorImpl());
    } else if (const auto* bag = part.as<torch::nn::EmbeddingBagImpl>(); bag != nullptr && bag->options.sparse()) {
      sparse.insert(bag->weight.unsafeGetTensorImpl());
    }
  };
  add(module);
  for (const auto& part : module.modules(/*include_self=*/false)) {  // with itself it would have to be in a shared_ptr
    add(*part);
  }
  return sparse;
}

}  // namespace

struct Ddp::Reduction {
  at::Tensor lane{};       // the reducer's parameter 0
  at::Tensor lane_host{};  // its gradient of the step before, in pinned memory; GPU only
  std::unique_ptr<c10::Event> lane_copied{};
  std::shared_ptr<c10d::Reducer> reducer{};
  std::shared_ptr<c10d::Logger> logger{};  // the reducer uses it without asking whether it is there
  std::int64_t bytes = 0;                  // of gradients
  bool reduce = true;
  bool first_backward = true;
  bool idle = true;  // no samples in this step so far
};

Ddp::Ddp(double lr, const DistConfig& options, World& world) : SingleDevice(lr, world), options_(options) {}

Ddp::~Ddp() {
  reductions_.clear();
  for (auto& set : sets_) {
    for (auto& [name, parameter] : set.parameters) {
      if (parameter.grad().defined()) {
        parameter.mutable_grad() = parameter.grad().clone();  // was a view of a bucket
      }
    }
  }
}

// Note [Buckets from the first step on]: Python's DDP learns the order of gradients in its first backward and rebuilds
// the buckets then. Sums over more than two ranks depend on where an element lies in its bucket, so a resumed run,
// which learns again, would not be bitwise the undisturbed one. The order here is fixed: parameters in reverse order of
// registration, final from the first step on.
void Ddp::prepare(torch::nn::Module& module, std::span<const OptimizerSpec> optimizers) {
  reductions_.clear();
  SingleDevice::prepare(module, optimizers);
  compare_parameters(module, world_);
  broadcast_module(module, world_);

  const auto group = WorldAccess::group(world_);
  const auto on_device = at::TensorOptions().device(world_.device()).dtype(at::kFloat);
  lane_values_ = at::zeros({kLaneSize}, on_device);
  sent_ = {};
  const auto sparse = sparse_parameters(module);
  const auto bucket_bytes = static_cast<std::int64_t>(options_.bucket_mib * (1 << 20));
  const std::int64_t first_bucket_bytes = std::min<std::int64_t>(bucket_bytes, c10d::kDefaultFirstBucketBytes);

  for (const auto& set : sets_) {
    auto& reduction = reductions_.emplace_back();
    reduction.lane = at::zeros({kLaneSize}, on_device).requires_grad_();
    if (world_.device().is_cuda()) {
      reduction.lane_host = at::zeros({kLaneSize}, at::kFloat).pin_memory();
      reduction.lane_copied = std::make_unique<c10::Event>(world_.device().type());
    }
    std::vector<at::Tensor> parameters{reduction.lane};
    std::vector<bool> expect_sparse{false};
    std::unordered_map<std::size_t, std::string> names{{0, "lockstep control lane"}};
    for (auto entry = set.parameters.rbegin(); entry != set.parameters.rend(); ++entry) {
      names[parameters.size()] = entry->first;
      expect_sparse.push_back(sparse.contains(entry->second.unsafeGetTensorImpl()));
      parameters.push_back(entry->second);
      reduction.bytes += static_cast<std::int64_t>(entry->second.nbytes());
    }
    // The lane's gradient is the first of a backward, and callbacks run in the order they came: this one after the
    // rank's own work, before the reducer waits for the others. Who hangs before is the one that did not come.
    reduction.lane.register_hook([&progress = progress_, bytes = reduction.bytes](const at::Tensor&) {
      torch::autograd::Engine::get_default_engine().queue_callback(
          [&progress, bytes] { progress.begin(Operation::all_reduce, bytes); });
    });
    auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
        parameters, {static_cast<std::size_t>(first_bucket_bytes), static_cast<std::size_t>(bucket_bytes)},
        expect_sparse);
    reduction.reducer = std::make_shared<c10d::Reducer>(
        parameters, std::move(buckets), group, expect_sparse, bucket_bytes, options_.find_unused_parameters,
        /*gradient_as_bucket_view=*/true, std::move(names), first_bucket_bytes, /*skip_all_reduce_unused_params=*/false,
        /*use_python_reducer=*/false, /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
    reduction.logger = std::make_shared<c10d::Logger>(reduction.reducer);
    reduction.reducer->set_logger(reduction.logger);
    reduction.logger->set_construction_data_and_log(module.name(), {}, -1, options_.broadcast_buffers,
                                                    /*has_sync_bn=*/false, options_.static_graph);
    if (options_.static_graph) {
      reduction.reducer->set_static_graph();
      reduction.logger->set_static_graph();
    }
    if (options_.compression != GradCompression::none) {
      reduction.reducer->register_comm_hook(std::make_unique<CompressionHook>(
          group, options_.compression == GradCompression::fp16 ? at::kHalf : at::kBFloat16));
    }
    reduction.reducer->push_rebuilt_params_for_all_indices();
    reduction.reducer->rebuild_buckets();
  }
  buffers_due_ = true;
}

void Ddp::begin_forward(bool reduce, std::size_t set) {
  progress_.set_phase(Phase::forward);
  auto& reduction = reductions_.at(set);
  reduction.reduce = reduce;
  if (reduce) {
    reduction.reducer->prepare_for_forward();
  }
  if (buffers_due_ && options_.broadcast_buffers) {
    broadcast_buffers(*module_, world_);
    buffers_due_ = false;
  }
}

void Ddp::backward(const at::Tensor& loss, const at::Tensor& weight, std::size_t set) {
  progress_.set_phase(Phase::backward);
  auto& reduction = reductions_.at(set);
  if (!reduction.reduce) {
    reduction.idle = false;
    torch::autograd::backward({loss}, {weight});
    return;
  }
  put_count(sets_[set]);
  reduction.idle = false;
  run_backward({loss}, {weight}, reduction);
}

void Ddp::put_count(const Set& set) {
  if (!set.counts) {
    return;
  }
  auto slot = lane_values_.select(0, kCount);
  if (set.count.defined()) {
    slot.copy_(set.count / kCountUnit);
  } else {
    slot.zero_();
  }
}

void Ddp::backward_nothing(std::size_t set) {
  progress_.set_phase(Phase::backward);
  auto& reduction = reductions_.at(set);
  if (!reduction.reduce) {
    return;
  }
  put_count(sets_[set]);
  std::vector<at::Tensor> roots;
  std::vector<at::Tensor> gradients;
  if (!options_.find_unused_parameters) {  // else the reducer takes parameters that are not reached as zero by itself
    for (const auto& [name, parameter] : sets_[set].parameters) {
      roots.push_back(parameter);
      gradients.push_back(at::zeros_like(parameter));
    }
  }
  run_backward(std::move(roots), std::move(gradients), reduction);
}

void Ddp::run_backward(std::vector<at::Tensor> roots, std::vector<at::Tensor> gradients, Reduction& reduction) {
  // A view, because the search for unused parameters begins at the roots' graph nodes and a leaf has none.
  const at::Tensor lane = reduction.lane.view({kLaneSize});
  roots.push_back(lane);
  gradients.push_back(lane_values_);
  reduction.reducer->prepare_for_backward(options_.find_unused_parameters ? roots : std::vector<at::Tensor>{});
  if (options_.static_graph && reduction.first_backward) {
    // The first backward only counts; everything is reduced at its end.
    lane.register_hook([reducer = reduction.reducer](const at::Tensor&) {
      torch::autograd::Engine::get_default_engine().queue_callback([reducer] { reducer->delay_all_reduce(); });
    });
  }
  reduction.first_backward = false;
  try {
    torch::autograd::backward(roots, gradients);
    progress_.end();
  } catch (const std::exception& error) {
    if (is_peer_failure(error)) {
      throw CommError(fmt::format("gradient all-reduce failed on rank {} of {}: {}", world_.rank(), world_.size(),
                                  plain_text(error)),
                      "another rank failed or is late; its own message says why");
    }
    throw;
  }
}

void Ddp::finish(std::size_t set) {
  auto& reduction = reductions_.at(set);
  check_all_used(reduction, sets_[set]);
  read_lane(reduction);
  buffers_due_ = true;
}

// Before any parameter is updated: the reducer alone would notice only in the next step.
void Ddp::check_all_used(Reduction& reduction, const Set& set) const {
  try {
    reduction.reducer->check_finalized();
  } catch (const c10::Error& error) {
    std::vector<std::string> unused;
    for (const auto& [name, parameter] : set.parameters) {
      if (!parameter.grad().defined()) {
        unused.push_back(name);
      }
    }
    if (unused.empty()) {
      throw Error(fmt::format("gradients were not reduced: {}", error.what_without_backtrace()),
                  "one backward per forward; the graph must not change under --dist.static_graph");
    }
    constexpr std::size_t kShown = 10;
    const std::size_t count = unused.size();
    unused.resize(std::min(count, kShown));
    throw Error(fmt::format("{} of {} parameters got no gradient on rank {}: {}{}", count, set.parameters.size(),
                            world_.rank(), join(unused, ", "), count > kShown ? ", ..." : ""),
                "use them in the loss, freeze them (requires_grad_(false)), or set --dist.find_unused_parameters true");
  }
}

void Ddp::read_lane(Reduction& reduction) {
  const at::Tensor& lane = reduction.lane.grad();
  const auto read = [this](const float* sums) {
    agreed_ = {.stop = sums[kStop] > 0, .save = sums[kSave] > 0, .save_ended = sums[kSaveEnded] > 0};
  };
  if (!reduction.lane_copied) {
    read(lane.const_data_ptr<float>());
    return;
  }
  // What the last step copied has arrived long ago; this step's copy is not waited for.
  if (reduction.lane_copied->was_marked_for_recording()) {
    progress_.begin_waiting();
    reduction.lane_copied->synchronize();
    progress_.end_waiting();
    WorldAccess::check_device(world_);
    read(reduction.lane_host.const_data_ptr<float>());
  }
  reduction.lane_host.copy_(lane, /*non_blocking=*/true);
  reduction.lane_copied->record(c10::impl::VirtualGuardImpl(world_.device().type()).getStream(world_.device()));
}

void Ddp::zero_grad(std::size_t set) {
  SingleDevice::zero_grad(set);
  reductions_.at(set).lane.mutable_grad().reset();
  reductions_[set].idle = true;
}

void Ddp::put(ControlLane mine) {
  if (mine == sent_) {
    return;
  }
  sent_ = mine;
  const at::NoGradGuard no_grad;
  lane_values_.select(0, kStop).fill_(mine.stop ? 1 : 0);
  lane_values_.select(0, kSave).fill_(mine.save ? 1 : 0);
  lane_values_.select(0, kSaveEnded).fill_(mine.save_ended ? 1 : 0);
}

ControlLane Ddp::agreed() { return agreed_; }

at::Tensor Ddp::mean_count(std::size_t set) {
  const bool idle = reductions_.at(set).idle;
  if (!sets_[set].counts && !idle) {
    return {};
  }
  const auto mean = reductions_[set].lane.grad().select(0, kCount) * kCountUnit;
  // A rank without samples cannot know whether the others count.
  return idle ? at::where(mean > 0, mean, at::ones_like(mean)) : mean;
}

}  // namespace lockstep
