#include "parallel/ddp_optimizer.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/distributed/c10d/debug.h>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <lockstep/base/error.h>
#include <lockstep/world/world.h>

#include "base/text.h"
#include "parallel/bucket_hook.h"
#include "parallel/shared_memory_hook.h"
#include "world/peer_errors.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

// Has the layout of an embedding's gradient: sparse rows, each row dense.
at::Tensor zero_gradient(const at::Tensor& parameter, bool sparse) {
  if (!sparse) {
    return at::zeros_like(parameter);
  }
  auto row = parameter.sizes().vec();
  row.front() = 0;
  return at::sparse_coo_tensor(at::empty({1, 0}, parameter.options().dtype(at::kLong)),
                               at::empty(row, parameter.options()), parameter.sizes());
}

// The reducer's own text names settings of Python.
void explain_second_gradient(const c10::Error& error) {
  const std::string_view text = error.what_without_backtrace();
  if (text.find("ready only once") == std::string_view::npos) {
    return;
  }
  constexpr std::string_view kBefore = "with name ";
  const auto begin = std::min(text.find(kBefore), text.size() - kBefore.size()) + kBefore.size();
  const std::string_view name = text.substr(begin, text.find(" has been", begin) - begin);
  throw Error(fmt::format("{} got a second gradient in one backward, expected one", printable(name)),
              "run one backward per forward. If a function of yours runs a backward inside of its backward, use "
              "lockstep::recompute() there, or set --dist.static_graph true");
}

// The indices that the reducer's own text names: of the parameters that a backward did not reach.
std::vector<std::size_t> unreached(const c10::Error& error) {
  std::string_view text = error.what_without_backtrace();
  constexpr std::string_view kBefore = "indices which did not receive grad for rank ";
  const auto begin = text.find(kBefore);
  const auto colon = begin == std::string_view::npos ? begin : text.find(':', begin);
  std::vector<std::size_t> indices;
  if (colon == std::string_view::npos) {
    return indices;
  }
  text = text.substr(colon + 1);
  for (const std::string& word : split(text.substr(0, text.find_first_not_of("0123456789, ")), ' ')) {
    if (const auto index = parse_int(word.substr(0, word.find(',')))) {
      indices.push_back(static_cast<std::size_t>(*index));
    }
  }
  return indices;
}

}  // namespace

DdpOptimizer::DdpOptimizer(const OptimizerSpec& spec, Ddp& ddp) : SingleDeviceOptimizer(spec, ddp), ddp_(ddp) {
  if (ddp_.dist_.shard_optimizer) {
    check_that_it_can_be_sharded(spec_, built_);
    shards_.emplace(all_parameters(), ddp_.world_);
    built_.elsewhere = shards_->elsewhere();
  }
}

// The gradients are views of the reducer's buckets. They are not kept, because a copy can fail: the GPU may be full,
// or take no more work after an error.
DdpOptimizer::~DdpOptimizer() {
  for (auto& [name, parameter] : parameters_) {
    parameter.mutable_grad().reset();
  }
}

void DdpOptimizer::build_again() {
  remove_reducer();
  SingleDeviceOptimizer::build_again();
  if (shards_) {
    built_.elsewhere = shards_->elsewhere();
  }
}

NamedTensors DdpOptimizer::all_parameters() const {
  NamedTensors all = parameters_;
  all.insert(all.end(), built_.frozen.begin(), built_.frozen.end());
  return all;
}

void DdpOptimizer::step() {
  if (!shards_) {
    SingleDeviceOptimizer::step();
    return;
  }
  {
    look_for_not_finite();  // while this rank has the gradients of all
    const OptimizerShards::OwnGradients own(*shards_, parameters_);
    SingleDeviceOptimizer::step();
  }
  shards_->send_updates(parameters_);
}

NamedTensors DdpOptimizer::state() const {
  NamedTensors mine = SingleDeviceOptimizer::state();
  return shards_ ? shards_->gather(std::move(mine), all_parameters()) : mine;
}

NamedTensors DdpOptimizer::evaluation_values() const {
  NamedTensors values = SingleDeviceOptimizer::evaluation_values();
  if (shards_ && !values.empty()) {
    shards_->send_updates(values);
  }
  return values;
}

void DdpOptimizer::remove_reducer() {
  hook_ = nullptr;
  shared_ = nullptr;
  logger_.reset();
  reducer_.reset();
  for (auto& [name, parameter] : parameters_) {
    if (parameter.grad().defined()) {
      parameter.mutable_grad() = parameter.grad().clone();  // the gradient was a view of a bucket
    }
  }
}

