#include "data/step_plan.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/ceil_div.h"
#include "base/crc32c.h"
#include "base/problems.h"
#include "base/text.h"

namespace lockstep {

namespace {

constexpr const char* kOtherDataHint =
    "resume with the data of the checkpoint; to train its weights on other data, begin a new run with --init_weights";

}  // namespace

std::int64_t micro_batch_count(std::int64_t global_samples, int world_size, std::int64_t batch_size) {
  return ceil_div(ceil_div(global_samples, world_size), batch_size);
}

std::string kept_global_batch_text(std::int64_t saved, std::int64_t planned, int world_size, std::int64_t batch_size) {
  const std::int64_t micro_batches = micro_batch_count(saved, world_size, batch_size);
  return fmt::format(
      "using the checkpoint's global batch of {} instead of the planned {}: each rank has {} of at most {} samples per "
      "step; "
      "--global_batch_size {} changes it",
      saved, planned, micro_batches == 1 ? "1 micro-batch" : fmt::format("{} micro-batches", micro_batches), batch_size,
      planned);
}

std::span<const std::int64_t> StepPlan::micro_ids(std::size_t index) const noexcept {
  const std::span<const std::int64_t> all(ids);
  const auto size = static_cast<std::size_t>(batch_size);
  const std::size_t begin = std::min(index * size, all.size());
  return all.subspan(begin, std::min(size, all.size() - begin));
}

StepPlanner::StepPlanner(const DistributedSampler::Options& options, std::int64_t batch_size, int rank,
                         bool keep_global_batch, StepCount steps_per_epoch, std::int64_t min_steps_per_epoch)
    : options_(options),
      sampler_(options),
      batch_size_(batch_size),
      rank_(rank),
      keep_global_batch_(keep_global_batch),
      steps_per_epoch_(steps_per_epoch),
      min_steps_per_epoch_(min_steps_per_epoch),
      order_(describe_order(options)),
      position_(position_at(0, 0)) {}

void StepPlanner::next(StepPlan& plan) {
  const std::int64_t epoch = position_.epoch;
  const std::int64_t passes = position_.consumed / sampler_.epoch_length();
  const std::int64_t consumed = position_.consumed % sampler_.epoch_length();
  plan.batch_size = batch_size_;
  plan.global_samples = sampler_.step_samples(consumed);
  plan.micro_batches =
      static_cast<std::size_t>(micro_batch_count(plan.global_samples, options_.world_size, batch_size_));
  plan.epoch = epoch;
  plan.pass = epoch + (passes << 32);  // without steps_per_epoch, an epoch is the first pass
  sampler_.rank_ids(plan.pass, consumed, rank_, plan.ids);
  plan.after = position_at(epoch, position_.consumed + plan.global_samples);
  plan.ends_epoch = plan.after.epoch != epoch;
  position_ = plan.after;
}

void StepPlanner::seek(const LoaderPosition& position) {
  // The limit does not depend on the global batch, which may change here: with drop_last another one may drop more
  // samples. position_at() ends the epoch at a position among the dropped samples, or behind steps_per_epoch.
  check_position(position, options_.size,
                 std::max({options_.size, sampler_.epoch_length(), options_.order ? options_.order->length() : 0,
                           is_one_pass() ? 0 : position.consumed}));
  if (position.consumed > 0 && position.dataset_size > 0) {
    check_order(position);
  }
  if (options_.sampler.order == SampleOrder::pytorch && position.consumed % options_.world_size != 0) {
    throw CheckpointError(
        fmt::format("checkpoint position: found {} samples of the epoch consumed, expected a multiple of the {} ranks",
                    position.consumed, options_.world_size),
        "sampler.order pytorch cannot change the number of ranks within an epoch: resume with the same number of "
        "ranks");
  }
  if (position.global_batch > 0 && position.global_batch != options_.global_batch) {
    take_global_batch(position);
  }
  position_ = position_at(position.epoch, consumed_before(position));
}

// With drop_last the length of a pass depends on the global batch, which may be another one now. The number of the pass
// and the place in it stay the same.
std::int64_t StepPlanner::consumed_before(const LoaderPosition& position) const {
  if (!options_.sampler.drop_last || is_one_pass() || position.consumed == 0 || position.global_batch < 1 ||
      position.global_batch == options_.global_batch) {
    return position.consumed;
  }
  DistributedSampler::Options saved = options_;
  saved.global_batch = position.global_batch;
  const std::int64_t before = DistributedSampler(saved).epoch_length();
  const std::int64_t now = sampler_.epoch_length();
  return position.consumed / before * now + std::min(position.consumed % before, now);
}

void StepPlanner::take_global_batch(const LoaderPosition& position) {
  const std::int64_t saved = position.global_batch;
  if (keep_global_batch_) {
    if (options_.order && options_.order->depends_on_batch() && position.consumed > 0) {
      throw CheckpointError(fmt::format("checkpoint position: found a global batch of {} in the middle of an epoch, "
                                        "expected {}",
                                        saved, options_.global_batch),
                            "the order of the samples depends on it: use the earlier global_batch_size");
    }
    log_info(fmt::format("the global batch is {}; it was {} before", options_.global_batch, saved));
    return;
  }
  const std::int64_t planned = options_.global_batch;
  DistributedSampler::Options options = options_;
  options.global_batch = saved;
  sampler_ = DistributedSampler(options);
  options_ = options;
  order_ = describe_order(options_);
  if (rank_ == 0) {
    log_warning(kept_global_batch_text(saved, planned, options_.world_size, batch_size_));
  }
}

void StepPlanner::check_order(const LoaderPosition& position) const {
  if (position.state.empty() && !options_.order) {  // a position that the program made itself
    return;
  }
  DistributedSampler::Options options = options_;
  options.global_batch = position.global_batch > 0 ? position.global_batch : options.global_batch;
  if (const std::string expected = describe_order(options); position.state != expected) {
    throw CheckpointError(
        fmt::format("checkpoint position in the middle of an epoch: found the {}, expected the {}",
                    position.state.empty() ? "order of a data set" : printable(position.state), printable(expected)),
        "until the end of the epoch keep --seed, --sampler.order, --sampler.shuffle and the program's order; or start "
        "over with --fresh");
  }
}

// The end of an epoch, in samples.
std::int64_t StepPlanner::epoch_samples() const noexcept {
  const std::int64_t of_pass = sampler_.steps_per_epoch();
  const std::int64_t steps = steps_per_epoch();
  return steps / of_pass * sampler_.epoch_length() + steps % of_pass * options_.global_batch;
}

// With drop_last a pass is over where no whole step is left of it, as after a seek() with another global batch.
LoaderPosition StepPlanner::position_at(std::int64_t epoch, std::int64_t consumed) const {
  const std::int64_t left = sampler_.epoch_length() - consumed % sampler_.epoch_length();
  if (options_.sampler.drop_last && left < options_.global_batch) {
    consumed += left;
  }
  const bool over = consumed >= epoch_samples();
  return {.epoch = over ? epoch + 1 : epoch,
          .consumed = over ? 0 : consumed,
          .dataset_size = options_.size,
          .global_batch = options_.global_batch};
}

LoaderPosition StepPlanner::with_order(LoaderPosition position) const {
  position.state = position.consumed > 0 ? order_ : std::string();
  return position;
}

std::string describe_order(const DistributedSampler::Options& options) {
  if (!options.order) {
    const char* kind = options.sampler.order == SampleOrder::keyed ? "keyed" : "pytorch";
    return options.sampler.shuffle ? fmt::format("shuffled order ({}, seed {})", kind, options.seed)
                                   : "order of the data";
  }
  if (options.order->length() < 1) {
    throw DataError(
        fmt::format("data loader: found an order of {} positions, expected 1 or more", options.order->length()));
  }
  std::vector<std::int64_t> first(static_cast<std::size_t>(std::min<std::int64_t>(options.order->length(), 1024)));
  options.order->fill({options.seed, /*epoch=*/0, options.global_batch}, 0, first);
  return fmt::format("order of {} samples {:08x}", options.order->length(), crc32c(std::as_bytes(std::span(first))));
}

void check_loader_plan(const LoaderPlan& plan) {
  std::vector<Problem> problems;
  const auto at_least = [&](const char* name, std::int64_t found, std::int64_t smallest) {
    if (found < smallest) {
      problems.push_back({fmt::format("{}: found {}, expected {} or more", name, found, smallest)});
    }
  };
  at_least("batch_size", plan.batch.batch_size, 1);
  at_least("global_batch_size", plan.batch.global_batch_size, 1);
  at_least("data.workers", plan.data.workers, 0);
  at_least("data.prefetch", plan.data.prefetch, 0);
  at_least("data.steps_per_epoch", plan.data.steps_per_epoch.number(), 0);
  at_least("data.min_steps_per_epoch", plan.data.min_steps_per_epoch, 0);
  at_least("data.max_bad_samples", plan.data.max_bad_samples, 0);
  if (const StepCount steps = plan.data.steps_per_epoch; steps.is_part() && !steps.is_valid()) {
    problems.push_back(
        {fmt::format("data.steps_per_epoch: found {}%, expected a part above 0%, 100% at most", steps.percent())});
  }
  throw_if_any(std::move(problems));
}

std::int64_t fixed_steps_per_epoch(const LoaderPlan& plan) {
  const StepCount steps = plan.data.steps_per_epoch;
  if (steps.is_part()) {
    throw ConfigError(fmt::format("--data.steps_per_epoch {}%: the length of this data is not known, expected a number "
                                  "of steps",
                                  steps.percent()),
                      "use --data.steps_per_epoch N");
  }
  if (const std::int64_t least = plan.data.min_steps_per_epoch; least > 0 && steps.is_all()) {
    throw ConfigError(fmt::format("--data.min_steps_per_epoch {}: the length of this data is not known", least),
                      "use --data.steps_per_epoch N, which is the number of steps of each epoch");
  }
  return steps.is_all() ? 0 : std::max(steps.number(), plan.data.min_steps_per_epoch);
}

void check_position(const LoaderPosition& position, std::int64_t dataset_size, std::int64_t most_consumed) {
  if (position.dataset_size != 0 && dataset_size == 0) {
    throw CheckpointError(fmt::format("checkpoint position: it belongs to a data set of {} samples, and this source is "
                                      "not a data set",
                                      position.dataset_size),
                          kOtherDataHint);
  }
  if (position.dataset_size == 0 && dataset_size != 0 && position.consumed > 0 && !position.state.empty()) {
    throw CheckpointError(
        fmt::format("checkpoint position: it belongs to a source that is not a data set, such as a stream, and this "
                    "source is a data set of {} samples",
                    dataset_size),
        kOtherDataHint);
  }
  if (position.dataset_size != 0 && position.dataset_size != dataset_size) {
    throw CheckpointError(
        fmt::format("checkpoint position: the data set has {} samples, and that of the checkpoint had {}", dataset_size,
                    position.dataset_size),
        kOtherDataHint);
  }
  if (position.epoch < 0 || position.consumed < 0 || position.consumed > most_consumed) {
    throw CheckpointError(
        fmt::format("checkpoint position: found epoch {} with {} samples consumed, expected 0 to {}", position.epoch,
                    position.consumed, most_consumed),
        "the epoch was longer then: give its --data.steps_per_epoch (or min_steps_per_epoch) until the epoch is over; "
        "if the data set or the sampler is another one, start over with --fresh");
  }
}

}  // namespace lockstep
