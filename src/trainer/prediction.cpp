#include "trainer/prediction.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/base/log.h>
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/tensor/tensor_file.h>
#include <lockstep/trainer/trainer.h>

#include "base/ceil_div.h"
#include "base/control_access.h"
#include "base/crc32c.h"
#include "base/json.h"
#include "base/mapped.h"
#include "base/option_check.h"
#include "base/text.h"
#include "data/epoch_begin.h"
#include "data/sample_error.h"
#include "parallel/parameter_sync.h"
#include "plan/batch_plan.h"
#include "tensor/dtype_names.h"
#include "tensor/shape_text.h"
#include "tensor/tensor_bytes.h"
#include "trainer/agreed_stop.h"
#include "trainer/evaluation_scope.h"
#include "trainer/in_precision.h"
#include "trainer/source_check.h"
#include "trainer/step_limit.h"
#include "world/agreement.h"
#include "world/gather_values.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

using Path = std::filesystem::path;

// The sort keys of each row. Samples of a stream have no ids; they are in the order of the steps. In a CombinedLoader,
// their step is their id.
constexpr const char* kIds = "ids";
constexpr const char* kSteps = "steps";
constexpr const char* kLoaders = "loaders";  // of a CombinedLoader

/// The tensors with this number of all parts.
at::Tensor column(const std::vector<NamedTensors>& parts, std::size_t number) {
  return at::cat(mapped(parts, [&](const NamedTensors& part) { return part.at(number).second; }));
}

/// Rows with equal values stay in their order.
void sort_by(const at::Tensor& values, NamedTensors& rows) {
  const at::Tensor order = std::get<1>(at::sort(values, /*stable=*/true, /*dim=*/0, /*descending=*/false));
  for (auto& [name, tensor] : rows) {
    tensor = tensor.index_select(0, order);
  }
}

/// Rows of all parts in the order of their keys. `parts`: in the order of time and rank.
NamedTensors in_order(const std::vector<NamedTensors>& parts) {
  if (parts.empty()) {
    return {};
  }
  NamedTensors all;
  for (std::size_t i = 0; i < parts.front().size(); ++i) {
    all.emplace_back(parts.front()[i].first, column(parts, i));
  }
  sort_by(all.front().second, all);
  if (all.size() > 1 && all[1].first == kLoaders) {
    sort_by(all[1].second, all);
  }
  if (all.front().first == kSteps) {
    all.erase(all.begin());
  }
  return all;
}

/// Without the rows that stand for bad samples: the sample in such a row has a row of its own.
std::vector<std::int64_t> rows_of_samples(const Batch& batch) {
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < batch.samples; ++row) {
    if (!std::ranges::binary_search(batch.replaced, row)) {
      rows.push_back(row);
    }
  }
  return rows;
}

/// The state of a prediction in files: which ones count, and where it continues.
struct PartList {
  std::string weights{};  ///< digest of the module's; "": not known
  std::string data{};     ///< BatchSource::fingerprint(); "": not known
  std::int64_t step = 0;
  bool complete = false;
  bool limited = false;  ///< complete, but predict.max_batches has left out the steps after `step`
  LoaderPosition position{};
  std::vector<std::string> parts{};
};

Path part_list_file(const Path& directory) { return directory / "predictions.json"; }

std::string part_list_text(const PartList& progress) {
  const LoaderPosition& at = progress.position;
  return dump_json({{"format", 1},
                    {"weights", progress.weights},
                    {"data", exact_json(progress.data)},
                    {"step", progress.step},
                    {"complete", progress.complete},
                    {"limited", progress.limited},
                    {"epoch", at.epoch},
                    {"consumed", at.consumed},
                    {"dataset_size", at.dataset_size},
                    {"global_batch", at.global_batch},
                    {"source_state", exact_json(at.state)},
                    {"parts", progress.parts}});
}

PartList parse_part_list(const std::string& text, const Path& directory) {
  try {
    const Json json = parse_json(text);
    const auto optional = [&](const char* name) {
      return json.contains(name) ? exact_text(json[name], name) : std::string();
    };
    return {.weights = optional("weights"),
            .data = optional("data"),
            .step = member_as<std::int64_t>(json, "step"),
            .complete = member_as<bool>(json, "complete"),
            .limited = json.contains("limited") && member_as<bool>(json, "limited"),
            .position = {.epoch = member_as<std::int64_t>(json, "epoch"),
                         .consumed = member_as<std::int64_t>(json, "consumed"),
                         .dataset_size = member_as<std::int64_t>(json, "dataset_size"),
                         .global_batch = member_as<std::int64_t>(json, "global_batch"),
                         .state = exact_text(member(json, "source_state"), "source_state")},
            .parts = member_as<std::vector<std::string>>(json, "parts")};
  } catch (const std::exception& error) {
    throw CheckpointError(fmt::format("{} is damaged: {}", part_list_file(directory).string(), error.what()),
                          "remove the directory, and predict again");
  }
}