std::vector<std::string> DdpOptimizer::sparse_names() const {
  std::vector<std::string> names;
  for (const auto& [name, parameter] : parameters_) {
    if (is_sparse(parameter)) {
      names.push_back(name);
    }
  }
  return names;
}

/// One entry per parameter of the reducer, in its order.
struct DdpOptimizer::ReducerLists {
  std::vector<at::Tensor> parameters{};
  std::vector<bool> expect_sparse{};
  std::unordered_map<std::size_t, std::string> names{};
  std::int64_t bytes = 0;  // without the control lane
};

/// The control lane first, then the reverse order of registration.
DdpOptimizer::ReducerLists DdpOptimizer::lists_for_reducer() const {
  ReducerLists lists{.parameters = {lane_}, .expect_sparse = {false}, .names = {{0, "lockstep control lane"}}};
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    const auto& [name, parameter] = parameters_[i];
    lists.names[lists.parameters.size()] = name;
    lists.expect_sparse.push_back(is_sparse(parameter));
    lists.parameters.push_back(parameter);
    lists.bytes += static_cast<std::int64_t>(parameter.nbytes());
  }
  return lists;
}

// Note [Buckets from the first step on]: Python's DDP learns the order of gradients in its first backward and rebuilds
// the buckets then. Sums over more than two ranks depend on the position of an element in its bucket. A resumed run
// would learn the order again and would not be bitwise equal to an uninterrupted run. Here the order is fixed from the
// first step on: the reverse order of registration.
void DdpOptimizer::make_reducer(std::unordered_set<const c10::TensorImpl*> sparse) {
  const World& world = ddp_.world_;
  const DistConfig& dist = ddp_.dist_;
  const auto group = WorldAccess::group(world);
  sparse_ = std::move(sparse);
  check_sparse_backend(sparse_names(), group->getBackend(world.device().type())->getBackendName());

  lane_ = at::zeros_like(ddp_.lane_->values()).requires_grad_();
  ReducerLists lists = lists_for_reducer();
  bytes_ = lists.bytes;
  // The lane's gradient is the first one of a backward, and callbacks run in the order of registration. So this
  // callback runs after the rank's own work and before the reducer waits for the other ranks. A rank that hangs earlier
  // is the missing one.
  lane_.register_hook([this](const at::Tensor&) {
    torch::autograd::Engine::get_default_engine().queue_callback([this] { begin_reduction(); });
  });

  // See Note [Counts and compression].
  std::unique_ptr<BucketHook> hook = make_hook();
  const auto bucket_bytes = static_cast<std::int64_t>(dist.bucket_mib * (1 << 20));
  const std::int64_t first_bucket_bytes = hook != nullptr
                                              ? static_cast<std::int64_t>(lane_.nbytes())
                                              : std::min<std::int64_t>(bucket_bytes, c10d::kDefaultFirstBucketBytes);
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      lists.parameters, {static_cast<std::size_t>(first_bucket_bytes), static_cast<std::size_t>(bucket_bytes)},
      lists.expect_sparse);
  reducer_ = std::make_shared<c10d::Reducer>(
      lists.parameters, std::move(buckets), group, lists.expect_sparse, bucket_bytes, dist.find_unused_parameters,
      /*gradient_as_bucket_view=*/true, std::move(lists.names), first_bucket_bytes,
      /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false, /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
  logger_ = std::make_shared<c10d::Logger>(reducer_);
  reducer_->set_logger(logger_);
  logger_->set_construction_data_and_log(ddp_.module_->name(), {}, -1, dist.broadcast_buffers,
                                         /*has_sync_bn=*/false, dist.static_graph);
  if (dist.static_graph) {
    reducer_->set_static_graph();
    logger_->set_static_graph();
  }
  if (hook != nullptr) {
    hook_ = hook.get();
    reducer_->register_comm_hook(std::move(hook));
  }
  reducer_->push_rebuilt_params_for_all_indices();
  with_peers(world, "agreement on gradient buckets", [&] { reducer_->rebuild_buckets(); });
  if (hook_ == nullptr && WorldAccess::shares_memory(world)) {
    if (auto shared = SharedMemoryHook::make(ddp_.world_, reducer_->get_grad_buckets(/*return_zero_tensors=*/false))) {
      shared_ = shared.get();
      reducer_->register_comm_hook(std::move(shared));
    }
  }
  used_.assign(parameters_.size(), false);
  reduce_ = first_backward_ = idle_ = true;
  counts_again_ = false;
}

