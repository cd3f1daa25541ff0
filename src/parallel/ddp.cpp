#include "parallel/ddp.h"

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

#include <ATen/ATen.h>
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

// Gradients travel in half precision. With a hook the reducer does not divide by the number of ranks, so the hook does.
//
// Note [Counts and compression]: gradients that are weighted by counts are sums over a step's tokens and would overflow
// in fp16. The lane, which has the counts, is a bucket of its own, travels first and as it is; the other buckets wait
// for it on the device and are divided by the power of two below the mean count while they travel.
class CompressionHook final : public c10d::CommHookInterface {
 public:
  CompressionHook(c10::intrusive_ptr<c10d::ProcessGroup> group, at::ScalarType dtype, std::int64_t count_slot)
      : group_(std::move(group)), dtype_(dtype), count_slot_(count_slot) {}

  /// For the coming backward: whether this rank has to expect counts in the lane.
  void expect_counts(bool expected) { expects_counts_ = expected; }

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const at::Tensor full = bucket.getBuffer();
    full.div_(group_->getSize());
    std::vector<at::Tensor> sent{full};
    if (bucket.getIndex() == 0) {
      unit_.reset();
      lane_ = full;
      lane_work_ = group_->allreduce(sent);
      return result_of(*lane_work_, full);
    }
    if (full.is_sparse()) {
      return result_of(*group_->allreduce(sent), full);
    }
    const at::Tensor reals = full.is_complex() ? at::view_as_real(full) : full;
    if (expects_counts_) {
      reals.div_(unit());
    }
    sent.front() = reals.to(dtype_);
    return group_->allreduce(sent)->getFuture()->then(
        [full, reals, half = sent.front(), unit = unit_](c10::ivalue::Future& future) {
          future.value();  // rethrows
          reals.copy_(half);
          if (unit.defined()) {
            reals.mul_(unit);
          }
          return c10::IValue(full);
        },
        c10::TensorType::get());
  }

  at::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }

 private:
  static c10::intrusive_ptr<c10::ivalue::Future> result_of(c10d::Work& work, const at::Tensor& sum) {
    return work.getFuture()->then(
        [sum](c10::ivalue::Future& future) {
          future.value();  // rethrows
          return c10::IValue(sum);
        },
        c10::TensorType::get());
  }

  const at::Tensor& unit() {
    if (!unit_.defined()) {
      lane_work_->wait();
      const at::Tensor count = lane_.select(0, count_slot_);
      unit_ = at::where(count > 0, count.log2().floor_().exp2_(), 1);
    }
    return unit_;
  }

  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  at::ScalarType dtype_;
  std::int64_t count_slot_;
  bool expects_counts_ = false;
  c10::intrusive_ptr<c10d::Work> lane_work_{};
  at::Tensor lane_{};  // of this backward
  at::Tensor unit_{};  // 0-dim, on the device; the same on every rank
};

// Of the shape in which an embedding's gradient comes: sparse in the rows, dense in each row.
at::Tensor zero_gradient(const at::Tensor& parameter, bool sparse) {
  if (!sparse) {
    return at::zeros_like(parameter);
  }
  auto row = parameter.sizes().vec();
  row.front() = 0;
  return at::sparse_coo_tensor(at::empty({1, 0}, parameter.options().dtype(at::kLong)),
                               at::empty(row, parameter.options()), parameter.sizes());
}

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
  at::Tensor lane{};  // the reducer's parameter 0
  std::shared_ptr<c10d::Reducer> reducer{};
  std::shared_ptr<c10d::Logger> logger{};  // the reducer uses it without asking whether it is there
  CompressionHook* compression = nullptr;  // the reducer's; none without compression
  std::vector<bool> sparse{};              // beside the set's parameters
  std::int64_t bytes = 0;                  // of gradients
  bool reduce = true;
  bool first_backward = true;
  bool idle = true;  // no samples in this step so far
};

void check_sparse_backend(std::span<const std::string> sparse, std::string_view backend) {
  if (!sparse.empty() && backend != "gloo") {
    throw ConfigError(
        fmt::format("{} sends no sparse gradients, but these parameters have them: {}", backend, join(sparse, ", ")),
        "build the embeddings without sparse(true), or use --backend gloo");
  }
}

Ddp::Ddp(double lr, const DistConfig& options, World& world) : SingleDevice(lr, world), options_(options) {}

Ddp::~Ddp() {
  reductions_.clear();
  own_gradients();
}

void Ddp::own_gradients() {
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
  lane_values_ = at::zeros({kLaneSize}, at::TensorOptions().device(world_.device()).dtype(at::kFloat));
  lane_counts_ = false;
  in_lane_ = {};
  sums_.emplace(kLaneSize, world_.device(), /*late=*/world_.device().is_cuda());
  make_reductions();
}

void Ddp::prepare_again() {
  compare_frozen(*module_, world_);
  reductions_.clear();
  own_gradients();
  SingleDevice::prepare_again();
  make_reductions();
}