/// The settings with which a step of a prediction has so many samples. Names --global_batch_size only if it has to be
/// set, because the training has it, too.
std::string flags_for(std::int64_t samples, const BatchPlan& plan, int ranks) {
  const std::int64_t batch_size = ceil_div(samples, ranks);
  const std::int64_t of_training = with_batch_size(plan, batch_size, ranks).global_batch_size;
  return std::min(of_training, batch_size * ranks) == samples
             ? fmt::format("--batch_size {}", batch_size)
             : fmt::format("--batch_size {} --global_batch_size {}", batch_size, samples);
}

/// Goes to the place in the data where `progress` ends. `counts_steps`: a limit counts the steps of both starts, so
/// they must have as many samples as before.
void seek_to(const PartList& progress, BatchSource& data, const Path& directory, bool counts_steps, const Plan& plan) {
  LoaderPosition position = progress.position;
  if (!counts_steps) {
    position.global_batch = data.position().global_batch;
  }
  data.seek(position);
  if (const std::int64_t now = data.position().global_batch; counts_steps && now != position.global_batch) {
    throw CheckpointError(fmt::format("{} has {} with a global batch of {}, and now it is {}: --predict.max_batches "
                                      "counts steps",
                                      directory.string(), counted(progress.step, "step"), position.global_batch, now),
                          fmt::format("use {}, or remove the directory",
                                      flags_for(position.global_batch, plan.loader.batch, plan.world_size)));
  }
}

std::string digest_of(const torch::nn::Module& module) {
  std::uint32_t crc = 0;
  for (const auto& [name, tensor] : module_tensors(module)) {
    const at::Tensor values = tensor.detach().to(at::kCPU).contiguous();
    crc = crc32c(bytes_of(values), crc);
  }
  return fmt::format("{:08x}", crc);
}

/// Collective. Returns what the directory has of this prediction, and moves `data` to the place where it continues.
PartList open_part_list(const Path& directory, const torch::nn::Module& module, BatchSource& data,
                        const StepLimit& limit, const Plan& plan, World& world) {
  std::string text;
  if (world.is_main()) {
    FileSystem& fs = real_file_system();
    fs.create_directories(directory);
    text = fs.exists(part_list_file(directory)) ? read_file(fs, part_list_file(directory)) : std::string();
  }
  text = world.broadcast_bytes(text);
  const std::string weights = world.broadcast_bytes(world.is_main() ? digest_of(module) : std::string());
  const std::string fingerprint = world.broadcast_bytes(world.is_main() ? data.fingerprint() : std::string());
  PartList list;
  if (!text.empty()) {
    list = parse_part_list(text, directory);
    if (!list.weights.empty() && list.weights != weights) {
      throw CheckpointError(fmt::format("{} contains predictions of other weights", directory.string()),
                            "remove the directory, or give another one");
    }
    if (!list.data.empty() && !fingerprint.empty() && list.data != fingerprint) {
      throw CheckpointError(fmt::format("{} contains predictions of other data: {}, now {}", directory.string(),
                                        printable(list.data), printable(fingerprint)),
                            "remove the directory, or give another one");
    }
    // Not to the end of a complete one, where nothing is predicted: a ReloadedLoader would make the next loader there.
    if (!list.complete || list.limited) {
      seek_to(list, data, directory, /*counts_steps=*/!limit.steps.is_all() && list.step > 0, plan);
    }
  }
  list.weights = weights;
  list.data = fingerprint;
  return list;
}

/// Name, dtype and shape of a row of each result; "": this rank has none.
std::string layout_of(const NamedTensors& results) {
  Json list = Json::array();
  for (const auto& [name, tensor] : results) {
    list.push_back({name, *dtype_name(tensor.scalar_type()), tensor.sizes().slice(1).vec()});
  }
  return results.empty() ? std::string() : dump_json(list);
}

