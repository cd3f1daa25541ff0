#include "data/step_plan.h"

#include <algorithm>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

namespace lockstep {

namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

std::int64_t micro_batch_count(std::int64_t global_samples, int world_size, std::int64_t batch_size) {
  return ceil_div(ceil_div(global_samples, world_size), batch_size);
}

std::span<const std::int64_t> StepPlan::micro_ids(std::size_t index) const noexcept {
  const std::span<const std::int64_t> all(ids);
  const auto size = static_cast<std::size_t>(batch_size);
  const std::size_t begin = std::min(index * size, all.size());
  return all.subspan(begin, std::min(size, all.size() - begin));
}

StepPlanner::StepPlanner(const DistributedSampler::Options& options, std::int64_t batch_size, int rank,
                         bool keep_global_batch)
    : options_(options),
      sampler_(options),
      batch_size_(batch_size),
      rank_(rank),
      keep_global_batch_(keep_global_batch),
      position_(position_at(0, 0)) {}

void StepPlanner::next(StepPlan& plan) {
  const std::int64_t epoch = position_.epoch;
  const std::int64_t consumed = position_.consumed;
  plan.batch_size = batch_size_;
  plan.global_samples = sampler_.step_samples(consumed);
  plan.micro_batches =
      static_cast<std::size_t>(micro_batch_count(plan.global_samples, options_.world_size, batch_size_));
  sampler_.rank_ids(epoch, consumed, rank_, plan.ids);
  plan.epoch = epoch;
  plan.after = position_at(epoch, consumed + plan.global_samples);
  plan.ends_epoch = plan.after.epoch != epoch;
  position_ = plan.after;
}

void StepPlanner::seek(const LoaderPosition& position) {
  // The most is the whole set: another global batch may drop more of the epoch's end than the one that was saved with,
  // and a position in what is dropped is the end.
  check_position(position, options_.size, std::max(options_.size, sampler_.epoch_length()));
  if (options_.sampler.order == SampleOrder::pytorch && position.consumed % options_.world_size != 0) {
    throw CheckpointError(
        fmt::format("checkpoint position: found {} samples of the epoch consumed, expected a multiple of the {} ranks",
                    position.consumed, options_.world_size),
        "sampler.order pytorch cannot change the number of ranks inside an epoch: resume with as many ranks as before");
  }
  if (position.global_batch > 0 && position.global_batch != options_.global_batch) {
    take_global_batch(position.global_batch);
  }
  position_ = position_at(position.epoch, position.consumed);
}

void StepPlanner::take_global_batch(std::int64_t saved) {
  if (keep_global_batch_) {
    log_info(fmt::format("the global batch is {} now, {} in the checkpoint", options_.global_batch, saved));
    return;
  }
  DistributedSampler::Options options = options_;
  options.global_batch = saved;
  sampler_ = DistributedSampler(options);
  options_ = options;
  log_info(fmt::format("the checkpoint's global batch of {} is kept: {} of up to {} on each of {} ranks", saved,
                       micro_batch_count(saved, options_.world_size, batch_size_), batch_size_, options_.world_size));
}

LoaderPosition StepPlanner::position_at(std::int64_t epoch, std::int64_t consumed) const noexcept {
  const bool over = sampler_.step_samples(consumed) == 0;
  return {.epoch = over ? epoch + 1 : epoch,
          .consumed = over ? 0 : consumed,
          .dataset_size = options_.size,
          .global_batch = options_.global_batch};
}

void check_position(const LoaderPosition& position, std::int64_t dataset_size, std::int64_t most_consumed) {
  if (position.dataset_size != 0 && position.dataset_size != dataset_size) {
    throw CheckpointError(fmt::format("checkpoint position: found a data set of {} samples, expected {}",
                                      position.dataset_size, dataset_size),
                          "resume with the data set that the checkpoint was made with, or start over with --fresh");
  }
  if (position.epoch < 0 || position.consumed < 0 || position.consumed > most_consumed) {
    throw CheckpointError(fmt::format("checkpoint position: found epoch {} with {} samples consumed, expected 0 to {}",
                                      position.epoch, position.consumed, most_consumed),
                          "the checkpoint is of another data set or sampler; start over with --fresh");
  }
}

}  // namespace lockstep
