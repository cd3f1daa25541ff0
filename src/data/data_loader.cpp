#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>

#include <lockstep/base/error.h>
#include <lockstep/data/data_loader.h>
#include <lockstep/world/world.h>

#include "base/find_value.h"
#include "base/text.h"
#include "data/bad_samples.h"
#include "data/device_prefetcher.h"
#include "data/sample_error.h"
#include "data/step_plan.h"
#include "data/stream_source.h"
#include "data/worker_pool.h"
#include "ipc/progress_record.h"
#include "tensor/shape_text.h"
#include "world/agreement.h"
#include "world/world_access.h"

namespace lockstep {

namespace {

/// Frees the tensors and keeps the storage of the ids.
void release(Batch& batch) {
  std::vector<std::int64_t> ids = std::move(batch.ids);
  ids.clear();
  batch = Batch{.ids = std::move(ids)};
}

void check_given(const std::shared_ptr<const Dataset>& data) {
  if (!data) {
    throw DataError("data loader: the data set is null", "for a model without data use DataLoader::none");
  }
}

void check_same_data(const std::string& data, World& world) {
  if (const auto difference = find_disagreement(data, world)) {
    throw_disagreement(*difference, world, "has other data:",
                       "give every rank the same files; the loader divides the samples among the ranks");
  }
}

/// For a batch that does not say itself how many samples it has. Throws: DataError.
void check_rows(const Batch& batch, std::int64_t samples) {
  for (const auto& [name, tensor] :
       {std::pair("input", &batch.input), std::pair("target", &batch.target), std::pair("weight", &batch.weight)}) {
    if (tensor->defined() && (tensor->dim() == 0 || tensor->size(0) != samples)) {
      throw DataError(fmt::format("the data set was asked for {} and returned {} of shape {}, expected {} rows",
                                  counted(samples, "sample"), name, shape_text(tensor->sizes()), samples),
                      "return from get() one row for each id, or set Batch::samples if rows are not samples");
    }
  }
}

/// planner -> pool -> prefetcher -> StepBatches.
class DatasetSource final : public BatchSource {
 public:
  DatasetSource(std::shared_ptr<const Dataset> data, const LoaderPlan& plan, const DistributedSampler::Options& sampler,
                std::string fingerprint, const World& world)
      : data_(std::move(data)),
        fingerprint_(std::move(fingerprint)),
        seed_(plan.seed),
        bad_samples_(plan.data),
        planner_(sampler, plan.batch.batch_size, world.rank(),
                 /*keep_global_batch=*/plan.batch.global_is_given, plan.data.steps_per_epoch,
                 plan.data.min_steps_per_epoch),
        position_(planner_.position()),
        depth_(plan.data.workers > 0 ? static_cast<std::size_t>(plan.data.prefetch) + 1 : 1),
        pool_(plan.data.workers, [this](PendingStep& step, std::size_t index) { build(step, index); }) {
    if (!world.device().is_cpu()) {
      prefetcher_.emplace(world, plan.data);
    }
  }

  const StepBatches* next() override {
    if (has_failed_) {  // reads the step again: a disk that was away may be back
      seek(position());
    }
    has_failed_ = true;
    std::for_each(current_.micro.begin(), current_.micro.end(), release);
    while (pool_.pending() < depth_) {
      auto step = pool_.spare();
      try {
        planner_.next(step->plan);
      } catch (...) {  // an order of the program; the steps before are good
        if (pool_.pending() == 0) {
          throw;
        }
        break;
      }
      pool_.submit(std::move(step));
    }
    PendingStep& step = pool_.front();
    current_.micro.resize(step.micro.size());
    for (std::size_t index = 0; index < step.micro.size(); ++index) {
      PreparedBatch& prepared = step.micro[index];
      if (prefetcher_ && prepared.batch.samples > 0) {
        prefetcher_->receive(prepared);
      }
      std::swap(current_.micro[index], prepared.batch);
    }
    current_.local_samples = static_cast<std::int64_t>(step.plan.ids.size());
    current_.global_samples = step.plan.global_samples;
    current_.epoch = step.plan.epoch;
    current_.ends_epoch = step.plan.ends_epoch;
    position_ = step.plan.after;
    pool_.pop();
    has_failed_ = false;
    return &current_;
  }

  std::optional<std::int64_t> steps_per_epoch() const override { return planner_.steps_per_epoch(); }
  LoaderPosition position() const override { return planner_.with_order(position_); }

