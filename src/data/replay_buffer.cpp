#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <lockstep/base/error.h>
#include <lockstep/data/replay_buffer.h>
#include <lockstep/world/world.h>

#include "base/mapped.h"
#include "base/option_check.h"
#include "data/batch_columns.h"
#include "data/finite_values.h"
#include "data/step_plan.h"
#include "sampling/epoch_hash.h"
#include "tensor/shape_text.h"

namespace lockstep {

namespace {

/// The positions of the planner: 0, 1, 2, ... of an epoch without end.
DistributedSampler::Options draws_of(const LoaderPlan& plan, const World& world) {
  return {.size = std::int64_t{1} << 62,
          .global_batch = plan.batch.global_batch_size,
          .world_size = world.size(),
          .seed = plan.seed,
          .sampler = {.shuffle = false}};
}

/// "input [*, 4] Float, fields.done [*] Bool"
std::string describe_columns(const NamedTensors& columns) {
  std::string text;
  for (const auto& [name, tensor] : columns) {
    text += fmt::format("{}{} [*{}{}] {}", text.empty() ? "" : ", ", name, tensor.dim() > 1 ? ", " : "",
                        fmt::join(tensor.sizes().slice(1), ", "), c10::toString(tensor.scalar_type()));
  }
  return text;
}

/// Number of transitions in a batch.
std::int64_t rows_of(const Batch& batch, const NamedTensors& columns) {
  if (batch.extra.has_value() || columns.empty()) {
    throw DataError(fmt::format("replay buffer: found a batch {}, expected tensors only",
                                columns.empty() ? "without tensors" : "with `extra`"));
  }
  for (const auto& [name, tensor] : columns) {
    if (tensor.dim() == 0 || tensor.size(0) != columns.front().second.size(0)) {
      throw DataError(fmt::format("replay buffer: found {} of shape {} and {} of shape {}, expected [N, ...] for all",
                                  columns.front().first, shape_text(columns.front().second.sizes()), name,
                                  shape_text(tensor.sizes())));
    }
  }
  return columns.front().second.size(0);
}

}  // namespace

struct ReplayBuffer::Impl {
  std::int64_t capacity;
  std::uint64_t seed;
  bool endless;
  bool check_finite;
  c10::Device device;
  StepPlanner planner;
  StepPlan plan{};
  StepBatches current{};
  NamedTensors rows{};  // [capacity, ...]; the first `size` are filled
  std::int64_t size = 0;
  std::int64_t end = 0;  // the row that is written next

  /// Copies rows of `from` to the rows from `end` on; the end of the memory is followed by its beginning.
  void write(const NamedTensors& from, std::int64_t first, std::int64_t count) {
    while (count > 0) {
      const std::int64_t part = std::min(count, capacity - end);
      for (std::size_t column = 0; column < rows.size(); ++column) {
        rows[column].second.narrow(0, end, part).copy_(from[column].second.narrow(0, first, part));
      }
      end = (end + part) % capacity;
      size = std::min(capacity, size + part);
      first += part;
      count -= part;
    }
  }

  Batch draw(std::span<const std::int64_t> positions) const {
    const std::uint64_t state = epoch_state(seed, plan.epoch);
    const auto drawn = mapped(positions, [&](std::int64_t position) {
      return static_cast<std::int64_t>(high_product(epoch_hash(state, position), static_cast<std::uint64_t>(size)));
    });
    const at::Tensor index = at::tensor(drawn);
    NamedTensors columns;
    for (const auto& [name, tensor] : rows) {
      columns.emplace_back(name, tensor.index_select(0, index.to(tensor.device())).to(device));
    }
    Batch batch = batch_of(std::move(columns));
    batch.samples = std::ssize(positions);
    return batch;
  }
};

ReplayBuffer::ReplayBuffer(std::int64_t capacity, const LoaderPlan& plan, const World& world) {
  check_loader_plan(plan);
  OptionCheck("replay buffer").expect("capacity", capacity, capacity >= 1, "1 or more").throw_problems();
  impl_ = std::make_unique<Impl>(Impl{.capacity = capacity,
                                      .seed = plan.seed,
                                      .endless = fixed_steps_per_epoch(plan) == 0,
                                      .check_finite = plan.data.check_finite,
                                      .device = world.device(),
                                      .planner = {draws_of(plan, world), plan.batch.batch_size, world.rank(),
                                                  /*keep_global_batch=*/plan.batch.global_is_given,
                                                  plan.data.steps_per_epoch, plan.data.min_steps_per_epoch}});
}

ReplayBuffer::~ReplayBuffer() = default;

void ReplayBuffer::add(const Batch& transitions) {
  const c10::InferenceMode not_for_inference(false);  // a later add() elsewhere writes into this memory
  const c10::NoGradGuard no_grad;
  const NamedTensors columns = columns_of(transitions);
  const std::int64_t count = rows_of(transitions, columns);
  Impl& impl = *impl_;
  if (const auto found = impl.check_finite ? find_not_finite(transitions, count) : std::nullopt) {
    throw DataError(fmt::format("replay buffer: transition {} of {}: {}", *found->row, count, found->text));
  }
  if (impl.rows.empty()) {
    for (const auto& [name, tensor] : columns) {
      std::vector<std::int64_t> sizes = tensor.sizes().vec();
      sizes.front() = impl.capacity;
      impl.rows.emplace_back(name, at::empty(sizes, tensor.options()));
    }
  } else if (const std::string found = describe_columns(columns), expected = describe_columns(impl.rows);
             found != expected) {
    throw DataError(
        fmt::format("replay buffer: found transitions with {}, expected {} as in the first call", found, expected));
  }
  const std::int64_t kept = std::min(count, impl.capacity);
  impl.write(columns, count - kept, kept);
}

std::int64_t ReplayBuffer::size() const { return impl_->size; }
std::int64_t ReplayBuffer::capacity() const { return impl_->capacity; }

const StepBatches* ReplayBuffer::next() {
  const c10::NoGradGuard no_grad;
  Impl& impl = *impl_;
  if (impl.size == 0) {
    throw DataError("replay buffer: it is empty",
                    "call add() before the first step, on every rank, and after a resume");
  }
  impl.planner.next(impl.plan);
  impl.current.micro.clear();
  for (std::size_t index = 0; index < impl.plan.micro_batches; ++index) {
    const std::span<const std::int64_t> positions = impl.plan.micro_ids(index);
    impl.current.micro.push_back(positions.empty() ? Batch{} : impl.draw(positions));
  }
  impl.current.local_samples = std::ssize(impl.plan.ids);
  impl.current.global_samples = impl.plan.global_samples;
  impl.current.epoch = impl.plan.epoch;
  impl.current.ends_epoch = impl.plan.ends_epoch;
  return &impl.current;
}

std::optional<std::int64_t> ReplayBuffer::steps_per_epoch() const {
  return impl_->endless ? std::nullopt : std::optional(impl_->planner.steps_per_epoch());
}

LoaderPosition ReplayBuffer::position() const { return impl_->planner.position(); }
void ReplayBuffer::seek(const LoaderPosition& position) { impl_->planner.seek(position); }

}  // namespace lockstep