/// `found` and `before` are two layouts that differ.
Error another_layout(const std::string& found, const std::string& before) {
  const Json now = parse_json(found);
  const Json then = parse_json(before);
  for (std::size_t i = 0; i < std::min(now.size(), then.size()); ++i) {
    if (now[i][0] == then[i][0] && now[i][1] == then[i][1] && now[i][2] != then[i][2]) {
      return Error(fmt::format("predict_step() returned '{}' with rows of shape {} for a batch, and {} for the batches "
                               "before",
                               printable(now[i][0].get<std::string>()), dump_json(now[i][2]), dump_json(then[i][2])),
                   "the rows of all batches have one shape: pad them to one size");
    }
  }
  return Error(fmt::format("predict_step() returned {} for a batch, and {} for the batches before", found, before),
               "return the same tensors in the same order for every batch");
}

NamedTensors without_rows(const std::string& layout) {
  NamedTensors results;
  for (const Json& entry : parse_json(layout)) {
    auto shape = entry[2].get<std::vector<std::int64_t>>();
    shape.insert(shape.begin(), 0);
    results.emplace_back(entry[0].get<std::string>(), at::empty(shape, *dtype_of(entry[1].get<std::string>())));
  }
  return results;
}

/// Collective. The layout that all ranks with results have; "" if none has any.
std::string agree_on_layout(const NamedTensors& mine, World& world) {
  const std::vector<std::string> all = world.gather(layout_of(mine));
  std::string common;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (common.empty()) {
      common = all[rank];
    } else if (!all[rank].empty() && all[rank] != common) {
      throw_about_rank(
          rank, world,
          CommError(fmt::format("rank {} predicts {}, the ranks before it {}", rank, all[rank], common),
                    "return results with the same names, dtypes and shapes on every rank", ExitCode::disagree));
    }
  }
  return common;
}

/// Collective. The rows of all ranks, of which each has `counts[rank]`, on the main rank; undefined on the others. They
/// go through the device and the other ranks in pieces, because only the main rank needs memory for all of them.
at::Tensor rows_of_all(const at::Tensor& mine, const std::vector<std::int64_t>& counts, World& world) {
  constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;  // of each rank
  auto shape = mine.sizes().vec();
  shape[0] = 1;
  const std::int64_t row_bytes = c10::multiply_integers(shape) * static_cast<std::int64_t>(mine.element_size());
  const std::int64_t most = std::max<std::int64_t>(1, kPieceBytes / std::max<std::int64_t>(1, row_bytes));
  at::Tensor all;
  if (world.is_main()) {
    shape[0] = c10::sum_integers(counts);
    all = at::empty(shape, mine.options());
  }
  for (std::int64_t first = 0; first < *std::ranges::max_element(counts); first += most) {
    const auto rows_here = [&](std::int64_t count) { return std::clamp<std::int64_t>(count - first, 0, most); };
    const at::Tensor piece = mine.narrow(0, std::min(first, mine.size(0)), rows_here(mine.size(0)));
    const at::Tensor of_ranks = world.all_gather(piece.to(world.device()));
    if (!world.is_main()) {
      continue;
    }
    const at::Tensor on_host = WorldAccess::on_host(world, of_ranks);
    std::int64_t from = 0;
    std::int64_t to = first;
    for (const std::int64_t count : counts) {
      if (const std::int64_t rows = rows_here(count); rows > 0) {
        all.narrow(0, to, rows).copy_(on_host.narrow(0, from, rows));
        from += rows;
      }
      to += count;
    }
  }
  return all;
}

}  // namespace

Prediction::Prediction(Task& task, BatchSource& data, const TrainConfig& config, CallbackList& callbacks,
                       const StageContext& at, std::optional<StopKind> least_stop)
    : task_(task),
      data_(data),
      world_(at.world),
      config_(config),
      callbacks_(callbacks),
      at_(at),
      least_stop_(least_stop),
      is_combined_(data.is_combined()) {
  if (config.dist.broadcast_buffers) {
    broadcast_buffers(task.module(), world_);
  }
}

void Prediction::notify(Stage stage) {
  if (callbacks_.has(stage)) {
    at_.stage = stage;
    callbacks_.call(at_);
  }
}