std::unique_ptr<BucketHook> DdpOptimizer::make_hook() const {
  if (ddp_.hook_) {
    return std::make_unique<ProgramHook>(ddp_.world_, ControlLane::kCount, ddp_.hook_, index_);
  }
  if (const GradCompression compression = ddp_.dist_.compression; compression != GradCompression::none) {
    return std::make_unique<CompressionHook>(ddp_.world_, ControlLane::kCount, compression,
                                             RoundingKey{.seed = ddp_.seed_, .optimizer = index_});
  }
  return nullptr;
}

void DdpOptimizer::zero_grad() {
  SingleDeviceOptimizer::zero_grad();
  lane_.mutable_grad().reset();
  idle_ = true;
  if (ddp_.dist_.find_unused_parameters) {
    // Since its last reduction, the backward of another optimizer may have marked parameters as used.
    reducer_->reset_state();
  }
}

void DdpOptimizer::begin_forward(Gradients gradients) {
  SingleDeviceOptimizer::begin_forward(gradients);
  reduce_ = gradients == Gradients::reduce;
  if (reduce_) {
    if (counts_again_) {
      remove_reducer();
      make_reducer(sparse_);
    }
    reducer_->prepare_for_forward();
  }
  ddp_.send_buffers();
}

void DdpOptimizer::backward(const at::Tensor& loss, const at::Tensor& weight) {
  idle_ = false;
  has_loss_ = ran_backward_ = true;
  end_pass();
  if (reduce_) {
    run_backward({loss}, {root_gradient(loss, weight)});
  } else {
    SingleDeviceOptimizer::backward(loss, weight);
    end_pass();
  }
}

void DdpOptimizer::backward_nothing() {
  has_loss_ = false;
  end_pass();
  if (!reduce_) {
    end_pass();
    return;
  }
  std::vector<at::Tensor> roots;
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].second;
    const bool sparse = is_sparse(parameter);
    // The reducer treats the gradients of dense parameters for which it does not wait as zero.
    const bool waits = ddp_.dist_.static_graph ? used_[i] : !ddp_.dist_.find_unused_parameters;
    if (waits || sparse) {
      roots.push_back(at::alias(parameter));  // the search begins at graph nodes, and a leaf has none
      gradients.push_back(zero_gradient(parameter, sparse));
    }
  }
  try {
    run_backward(std::move(roots), std::move(gradients));
  } catch (const CommError& error) {
    throw CommError(error.what(),
                    fmt::format("{}; this rank has no samples in this micro-batch, so it did not run training_step: if "
                                "that calls a collective, the other ranks wait there",
                                error.hint()),
                    error.exit_code());
  }
}

void DdpOptimizer::run_backward(std::vector<at::Tensor> roots, std::vector<at::Tensor> gradients) {
  ddp_.begin_phase(Phase::backward);
  ddp_.lane_->write_count(count_);
  ddp_.lane_->write_loss(loss_);
  ddp_.lane_->write_inputs(inputs_);
  ddp_.lane_->write_requests(ddp_.take_requests());
  is_reducing_ = false;
  if (shared_ != nullptr) {
    shared_->begin_backward();
  }
  if (hook_ != nullptr) {
    hook_->begin_backward(/*expects_counts=*/count_.defined() || idle_, ddp_.step_);
  }
  // A view, because the search for unused parameters begins at graph nodes, and a leaf has none.
  const at::Tensor lane = lane_.view({ControlLane::kSize});
  if (ddp_.statistics_ != nullptr) {
    // This must run before the reducer waits for the other ranks, because they may wait for this rank's statistics.
    lane.register_hook([this](const at::Tensor&) {
      torch::autograd::Engine::get_default_engine().queue_callback([this] { end_pass(); });
    });
  }
  roots.push_back(lane);
  gradients.push_back(ddp_.lane_->values());
  reducer_->prepare_for_backward(ddp_.dist_.find_unused_parameters ? roots : std::vector<at::Tensor>{});
  if (ddp_.dist_.static_graph && first_backward_) {
    // The first backward only counts the uses; all gradients are reduced at its end. A rank without samples has no uses
    // to count: the next backward of all ranks is then the first one again.
    counts_again_ = ddp_.world_.any(!has_loss_);
    lane.register_hook([this](const at::Tensor&) {
      torch::autograd::Engine::get_default_engine().queue_callback([this, reducer = reducer_] {
        begin_reduction();
        // The reduction also gives gradients to parameters that only other ranks use, so this comes before it.
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
          used_[i] = parameters_[i].second.grad().defined();
        }
        reducer->delay_all_reduce();
      });
    });
  }
  first_backward_ = false;
  try {
    with_peers(ddp_.world_, "gradient all-reduce", [&] {
      torch::autograd::backward(roots, gradients);
      if (shared_ != nullptr) {
        shared_->finish();
      }
    });
  } catch (const c10::Error& error) {
    waiting_.reset();
    explain_second_gradient(error);
    throw;
  }
  waiting_.reset();
  ddp_.progress_.end();
  ddp_.clock_.end_waiting();
  if (hook_ != nullptr) {
    with_peers(ddp_.world_, "gradient hook", [&] { hook_->finish(); });
  }
}

