#include "trainer/output/step_recorder.h"

#include <bit>
#include <charconv>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/config/config_io.h>

#include "base/ceil_div.h"
#include "base/find_value.h"
#include "base/mapped.h"
#include "base/text.h"
#include "optim/loss_scaler.h"
#include "parallel/parameter_sync.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

constexpr const char* kEnds = "records";  // key in the values of a checkpoint: "20:0123456789abcdef", for each rank
constexpr const char* kRolledBack = "records_rolled_back";  // the next record says so

std::string text_of(const RecordsEnd& end) { return fmt::format("{}:{:016x}", end.step, end.hash); }

/// {}: the text has another form.
RecordsEnd end_of(std::string_view text) {
  const auto colon = text.find(':');
  const auto step = parse_int(text.substr(0, colon));
  RecordsEnd end{.step = step.value_or(0)};
  const std::string_view hash = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  const auto [last, error] = std::from_chars(hash.data(), hash.data() + hash.size(), end.hash, 16);
  return step && error == std::errc() && last == hash.data() + hash.size() ? end : RecordsEnd{};
}

/// Digest of the ids of the micro-batches. A rank's samples of a loader are one block of the loader's samples.
std::optional<std::uint64_t> digest_of(const StepBatches& batches, const World& world) {
  std::vector<LoaderBlock> blocks = batches.blocks;
  if (blocks.empty()) {
    blocks.push_back({batches.micro.size(), batches.global_samples});
  }
  std::uint64_t sum = 0;
  std::int64_t known = 0;
  std::int64_t first = 0;  // position of the loader's samples in the global batch
  auto batch = batches.micro.begin();
  for (const auto& [micro_batches, samples] : blocks) {
    std::int64_t position = first + share_begin(samples, world.size(), world.rank());
    for (std::size_t i = 0; i < micro_batches; ++i, ++batch) {
      for (const std::int64_t id : batch->ids) {
        sum += sample_digest(position++, id);
        ++known;
      }
    }
    first += samples;
  }
  return known == batches.local_samples ? std::optional(sum) : std::nullopt;
}

}  // namespace

StepRecorder::StepRecorder(const TrainConfig& config, const World& world) : config_(config), world_(world) {}
StepRecorder::~StepRecorder() = default;

void StepRecorder::restore(const std::map<std::string, std::string>& values) {
  const std::string* found = find_value(values, kEnds);
  ends_ = found != nullptr ? mapped(split(*found, ' '), end_of) : std::vector<RecordsEnd>();
  rolled_back_ = values.contains(kRolledBack);
}

std::map<std::string, std::string> StepRecorder::values(World& world) const {
  std::vector<std::string> ends = mapped(ends_, text_of);
  if (writer_) {
    std::vector<std::string> now = world.gather(text_of(writer_->end()));
    if (ends.size() > now.size()) {  // ranks that this run does not have; a later one may
      now.insert(now.end(), ends.begin() + static_cast<std::ptrdiff_t>(now.size()), ends.end());
    }
    ends = std::move(now);
  }
  std::map<std::string, std::string> values;
  if (!ends.empty()) {
    values[kEnds] = join(ends, " ");
  }
  if (rolled_back_) {
    values[kRolledBack] = "true";
  }
  return values;
}

void StepRecorder::open(const std::filesystem::path& directory, std::int64_t step, World& world) {
  if (config_.report.record == 0) {
    return;
  }
  const auto rank = static_cast<std::size_t>(world.rank());
  const RecordsEnd end = rank < ends_.size() ? ends_[rank] : RecordsEnd{};
  const std::filesystem::path file = directory / record_file_name(world.rank());
  FileSystem& fs = real_file_system();
  bool has_records = true;
  try {
    fs.create_directories(directory);
    has_records = resume_records(fs, file, world.rank(), end, step);
  } catch (const IoError&) {
    // If this fails, the file cannot be opened either, and RecordWriter reports the reason.
  }
  if (!ends_.empty()) {
    std::vector<std::string> missing = world.gather(has_records ? "" : file.filename().string());
    std::erase(missing, "");
    if (!missing.empty()) {
      log_info(fmt::format("{} has no {} with the steps up to {}: lockstep compare begins after them",
                           directory.string(), join_first(missing, 4), end.step));
    }
  }
  writer_ = std::make_unique<RecordWriter>(fs, file, world.rank(), world.size(), end);
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
                      .sample_digest = digest_of(batches, world_),
                      .rolled_back = std::exchange(rolled_back_, false)});
  digests_.push_back((digests * weights_).sum());
  const at::Tensor any = any_of(result.skipped, result.spike);
  left_out_.push_back(any.defined() ? any > 0 : any);  // a tensor of its own
  if (config_.dist.check_replicas && config_.report.every_steps > 0 && world_.size() > 1) {
    unchecked_steps_.push_back(state.step);
    unchecked_.push_back(digests_.back());
  }
  losses_.push_back((result.loss.defined() ? result.loss.detach() : at::zeros({}, digests.device())).to(at::kDouble));
  if (pending_.size() == RecordWriter::kBuffered) {
    flush();
  }
}

std::optional<std::int64_t> StepRecorder::find_divergence(World& world) {
  if (unchecked_.empty()) {
    return std::nullopt;
  }
  const at::Tensor all = world.all_gather(at::stack(unchecked_).view({1, -1}));
  const at::Tensor differ = WorldAccess::on_host(world, (all != all[0]).any(0));
  const auto steps = std::exchange(unchecked_steps_, {});
  unchecked_.clear();
  const bool* first = differ.const_data_ptr<bool>();
  const auto found = static_cast<std::size_t>(std::find(first, first + steps.size(), true) - first);
  return found < steps.size() ? std::optional(steps[found]) : std::nullopt;
}

void StepRecorder::flush() {
  if (!writer_) {
    return;
  }
  if (!pending_.empty()) {
    const at::Tensor digests = WorldAccess::on_host(world_, at::stack(digests_));
    const at::Tensor losses = WorldAccess::on_host(world_, at::stack(losses_));
    for (at::Tensor& flag : left_out_) {
      flag = flag.defined() ? flag : at::zeros({}, at::device(digests_.front().device()).dtype(at::kBool));
    }
    const at::Tensor left_out = WorldAccess::on_host(world_, at::stack(left_out_));
    for (std::size_t i = 0; i < pending_.size(); ++i) {
      StepRecord& record = pending_[i];
      record.parameter_digest = static_cast<std::uint64_t>(digests.const_data_ptr<std::int64_t>()[i]);
      if (record.samples > 0) {
        record.loss_bits = std::bit_cast<std::uint64_t>(losses.const_data_ptr<double>()[i]);
      }
      record.left_out = left_out.const_data_ptr<bool>()[i];
      writer_->add(record);
    }
  }
  pending_.clear();
  digests_.clear();
  losses_.clear();
  left_out_.clear();
  writer_->flush();
}

}  // namespace lockstep
