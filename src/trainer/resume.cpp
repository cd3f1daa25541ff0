#include "trainer/resume.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>

#include <fmt/format.h>

#include <ATen/Parallel.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/checkpoint/rng_state.h>
#include <lockstep/config/config_io.h>
#include <lockstep/sampling/distributed_sampler.h>
#include <lockstep/world/world.h>

#include "base/ceil_div.h"
#include "base/find_value.h"
#include "base/mapped.h"
#include "base/text.h"
#include "checkpoint/load_converted.h"
#include "checkpoint/tied_names.h"
#include "config/check_config.h"
#include "config/field_value.h"
#include "storage/names.h"
#include "tensor/prefixed.h"
#include "world/warn_on_main.h"
#include "world/world_access.h"

namespace lockstep {

namespace {

std::int64_t integer(const CheckpointContents& contents, const std::string& key) {
  const std::string* found = find_value(contents.values, key);
  const auto value = found != nullptr ? parse_int(*found) : std::nullopt;
  if (!value) {
    throw CheckpointError(fmt::format("the checkpoint's state.json has no whole number '{}'", key),
                          "it was not written by a Trainer; load it with CheckpointStore, or start over with --fresh");
  }
  return *value;
}

std::string text(const CheckpointContents& contents, const std::string& key) {
  const std::string* found = find_value(contents.values, key);
  return found != nullptr ? *found : std::string();
}

std::string shown(const std::string& value) { return value.empty() ? "empty" : printable(value); }

constexpr std::string_view kConfig = "config.";
constexpr std::string_view kBackend = "backend";
constexpr const char* kData = "data";  // its fingerprint
constexpr const char* kWeightsOnlyKey = "weights_only";
constexpr const char* kPlaceEpoch = "place.epoch";
constexpr const char* kPlaceSteps = "place.steps";
constexpr const char* kPlaceValidation = "place.validation_is_due";
constexpr const char* kPlaceExtra = "place.validation_is_extra";
constexpr const char* kTrainingTime = "training_time_s";
constexpr std::string_view kSpike = "spike.";  // windows of SpikeWatch

double saved_time(const CheckpointContents& contents) {
  return parse_double(text(contents, kTrainingTime)).value_or(0);
}

// Settings that may change between two starts without a warning: they affect where and how long a run trains, not what
// it learns. The loader compares the global batch.
bool may_change(std::string_view field) {
  if (field.starts_with("checkpoint.") || field.starts_with("report.") || field.starts_with("spike.")) {
    return true;
  }
  constexpr std::array<std::string_view, 16> kFields{"init_weights",
                                                     "min_epochs",
                                                     "min_steps",
                                                     "max_epochs",
                                                     "max_steps",
                                                     "max_time_s",
                                                     "nprocs",
                                                     "batch_size",
                                                     "accumulation",
                                                     "global_batch_size",
                                                     "optim.non_finite",
                                                     "test.max_batches",
                                                     "predict.max_batches",
                                                     "dist.check_replicas",
                                                     "dist.shard_optimizer",
                                                     "dist.require_sync_batch_norm"};
  return std::find(kFields.begin(), kFields.end(), field) != kFields.end();
}

/// The configuration with what this run found out: the ranks may have left shared memory.
TrainConfig config_in_use(const RunParts& run) {
  TrainConfig config = run.plan.config;
  if (run.world.size() > 1) {
    config.backend = WorldAccess::backend(run.world);
  }
  return config;
}

std::string saved_backend(const CheckpointContents& contents) {
  return text(contents, fmt::format("{}{}", kConfig, kBackend));
}

bool has_as_many_ranks(const CheckpointContents& contents, const World& world) {
  return text(contents, kWorldSizeKey) == std::to_string(world.size());
}

/// Gloo and shared memory add in one order for two ranks, and with another number of ranks every order is new.
bool adds_in_no_other_order(Backend now, const CheckpointContents& contents, const World& world) {
  const auto is_either = [](const std::string& name) {
    return name == to_text(Backend::gloo) || name == to_text(Backend::shm);
  };
  return is_either(to_text(now)) && is_either(saved_backend(contents)) &&
         (world.size() <= 2 || !has_as_many_ranks(contents, world));
}

struct Change {
  std::string name{};  // of a flag
  std::string now{};
  std::string saved{};
};

/// Adds the flag if the checkpoint has another value of it.
void compare(const CheckpointContents& contents, std::string_view kind, const std::string& name, const std::string& now,
             std::vector<Change>& found) {
  const std::string* saved = find_value(contents.values, std::string(kind) + name);
  if (saved != nullptr && *saved != now) {
    found.push_back({.name = name, .now = now, .saved = *saved});
  }
}

void compare_program(const CheckpointContents& contents, const Plan& plan, std::vector<Change>& found) {
  for (const ProgramValue& value : plan.facts.program_values) {
    if (!value.may_change) {
      compare(contents, kProgramKeys, value.name, value.text, found);
    }
  }
}

std::vector<std::string> changes(const RunParts& run, const CheckpointContents& contents) {
  std::vector<Change> found;
  const TrainConfig now = config_in_use(run);
  for (const auto& [name, value] : config_values(now)) {
    const bool adds_alike = name == kBackend && adds_in_no_other_order(now.backend, contents, run.world);
    if (ranks_agree_on(name) && !may_change(name) && !adds_alike) {
      compare(contents, kConfig, name, value, found);
    }
  }
  compare_program(contents, run.plan, found);
  std::vector<std::string> lines = mapped(found, [](const Change& change) {
    return fmt::format("--{} is {} now, {} when the checkpoint was written", change.name, shown(change.now),
                       shown(change.saved));
  });
  if (const std::string data = run.train.fingerprint(), saved = text(contents, kData);
      !saved.empty() && data != saved) {
    lines.push_back(
        fmt::format("the data set is {} now, {} when the checkpoint was written", shown(data), shown(saved)));
  }
  return lines;
}

/// Which settings made another model or optimizer: "--precision was fp32, is bf16, --hidden was 64, is 128 now: ", or
/// "".
std::string changed_flags(const RunParts& run, const CheckpointContents& contents) {
  std::vector<Change> found;
  compare(contents, kConfig, "precision", to_text(run.plan.config.precision), found);
  compare_program(contents, run.plan, found);
  const auto changed = mapped(found, [](const Change& change) {
    return fmt::format("--{} was {}, is {}", change.name, shown(change.saved), shown(change.now));
  });
  return changed.empty() ? "" : fmt::format("{} now: ", join(changed, ", "));
}

/// How the checkpoint's weights can still be used. `all`: the model has all of them.
std::string another_run(const Plan& plan, bool all) {
  const TrainConfig& config = plan.config;
  const bool is_own = resumes_itself(config.resume);
  const bool is_asked_for = config.resume != "auto";
  const std::string flags =
      fmt::format("--init_weights {}{}{}{}", is_own ? run_directory(config) : config.resume,
                  config.resume == "best" ? "/checkpoints/best" : "", all ? "" : " --checkpoint.allow_partial",
                  is_asked_for ? " instead of --resume" : "");
  const char* weights = all ? "its weights" : "those of its weights that fit";
  if (!is_own) {
    return fmt::format("{} begins with {}", flags, weights);
  }
  return fmt::format("{} {} starts another run with {}{}",
                     asked_config(plan).run_dir.empty() ? "--run_name NAME" : "--run_dir NEW", flags, weights,
                     is_asked_for ? "" : ", --fresh renames this one and starts over");
}

void warn_about(const std::vector<std::string>& changed, const CheckpointContents& contents, const World& world) {
  if (!world.is_main()) {
    return;
  }
  for (const std::string& change : changed) {
    log_warning(change);
  }
  const std::string* threads = find_value(contents.values, kThreadsKey);
  if (const auto now = std::to_string(at::get_num_threads()); threads != nullptr && *threads != now) {
    log_warning(
        fmt::format("{} threads per rank now, {} when the checkpoint was written: sums over many numbers may round "
                    "differently",
                    now, *threads));
  }
}

// A schedule that ends with the run changes when the run gets longer.
void warn_about_schedules(std::span<const NamedSchedule> schedules, const RunParts& run,
                          const CheckpointContents& contents) {
  const auto before = parse_int(text(contents, kTotalStepsKey)).value_or(0);
  if (!run.world.is_main() || before == 0 || before == run.limits.steps()) {
    return;
  }
  const TrainConfig& config = run.plan.config;
  const bool has_other_limits =
      text(contents, fmt::format("{}max_epochs", kConfig)) != std::to_string(config.max_epochs) ||
      text(contents, fmt::format("{}max_steps", kConfig)) != std::to_string(config.max_steps);
  if (run.place.begins_epoch(run.state) && !has_other_limits) {
    return;  // the next epoch of a ReloadedLoader has another length
  }
  const auto per_epoch = run.train.steps_per_epoch().value_or(0);
  const auto factor = [&](const LrSchedule& schedule, std::int64_t total) {
    return schedule.factor({.step = run.state.step,
                            .total_steps = total,
                            .steps_per_epoch = per_epoch,
                            .epochs_from = run.limits.epochs_from()});
  };
  for (const auto& [optimizer, schedule] : schedules) {
    const double now = factor(schedule, run.limits.steps());
    const double then = factor(schedule, before);
    if (schedule.depends_on_total_steps() && now != then) {
      log_warning(fmt::format(
          "the schedule {} of optimizer '{}' follows the length of the run, which is {} steps now and was {} when the "
          "checkpoint was written: the learning rate of step {} becomes {:.3g} of its base instead of {:.3g}; lengths "
          "and "
          "ends in steps keep it (until={})",
          schedule.text(), optimizer, run.limits.steps(), before, run.state.step, now, then, before));
    }
  }
}

// An epoch is one pass over the data, and not several of them or a part of one.
bool is_one_pass(const TrainConfig& config) {
  return config.data.steps_per_epoch.is_all() && config.data.min_steps_per_epoch == 0;
}

// With sampler.drop_last a pass over the data is shorter, so a position in a later pass would mean other samples.
void check_drop_last(const TrainConfig& config, const CheckpointContents& contents, const LoaderPosition& position) {
  const std::string now = to_text(config.sampler.drop_last);
  const std::string saved = text(contents, fmt::format("{}sampler.drop_last", kConfig));
  if (!is_one_pass(config) && position.consumed > 0 && !saved.empty() && saved != now) {
    throw CheckpointError(
        fmt::format("--sampler.drop_last is {} now, {} when the checkpoint was written, in the middle of an epoch of "
                    "--data.steps_per_epoch or --data.min_steps_per_epoch",
                    now, saved),
        fmt::format("use --sampler.drop_last {} until the end of the epoch, or start over with --fresh", saved));
  }
}

struct SavedProgress {
  TrainState state{};
  LoaderPosition position{};
};

/// Where a run with its optimizers goes on. Throws: CheckpointError if this run cannot go on there.
SavedProgress resumable_progress(const RunParts& run, const CheckpointContents& contents) {
  if (const auto order = integer(contents, "data_order"); order != kDataOrder) {
    throw CheckpointError(fmt::format("the checkpoint has data order {}, this build knows {}", order, kDataOrder),
                          "use the lockstep version that wrote it");
  }
  const TrainConfig& config = run.plan.config;
  const LoaderPosition position = position_of(contents.values);
  const auto world_size = integer(contents, kWorldSizeKey);
  if (world_size != run.world.size() && position.consumed > 0 && config.sampler.order == SampleOrder::pytorch) {
    throw CheckpointError(
        fmt::format("the checkpoint is in the middle of an epoch of {} ranks, this run has {}", world_size,
                    run.world.size()),
        fmt::format("--sampler.order pytorch cannot change the number of ranks inside an epoch: use --nprocs {}",
                    world_size));
  }
  check_drop_last(config, contents, position);
  const TrainState state{.step = integer(contents, "step"),
                         .epoch = integer(contents, "epoch"),
                         .samples = integer(contents, kSamplesKey)};
  if (!contents.tensors.contains("optimizer")) {
    throw CheckpointError("the checkpoint has no optimizer.safetensors", "choose another checkpoint");
  }
  return {.state = state, .position = position};
}

/// False: the checkpoint is of another model, which checkpoint.allow_partial allows. Throws: CheckpointError without
/// it.
bool fits_model(const RunParts& run, const CheckpointContents& contents) {
  try {
    check_module(run.module, contents.tensors.at("model"));
    return true;
  } catch (const CheckpointError& error) {
    if (run.plan.config.checkpoint.allow_partial) {
      return false;
    }
    const bool all = fits_converted(run.module, contents.tensors.at("model"));
    throw CheckpointError(error.what(),
                          changed_flags(run, contents) + another_run(run.plan, all) + (all ? "" : "; " + error.hint()));
  }
}

void load_optimizer(const RunParts& run, const CheckpointContents& contents) {
  try {
    run.strategy.load_optimizer_state(contents.tensors.at("optimizer"));
  } catch (const CheckpointError& error) {
    throw CheckpointError(error.what(),
                          changed_flags(run, contents) + another_run(run.plan, /*all=*/true) + "; " + error.hint());
  }
}

void set_place(RunParts& run, const TrainState& state, const EpochPlace& place) {
  run.state = state;
  run.place = place;
  const std::int64_t first_step = place.begins_epoch(state) ? state.step : state.step - place.steps;
  // After seek(): a loader may keep the global batch of the position, and so the length of its epochs.
  run.limits.begin_epoch(state.epoch, first_step, run.train.steps_per_epoch().value_or(0));
}

// Two kinds of checkpoints have only weights and completed epochs: those of a finished run of checkpoint.weights_only,
// and those of another program, such as lockstep-convert.
void restore_weights(RunParts& run, const CheckpointContents& contents) {
  const bool allow_partial = run.plan.config.checkpoint.allow_partial;
  const bool is_finished = is_weights_only(contents) && is_of_finished_run(contents, run.plan.config);
  if (!allow_partial && !is_finished) {
    throw CheckpointError(
        is_weights_only(contents) ? "the checkpoint holds only weights (checkpoint.weights_only)"
                                  : "the checkpoint holds no optimizer and no position in the data",
        "use --checkpoint.allow_partial to train its weights with a new optimizer, from the epoch after its completed "
        "ones");
  }
  TrainState state = saved_state(contents);
  if (is_finished) {
    run.limits.set_earlier_time(saved_time(contents));
  } else {
    state.samples = 0;  // it starts with a new count
  }
  run.train.seek({.epoch = state.epoch});
  load_module(run.module, contents.tensors.at("model"), allow_partial);
  if (const auto callbacks = contents.tensors.find("callbacks"); is_finished && callbacks != contents.tensors.end()) {
    run.callbacks.load(callbacks->second, run.world);
  }
  set_place(run, state, {.number = state.epoch});
  seed_rng({.seed = run.plan.config.seed, .rank = run.world.rank(), .step = run.state.step}, run.world.device());
}

/// What a resume needs besides the model.
void add_progress(const RunParts& run, CheckpointContents& contents) {
  contents.tensors["optimizer"] = run.strategy.optimizer_state();
  NamedTensors report = run.metrics.save();
  append_with_prefix(report, kSpike, run.spikes.save());
  if (!report.empty()) {
    contents.tensors["report"] = std::move(report);
  }
  auto& values = contents.values;
  values.merge(position_values(run.train.position()));
  values[kTotalStepsKey] = std::to_string(run.limits.steps());
  values[kPlaceEpoch] = std::to_string(run.place.number);
  values[kPlaceSteps] = std::to_string(run.place.steps);
  values[kPlaceValidation] = run.place.validation_is_due ? "true" : "false";
  values[kPlaceExtra] = run.place.validation_is_extra ? "true" : "false";
  values[kWorldSizeKey] = std::to_string(run.world.size());
  values[kData] = run.train.fingerprint();
  values["data_order"] = std::to_string(kDataOrder);
  values[kThreadsKey] = std::to_string(at::get_num_threads());
  contents.per_rank = rng_state(run.world.device());
}

// The steps of the epoch before `at`, as if all had its global batch, so that as many follow as really do. Each pass
// over a data set ends with a smaller step. With drop_last it has none, so a part of a step is lost if the pass ends in
// this epoch. `steps_per_epoch`: 0: not known.
std::int64_t steps_before(const LoaderPosition& at, const TrainConfig& config, std::int64_t steps_per_epoch) {
  if (at.global_batch < 1) {
    return 0;
  }
  const bool drops = config.sampler.drop_last;
  const std::int64_t pass = at.dataset_size - (drops ? at.dataset_size % at.global_batch : 0);
  const bool is_one = is_one_pass(config) || pass < 1;
  const std::int64_t passes = is_one ? 0 : at.consumed / pass;
  const std::int64_t steps_of_pass = ceil_div(pass, at.global_batch);
  const bool loses_part = drops && (is_one || (passes + 1) * steps_of_pass <= steps_per_epoch);
  const std::int64_t left = at.consumed - passes * pass;
  return passes * steps_of_pass + (loses_part ? ceil_div(left, at.global_batch) : left / at.global_batch);
}

// Steps count samples of the global batch, which may be another one now.
EpochPlace place_of(const CheckpointContents& contents, const LoaderPosition& saved, const LoaderPosition& now,
                    const TrainConfig& config, std::int64_t steps_per_epoch) {
  const auto number = parse_int(text(contents, kPlaceEpoch));
  const std::int64_t epoch = number.value_or(saved.consumed > 0 ? saved.epoch + 1 : saved.epoch);
  const bool counts_alike = saved.global_batch == now.global_batch || now.dataset_size == 0;  // streams go on by steps
  const auto steps = counts_alike ? parse_int(text(contents, kPlaceSteps)) : std::nullopt;
  return {.number = epoch,
          .steps = steps.value_or(steps_before(now, config, steps_per_epoch)),
          .validation_is_due = text(contents, kPlaceValidation) == "true",
          .validation_is_extra = text(contents, kPlaceExtra) == "true"};
}

void restore_reports(RunParts& run, const NamedTensors& report, bool in_epoch) {
  run.metrics.load(report);
  if (run.plan.config.report.epoch_means && in_epoch && !RunMetrics::has_epoch(report) && run.world.is_main()) {
    log_warning(
        "--report.epoch_means was off when the checkpoint was written: the means of this epoch are those of its steps "
        "from now on");
  }
  run.spikes.load(under_prefix(report, kSpike));
}

}  // namespace

bool adds_as_gloo(const CheckpointContents& contents, const World& world) {
  return contents.values.contains(kPositionEpoch) && world.size() > 2 && has_as_many_ranks(contents, world) &&
         saved_backend(contents) == to_text(Backend::gloo);
}

TrainState saved_state(const CheckpointContents& contents) {
  return {.step = integer(contents, "step"),
          .epoch = integer(contents, "epoch"),
          .samples = parse_int(text(contents, kSamplesKey)).value_or(0)};
}

bool is_weights_only(const CheckpointContents& contents) { return contents.values.contains(kWeightsOnlyKey); }

// The saved time decides, because the clocks of the ranks differ.
bool is_of_finished_run(const CheckpointContents& contents, const TrainConfig& config) {
  const TrainState state = saved_state(contents);
  const RunLimits limits(config);
  const bool is_time_over = config.max_time_s > 0 && saved_time(contents) >= config.max_time_s;
  return limits.are_reached(state) || (is_time_over && !limits.is_below_minimum(state));
}

CheckpointContents checkpoint_contents(const RunParts& run, const Metrics& measured) {
  CheckpointContents contents;
  contents.tensors["model"] = module_tensors(run.module);
  contents.tied_names = tied_names(run.module);
  if (NamedTensors callbacks = run.callbacks.save(run.world); !callbacks.empty()) {
    contents.tensors["callbacks"] = std::move(callbacks);
  }
  auto& values = contents.values;
  values["step"] = std::to_string(run.state.step);
  values["epoch"] = std::to_string(run.state.epoch);
  values[kSamplesKey] = std::to_string(run.state.samples);
  values[kTrainingTime] = to_text(run.limits.training_time());
  for (const auto& [name, value] : config_values(config_in_use(run))) {
    values[std::string(kConfig) + name] = value;
  }
  for (const ProgramValue& value : run.plan.facts.program_values) {
    values[std::string(kProgramKeys) + value.name] = value.text;
  }
  for (const auto& [name, value] : measured) {
    values[metric_key(name)] = fmt::format("{:.17g}", value);
  }
  if (run.plan.config.checkpoint.weights_only) {
    values[kWeightsOnlyKey] = "true";
  } else {
    add_progress(run, contents);
  }
  return contents;
}

Metrics metrics_of(const CheckpointContents& contents) {
  const std::string prefix = metric_key("");
  Metrics metrics;
  for (const auto& [key, text] : contents.values) {
    double value = 0;  // may be NaN or infinite
    const char* end = text.data() + text.size();
    const auto [last, error] = std::from_chars(text.data(), end, value);
    if (key.starts_with(prefix) && error == std::errc() && last == end) {
      metrics.emplace_back(key.substr(prefix.size()), value);
    }
  }
  return metrics;
}

std::vector<std::string> restore(RunParts& run, const CheckpointContents& contents,
                                 std::span<const NamedSchedule> schedules, bool back) {
  const TrainConfig& config = run.plan.config;
  if (!contents.tensors.contains("model")) {
    throw CheckpointError("the checkpoint has no model.safetensors", "choose another checkpoint");
  }
  if (!contents.values.contains(kPositionEpoch)) {
    restore_weights(run, contents);
    return {};
  }
  auto [state, position] = resumable_progress(run, contents);
  const bool is_of_this_model = fits_model(run, contents);
  if (is_of_this_model) {  // if this throws, the optimizers are discarded, and the model is as before
    load_optimizer(run, contents);
  } else {
    warn_on_main(run.world,
                 "the checkpoint is of another model: the optimizers, callbacks and reports begin without its state");
  }
  run.train.seek(position);
  load_module(run.module, contents.tensors.at("model"), config.checkpoint.allow_partial);
  const auto saved = contents.tensors.find("callbacks");
  if (is_of_this_model && (back || saved != contents.tensors.end())) {
    run.callbacks.load(saved != contents.tensors.end() ? saved->second : NamedTensors(), run.world, back);
  }
  // With another global batch the epoch may be over at this position.
  const std::int64_t ended = run.train.position().epoch - position.epoch;
  if (const auto report = contents.tensors.find("report"); is_of_this_model && report != contents.tensors.end()) {
    restore_reports(run, report->second, /*in_epoch=*/position.consumed > 0);
  }
  run.limits.set_earlier_time(saved_time(contents));
  state.epoch += ended;
  EpochPlace place =
      place_of(contents, position, run.train.position(), config, run.train.steps_per_epoch().value_or(0));
  if (ended > 0) {
    run.metrics.end_epoch();  // the next epoch has means of its own
    place = {.number = state.epoch,
             .validation_is_due = place.validation_is_due,
             .validation_is_extra = place.validation_is_extra};
  }
  set_place(run, state, place);
  restore_rng(contents.per_rank, {.seed = config.seed, .rank = run.world.rank(), .step = state.step},
              run.world.device());
  std::vector<std::string> changed = changes(run, contents);
  warn_about(changed, contents, run.world);
  warn_about_schedules(schedules, run, contents);
  return changed;
}

}  // namespace lockstep