void DdpOptimizer::begin_reduction() {
  if (!is_reducing_) {
    is_reducing_ = true;
    ddp_.progress_.begin(Operation::all_reduce, bytes_);
    ddp_.clock_.begin_waiting();
    // A trace of a GPU shows NCCL's kernels, and there this may be another thread than the one that waits.
    if (ddp_.world_.device().is_cpu()) {
      waiting_.emplace(at::RecordScope::USER_SCOPE);
      if (waiting_->isActive()) {
        waiting_->before("communication");
      }
    }
  }
}

void DdpOptimizer::end_pass() { ddp_.end_forward(has_loss_); }

void DdpOptimizer::finish() {
  if (!lane_.grad().defined()) {
    throw Error(fmt::format("optimizer '{}': the gradients of this step were not reduced", name()),
                "call begin_forward(Gradients::reduce) before the last forward of a step, and backward() or "
                "backward_nothing() after it");
  }
  check_all_used();
  look_for_unused();
  unscale_grads();
  ddp_.lane_->add(lane_.grad());
}

// Checked before any update: the reducer alone would detect it only in the next step, and its text names settings of
// Python. A parameter that an earlier micro-batch used has a gradient, which the last backward did not reduce.
void DdpOptimizer::check_all_used() const {
  try {
    reducer_->check_finalized();
  } catch (const c10::Error& error) {
    if (const std::vector<std::string> unused = without_gradient(); !unused.empty()) {
      throw Error(text_about(unused), kUnusedHint);
    }
    std::vector<std::string> names;
    for (const std::size_t index : unreached(error)) {
      if (index >= 1 && index <= parameters_.size()) {  // 0 is the lane; the order is reversed
        names.push_back(parameters_[parameters_.size() - index].first);
      }
    }
    std::ranges::reverse(names);
    throw Error(
        names.empty()
            ? fmt::format("the gradients of the last backward were not reduced on rank {}", ddp_.world_.rank())
            : fmt::format("the last backward of the step did not reach {} of {} parameters on rank {}: {}",
                          names.size(), parameters_.size(), ddp_.world_.rank(), join_first(names, 10)),
        ddp_.dist_.static_graph
            ? "run one backward per forward; under --dist.static_graph the graph must not change, and no loss of "
              "another optimizer may reach these parameters"
            : "if micro-batches use different parts of the model, as with a head for each loader, set "
              "--dist.find_unused_parameters true");
  }
}

at::Tensor DdpOptimizer::mean_loss() { return lane_.grad().select(0, ControlLane::kLoss); }

at::Tensor DdpOptimizer::mean_inputs() { return lane_.grad().select(0, ControlLane::kInputs); }

at::Tensor DdpOptimizer::mean_count() {
  const at::Tensor& lane = lane_.grad();
  if (!count_.defined() && !idle_) {
    // Reading it from a GPU would wait.
    if (lane.is_cpu() && lane.const_data_ptr<float>()[ControlLane::kCounted] > 0) {
      throw CommError(fmt::format("optimizer '{}': rank {} has samples without a count in this step, another rank has "
                                  "a count",
                                  name(), ddp_.world_.rank()),
                      "set StepOutput::count on every rank, in every micro-batch; it may be 0", ExitCode::disagree);
    }
    return {};
  }
  const auto mean = lane.select(0, ControlLane::kCount);
  // A rank without samples does not know whether the other ranks use counts.
  return idle_ ? at::where(lane.select(0, ControlLane::kCounted) > 0, mean, 1) : mean;
}

}  // namespace lockstep