void Prediction::add(const Batch& batch) {
  check_id_count("prediction", batch);  // of a source of the program
  at_.batch = &batch;
  ++at_.batch_number;
  notify(Stage::predict_batch_start);
  NamedTensors results =
      in_precision(config_, world_.device().type(), batch, [this](const Batch& b) { return task_.predict_step(b); });
  for (auto& [name, tensor] : results) {
    if (name == kIds || name == kSteps || name == kLoaders) {
      throw Error(fmt::format("predict_step() returned a tensor '{}', which is a name of lockstep", name),
                  "use another name");
    }
    if (tensor.dim() == 0 || tensor.size(0) != batch.samples) {
      throw Error(fmt::format("predict_step() returned '{}' of shape {} for {}", printable(name),
                              shape_text(tensor.sizes()), counted(batch.samples, "sample")),
                  "return one row for each sample");
    }
    if (!dtype_name(tensor.scalar_type())) {
      throw Error(fmt::format("predict_step() returned '{}' with dtype {}, which cannot be stored", printable(name),
                              c10::toString(tensor.scalar_type())),
                  "use another dtype (of the complex ones complex64)");
    }
    // Always a copy: the task may use the memory of its result again for the next batch.
    tensor =
        tensor.to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
  }
  if (results.empty()) {
    throw Error("predict_step() returned nothing", "return the tensors to keep, by name");
  }
  const std::string layout = layout_of(results);
  if (!layout_.empty() && layout != layout_) {
    throw another_layout(layout, layout_);
  }
  layout_ = layout;
  at_.results = &results;
  notify(Stage::predict_batch_end);
  at_.results = nullptr;
  has_ids_ = !batch.ids.empty();
  const std::vector<std::int64_t> rows = rows_of_samples(batch);
  for (const std::int64_t row : rows) {
    keys_.push_back(has_ids_ ? batch.ids[static_cast<std::size_t>(row)] : step_);
  }
  if (is_combined_) {
    loaders_.insert(loaders_.end(), rows.size(), static_cast<std::int64_t>(batch.loader));
  }
  if (rows.empty()) {
    return;
  }
  if (!batch.replaced.empty()) {
    for (auto& [name, tensor] : results) {
      tensor = tensor.index_select(0, at::tensor(rows, at::kLong));
    }
  }
  results_.push_back(std::move(results));
}

Prediction::End Prediction::run_steps(std::int64_t most) {
  ProgressRecord& record = WorldAccess::progress(world_);
  const PhaseScope phase(record, Phase::prediction);
  const EvaluationScope scope(task_.module(), world_.device());
  const at::NoGradGuard no_grad;
  AgreedStop stop(world_, at_.control, least_stop_);
  for (std::int64_t done = 0; most == 0 || done < most; ++done) {
    const StepBatches* step = data_.next_unless([&stop] { return stop.is_asked(); });
    if (step == nullptr) {  // the source has ended, or a stop was requested while a rank waited for data
      return stop.look_now() ? End::stop : End::epoch;
    }
    check_samples(*step);
    for (const Batch& batch : step->micro) {
      if (batch.samples > 0) {
        add(batch);
      }
    }
    ++step_;
    if (step->ends_epoch) {
      return End::epoch;
    }
    record.set_phase(Phase::prediction);  // progress, also if nobody looks for a stop
    if (stop.look()) {
      return End::stop;
    }
  }
  return End::flush;
}

NamedTensors Prediction::take() {
  NamedTensors rows;
  if (!results_.empty()) {
    rows.emplace_back(has_ids_ || is_combined_ ? kIds : kSteps, at::tensor(std::exchange(keys_, {}), at::kLong));
    if (is_combined_) {
      rows.emplace_back(kLoaders, at::tensor(std::exchange(loaders_, {}), at::kLong));
    }
    for (std::size_t i = 0; i < results_.front().size(); ++i) {
      rows.emplace_back(results_.front()[i].first, column(results_, i));
    }
    results_.clear();
  }
  return rows;
}

bool Prediction::run() {
  const StepLimit limit = limit_of_prediction(config_);
  const std::int64_t most = limit.of(data_);
  const LoaderPosition start = seek_epoch_begin(data_);
  const End end = run_steps(most);
  data_.seek(start);  // as after a validation
  if (end == End::flush) {
    tell_part("the prediction", most, limit, config_);
  }
  return end != End::stop;
}

NamedTensors Prediction::gather() {
  NamedTensors mine = take();
  const std::string layout = agree_on_layout(mine, world_);
  if (layout.empty()) {
    throw DataError("the data gave no samples", "give it at least one");
  }
  if (mine.empty()) {
    mine = without_rows(layout);
  }
  const std::vector<std::int64_t> counts = gather_value(world_, mine.front().second.size(0));
  for (auto& [name, tensor] : mine) {
    tensor = rows_of_all(tensor, counts, world_);
  }
  return world_.is_main() ? in_order({mine}) : NamedTensors();
}

bool Prediction::try_steps(std::int64_t most) {
  const LoaderPosition start = seek_epoch_begin(data_);
  const End end = run_steps(most);
  agree_on_layout(take(), world_);
  data_.seek(start);
  return end != End::stop;
}