  void seek(const LoaderPosition& position) override {
    planner_.seek(position);
    position_ = planner_.position();
    pool_.clear();
    has_failed_ = false;
  }

  std::string fingerprint() const override { return fingerprint_; }

 private:
  void build(PendingStep& step, std::size_t index) {
    const std::span<const std::int64_t> ids = step.plan.micro_ids(index);
    if (ids.empty()) {
      return;
    }
    const c10::NoGradGuard no_grad;
    const c10::OptionalStreamGuard on_copy_stream(prefetcher_ ? std::optional(prefetcher_->stream()) : std::nullopt);
    PreparedBatch& prepared = step.micro[index];
    std::vector<std::int64_t> id_storage = std::move(prepared.batch.ids);
    check_ids("data loader", ids, data_->size());  // of an order of the program
    prepared.batch = bad_samples_.get(*data_, ids, {.seed = seed_, .epoch = step.plan.pass});
    if (prepared.batch.ids.empty()) {
      id_storage.assign(ids.begin(), ids.end());
      prepared.batch.ids = std::move(id_storage);
    }
    if (prepared.batch.samples == 0) {
      check_rows(prepared.batch, std::ssize(ids));
      prepared.batch.samples = std::ssize(ids);
    }
    if (prepared.batch.samples != std::ssize(ids) || prepared.batch.ids.size() != ids.size()) {
      throw DataError(
          fmt::format("the data set was asked for {} and returned {} with {}", counted(std::ssize(ids), "sample"),
                      counted(prepared.batch.samples, "sample"), counted(std::ssize(prepared.batch.ids), "id")),
          "return from get() one sample for each id that it was given");
    }
    if (prefetcher_) {
      prefetcher_->send(prepared);
    }
  }

  std::shared_ptr<const Dataset> data_;
  std::string fingerprint_;
  std::uint64_t seed_;
  BadSamples bad_samples_;
  StepPlanner planner_;
  LoaderPosition position_;
  std::size_t depth_;  // steps in the pool while next() waits for the first of them
  StepBatches current_{};
  bool has_failed_ = false;  // next() could not give its step
  std::optional<DevicePrefetcher> prefetcher_{};
  WorkerPool pool_;  // last member: its threads use the others
};

/// Steps without data. A position counts steps, so that the number of ranks may change.
class NoDataSource final : public BatchSource {
 public:
  NoDataSource(std::int64_t steps_per_epoch, int world_size) : position_{.dataset_size = steps_per_epoch} {
    if (steps_per_epoch < 1) {
      throw DataError(fmt::format("DataLoader::none: found {} steps per epoch, expected 1 or more", steps_per_epoch));
    }
    current_.micro = {Batch{.samples = 1}};
    current_.local_samples = 1;
    current_.global_samples = world_size;
  }

  const StepBatches* next() override {
    current_.epoch = position_.epoch;
    ++position_.consumed;
    normalize();
    current_.ends_epoch = position_.consumed == 0;
    return &current_;
  }

  std::optional<std::int64_t> steps_per_epoch() const override { return position_.dataset_size; }
  LoaderPosition position() const override { return position_; }

  void seek(const LoaderPosition& position) override {
    LoaderPosition ours = position;
    if (position.dataset_size > 0 && position.global_batch == 0) {  // of such a source too: a data set has a batch
      if (position.consumed > 0 && position.dataset_size != position_.dataset_size) {
        throw CheckpointError(
            fmt::format("checkpoint position in the middle of an epoch: DataLoader::none has {} per epoch, and that of "
                        "the checkpoint had {}",
                        counted(position_.dataset_size, "step"), position.dataset_size),
            "another number of steps is for the beginning of an epoch: keep it until then, or start over with --fresh");
      }
      ours.dataset_size = position_.dataset_size;
    }
    check_position(ours, position_.dataset_size, position_.dataset_size);
    position_.epoch = position.epoch;
    position_.consumed = position.consumed;
    normalize();
  }

 private:
  void normalize() {
    if (position_.consumed == position_.dataset_size) {
      ++position_.epoch;
      position_.consumed = 0;
    }
  }