void Ddp::make_reductions() {
  const auto group = WorldAccess::group(world_);
  const auto on_device = at::TensorOptions().device(world_.device()).dtype(at::kFloat);
  const auto sparse = sparse_parameters(*module_);
  const auto bucket_bytes = static_cast<std::int64_t>(options_.bucket_mib * (1 << 20));
  // See Note [Counts and compression].
  const bool compresses = options_.compression != GradCompression::none;
  const std::int64_t first_bucket_bytes = compresses
                                              ? static_cast<std::int64_t>(lane_values_.nbytes())
                                              : std::min<std::int64_t>(bucket_bytes, c10d::kDefaultFirstBucketBytes);

  for (const auto& set : sets_) {
    auto& reduction = reductions_.emplace_back();
    std::vector<std::string> sparse_names;
    for (const auto& [name, parameter] : set.parameters) {
      reduction.sparse.push_back(sparse.contains(parameter.unsafeGetTensorImpl()));
      if (reduction.sparse.back()) {
        sparse_names.push_back(name);
      }
    }
    check_sparse_backend(sparse_names, group->getBackend(world_.device().type())->getBackendName());
    reduction.lane = at::zeros({kLaneSize}, on_device).requires_grad_();
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
    reduction.logger->set_construction_data_and_log(module_->name(), {}, -1, options_.broadcast_buffers,
                                                    /*has_sync_bn=*/false, options_.static_graph);
    if (options_.static_graph) {
      reduction.reducer->set_static_graph();
      reduction.logger->set_static_graph();
    }
    if (compresses) {
      auto hook = std::make_unique<CompressionHook>(
          group, options_.compression == GradCompression::fp16 ? at::kHalf : at::kBFloat16, kCount);
      reduction.compression = hook.get();
      reduction.reducer->register_comm_hook(std::move(hook));
    }
    reduction.reducer->push_rebuilt_params_for_all_indices();
    with_peers(world_, "agreement on gradient buckets", [&] { reduction.reducer->rebuild_buckets(); });
  }
  buffers_due_ = true;
}

void Ddp::begin_step(ControlLane mine) {
  SingleDevice::begin_step(mine);
  sums_->begin_step();
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
  run_backward({loss}, {weight}, sets_[set], reduction);
}

// The lane is shared by the optimizers: what one of them counted is not the next one's.
void Ddp::put_count(const Set& set) {
  if (set.count.defined()) {
    lane_values_.select(0, kCount).copy_(set.count);
    if (!lane_counts_) {
      lane_values_.select(0, kCounted).fill_(1);
    }
  } else if (lane_counts_) {
    lane_values_.narrow(0, kCount, 2).zero_();
  }
  lane_counts_ = set.count.defined();
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
  for (std::size_t i = 0; i < reduction.sparse.size(); ++i) {
    // The reducer takes dense parameters that are not reached as zero by itself when it looks for them.
    if (!options_.find_unused_parameters || reduction.sparse[i]) {
      const at::Tensor& parameter = sets_[set].parameters[i].second;
      roots.push_back(at::alias(parameter));  // a leaf has no graph node to begin the search at
      gradients.push_back(zero_gradient(parameter, reduction.sparse[i]));
    }
  }
  run_backward(std::move(roots), std::move(gradients), sets_[set], reduction);
}

void Ddp::run_backward(std::vector<at::Tensor> roots, std::vector<at::Tensor> gradients, const Set& set,
                       Reduction& reduction) {
  if (reduction.compression != nullptr) {
    reduction.compression->expect_counts(set.count.defined() || reduction.idle);
  }
  write_lane(take_requests());
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
  with_peers(world_, "gradient all-reduce", [&] { torch::autograd::backward(roots, gradients); });
  progress_.end();
}

void Ddp::finish(std::size_t set) {
  auto& reduction = reductions_.at(set);
  check_all_used(reduction, sets_[set]);
  sums_->add(reduction.lane.grad());
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

void Ddp::zero_grad(std::size_t set) {
  SingleDevice::zero_grad(set);
  reductions_.at(set).lane.mutable_grad().reset();
  reductions_[set].idle = true;
}

void Ddp::write_lane(ControlLane mine) {
  if (mine == in_lane_) {
    return;
  }
  in_lane_ = mine;
  const at::NoGradGuard no_grad;
  lane_values_.select(0, kStop).fill_(mine.stop ? 1 : 0);
  lane_values_.select(0, kSave).fill_(mine.save ? 1 : 0);
  lane_values_.select(0, kSaveEnded).fill_(mine.save_ended ? 1 : 0);
}

ControlLane Ddp::agreed() {
  if (sums_->must_wait()) {
    progress_.begin_waiting();
    sums_->read();
    progress_.end_waiting();
    WorldAccess::check_device(world_);
  }
  const std::vector<float>& sums = sums_->read();
  return {.stop = sums[kStop] > 0, .save = sums[kSave] > 0, .save_ended = sums[kSaveEnded] > 0};
}

at::Tensor Ddp::mean_count(std::size_t set) {
  const bool idle = reductions_.at(set).idle;
  if (!sets_[set].count.defined() && !idle) {
    return {};
  }
  const at::Tensor& lane = reductions_[set].lane.grad();
  const auto mean = lane.select(0, kCount);
  // A rank without samples cannot know whether the others count.
  return idle ? at::where(lane.select(0, kCounted) > 0, mean, 1) : mean;
}

}  // namespace lockstep