bool Prediction::run_into(const Path& directory, std::int64_t every_steps) {
  OptionCheck("predict").expect("every_steps", every_steps, every_steps >= 1, "1 or more").throw_problems();
  if (config_.fast_dev_run > 0) {
    if (world_.is_main()) {
      log_info(fmt::format("--fast_dev_run: predicting {}, nothing is written into {}",
                           counted(config_.fast_dev_run, "step"), printable(directory.string())));
    }
    return try_steps(config_.fast_dev_run);
  }
  const LoaderPosition start = seek_epoch_begin(data_);
  try {
    const bool is_complete = write_parts(directory, every_steps);
    data_.seek(start);
    return is_complete;
  } catch (const CommError&) {  // the rank that caused it says what is left
    throw;
  } catch (...) {
    tell_what_is_left(directory);
    throw;
  }
}

void Prediction::tell_what_is_left(const Path& directory) const {
  if (written_ > 0 && !TrainControlAccess::in_fit(at_.control)) {  // a fit tells of its checkpoints
    WorldAccess::tell_what_is_left(
        world_, fmt::format("{} in {} {} predicted; without the cause of this failure the same command continues there",
                            counted(written_, "step"), printable(directory.string()), written_ == 1 ? "is" : "are"));
  }
}

std::vector<std::string> Prediction::write_part(const Path& directory, std::int64_t first) {
  const NamedTensors mine = take();
  agree_on_layout(mine, world_);
  const auto name = [first](int rank) { return fmt::format("part-{:010}-rank-{}.safetensors", first, rank); };
  if (!mine.empty()) {
    save_tensors(directory / name(world_.rank()), mine);
  }
  // Every rank has written its file before the main rank counts them.
  const std::vector<std::string> wrote = world_.gather(mine.empty() ? "" : "yes");
  std::vector<std::string> names;
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (!wrote[static_cast<std::size_t>(rank)].empty()) {
      names.push_back(name(rank));
    }
  }
  return names;
}

bool Prediction::write_parts(const Path& directory, std::int64_t every_steps) {
  const StepLimit limit = limit_of_prediction(config_);
  PartList list = open_part_list(directory, task_.module(), data_, limit, at_.plan, world_);
  step_ = written_ = list.step;
  const std::int64_t most = limit.of(data_);
  const auto is_enough = [&] { return most > 0 && step_ >= most; };
  list.complete = list.complete && (!list.limited || is_enough());
  if (list.complete && world_.is_main()) {
    log_info(fmt::format("{} has a complete prediction{} and is left as it is; remove it to predict again",
                         directory.string(),
                         list.limited ? fmt::format(" of the first {}", counted(step_, "step")) : std::string()));
  }
  while (!list.complete) {
    const std::int64_t first = step_;
    const End end = is_enough() ? End::flush : run_steps(most > 0 ? std::min(every_steps, most - step_) : every_steps);
    std::ranges::move(write_part(directory, first), std::back_inserter(list.parts));
    list.step = step_;
    list.complete = end == End::epoch || is_enough();
    list.limited = list.complete && end != End::epoch;
    list.position = data_.position();
    if (world_.is_main()) {
      write_file(real_file_system(), part_list_file(directory), part_list_text(list));
    }
    written_ = step_;
    if (end == End::stop) {
      return false;
    }
    if (list.limited) {
      tell_part("the prediction", step_, limit, config_);
    }
  }
  if (list.parts.empty()) {
    throw DataError("the data gave no samples", "give it at least one");
  }
  world_.any(false);  // no rank reads the files before they are complete
  return true;
}

NamedTensors load_predictions(const Path& directory) {
  FileSystem& fs = real_file_system();
  if (!fs.exists(part_list_file(directory))) {
    throw CheckpointError(fmt::format("{} contains no predictions", directory.string()),
                          "give the directory of Trainer::predict; a run with --fast_dev_run writes no predictions");
  }
  const PartList progress = parse_part_list(read_file(fs, part_list_file(directory)), directory);
  if (!progress.complete) {
    throw CheckpointError(fmt::format("the prediction in {} is not complete", directory.string()),
                          "run it again: it continues");
  }
  if (progress.limited) {
    log_info(fmt::format("{} has predictions of the first {} of the data only (--predict.max_batches)",
                         directory.string(), counted(progress.step, "step")));
  }
  std::vector<NamedTensors> parts;
  for (const std::string& part : progress.parts) {
    parts.push_back(load_tensors(directory / part));
    if (!parts.back().empty() && layout_of(parts.back()) != layout_of(parts.front())) {
      throw CheckpointError(fmt::format("{} has other tensors than the files before it", (directory / part).string()),
                            "remove the directory, and predict again");
    }
  }
  return in_order(parts);
}

}  // namespace lockstep