  LoaderPosition position_;
  StepBatches current_{};
};

/// What `next` returns. In a loop by hand, only the loader knows that its rank waits for data; a Trainer notes it
/// itself.
template <typename Next>
const StepBatches* in_data_phase(ProgressRecord& record, const Next& next) {
  if (record.phase.load(std::memory_order_relaxed) != Phase::program) {
    return next();
  }
  const PhaseScope phase(record, Phase::data);
  return next();
}

std::int64_t whole_number(const std::map<std::string, std::string>& values, const std::string& key) {
  const std::string* found = find_value(values, key);
  const auto value = found != nullptr ? parse_int(*found) : std::nullopt;
  if (!value) {
    throw CheckpointError(fmt::format("the values of the checkpoint have no whole number '{}'", key),
                          "position_values() makes the values that position_of() reads");
  }
  return *value;
}

}  // namespace

std::map<std::string, std::string> position_values(const LoaderPosition& position) {
  return {{"position.epoch", std::to_string(position.epoch)},
          {"position.consumed", std::to_string(position.consumed)},
          {"position.dataset_size", std::to_string(position.dataset_size)},
          {"position.global_batch", std::to_string(position.global_batch)},
          {"position.state", position.state}};
}

LoaderPosition position_of(const std::map<std::string, std::string>& values) {
  const std::string* state = find_value(values, "position.state");
  return {.epoch = whole_number(values, "position.epoch"),
          .consumed = whole_number(values, "position.consumed"),
          .dataset_size = whole_number(values, "position.dataset_size"),
          .global_batch = whole_number(values, "position.global_batch"),
          .state = state != nullptr ? *state : std::string()};
}

struct DataLoader::Impl {
  std::unique_ptr<BatchSource> source;
  std::shared_ptr<ProgressRecord> progress;
};

DataLoader::DataLoader(std::shared_ptr<const Dataset> data, const LoaderPlan& plan, World& world,
                       std::shared_ptr<const EpochOrder> order) {
  check_loader_plan(plan);
  check_given(data);
  if (order && order->samples().value_or(data->size()) != data->size()) {
    throw DataError(
        fmt::format("data loader: found an order of {} samples, expected one of {}, the size of the data set",
                    *order->samples(), data->size()),
        "create the order from the weights or lengths of this data set");
  }
  const DistributedSampler::Options sampler{.size = data->size(),
                                            .order = std::move(order),
                                            .global_batch = plan.batch.global_batch_size,
                                            .world_size = world.size(),
                                            .seed = plan.seed,
                                            .sampler = plan.sampler};
  std::string fingerprint = data->fingerprint();
  check_same_data(fingerprint + (sampler.order ? ", " + describe_order(sampler) : std::string()), world);
  impl_ = std::make_unique<Impl>(
      Impl{.source = std::make_unique<DatasetSource>(std::move(data), plan, sampler, std::move(fingerprint), world),
           .progress = WorldAccess::shared_progress(world)});
}

DataLoader::DataLoader(std::unique_ptr<Stream> stream, const LoaderPlan& plan, World& world) {
  check_loader_plan(plan);
  if (!stream) {
    throw DataError("data loader: the stream is null", "give it what a factory such as sample_stream() returns");
  }
  impl_ = std::make_unique<Impl>(Impl{.source = std::make_unique<StreamSource>(std::move(stream), plan, world),
                                      .progress = WorldAccess::shared_progress(world)});
}

DataLoader DataLoader::none(std::int64_t steps_per_epoch, World& world) {
  return DataLoader(std::make_unique<Impl>(Impl{.source = std::make_unique<NoDataSource>(steps_per_epoch, world.size()),
                                                .progress = WorldAccess::shared_progress(world)}));
}

DataLoader::DataLoader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DataLoader::DataLoader(DataLoader&&) noexcept = default;
DataLoader::~DataLoader() = default;

const StepBatches* DataLoader::next() {
  return in_data_phase(*impl_->progress, [&] { return impl_->source->next(); });
}
const StepBatches* DataLoader::next_unless(const std::function<bool()>& stop) {
  return in_data_phase(*impl_->progress, [&] { return impl_->source->next_unless(stop); });
}
bool DataLoader::has_one_reader() const { return impl_->source->has_one_reader(); }
std::optional<std::int64_t> DataLoader::steps_per_epoch() const { return impl_->source->steps_per_epoch(); }
LoaderPosition DataLoader::position() const { return impl_->source->position(); }
void DataLoader::seek(const LoaderPosition& position) { impl_->source->seek(position); }
std::string DataLoader::fingerprint() const { return impl_->source->fingerprint(); }

}  // namespace lockstep
