#include "trainer/step_recorder.h"

#include <algorithm>
#include <bit>
#include <filesystem>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/config/config_io.h>

#include "parallel/parameter_sync.h"

namespace lockstep {
namespace {

/// Digest of the ids of the micro-batches; a rank's samples are one block of the global batch.
std::optional<std::uint64_t> digest_of(const StepBatches& batches, const World& world) {
  const std::int64_t rank = world.rank();
  std::int64_t position =
      rank * (batches.global_samples / world.size()) + std::min(rank, batches.global_samples % world.size());
  std::uint64_t sum = 0;
  std::int64_t known = 0;
  for (const Batch& batch : batches.micro) {
    for (const std::int64_t id : batch.ids) {
      sum += sample_digest(position++, id);
      ++known;
    }
  }
  return known == batches.local_samples ? std::optional(sum) : std::nullopt;
}

}  // namespace

StepRecorder::StepRecorder(const TrainConfig& config, const World& world) : config_(config), world_(world) {}
StepRecorder::~StepRecorder() = default;

void StepRecorder::open(std::int64_t from_step) {
  if (config_.report.record == 0) {
    return;
  }
  FileSystem& fs = real_file_system();
  const std::filesystem::path directory = run_directory(config_);
  try {
    fs.create_directories(directory);
  } catch (const IoError&) {
    // If this fails, the file cannot be created either, and RecordWriter reports the reason.
  }
  writer_ = std::make_unique<RecordWriter>(fs, directory / record_file_name(world_.rank()), world_.rank(),
                                           world_.size(), from_step);
}

void StepRecorder::add(const TrainState& state, const StepBatches& batches, const StepResult& result,
                       const torch::nn::Module& module) {
  if (!writer_ || state.step % config_.report.record != 0) {
    return;
  }
  const at::Tensor digests = parameter_digests(module);
  if (!weights_.defined() || weights_.size(0) != digests.size(0)) {
    weights_ = at::arange(digests.size(0), digests.options()).mul_(2).add_(1);
  }
  pending_.push_back({.step = state.step,
                      .epoch = batches.epoch,
                      .samples = batches.local_samples,
                      .sample_digest = digest_of(batches, world_)});
  digests_.push_back((digests * weights_).sum());
  losses_.push_back((result.loss.defined() ? result.loss.detach() : at::zeros({}, digests.device())).to(at::kDouble));
  if (pending_.size() == RecordWriter::kBuffered) {
    flush();
  }
}

void StepRecorder::flush() {
  if (!writer_) {
    return;
  }
  if (!pending_.empty()) {
    const at::Tensor digests = at::stack(digests_).cpu();
    const at::Tensor losses = at::stack(losses_).cpu();
    for (std::size_t i = 0; i < pending_.size(); ++i) {
      StepRecord& record = pending_[i];
      record.parameter_digest = static_cast<std::uint64_t>(digests.const_data_ptr<std::int64_t>()[i]);
      if (record.samples > 0) {
        record.loss_bits = std::bit_cast<std::uint64_t>(losses.const_data_ptr<double>()[i]);
      }
      writer_->add(record);
    }
  }
  pending_.clear();
  digests_.clear();
  losses_.clear();
  writer_->flush();
}

}  // namespace lockstep
