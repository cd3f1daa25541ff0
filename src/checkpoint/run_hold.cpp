#include "checkpoint/run_hold.h"

#include <filesystem>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/crc32c.h"
#include "base/json.h"
#include "base/run_files.h"
#include "base/run_pattern.h"
#include "base/text.h"
#include "checkpoint/main_rank.h"
#include "checkpoint/named_checkpoint.h"
#include "config/without_files.h"
#include "storage/run_choice.h"
#include "storage/run_commands.h"
#include "tensor/shape_text.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

bool changes_directory(const TrainConfig& config) { return config.fresh || writes_files(config); }

std::string encode(const RunFound& found) {
  return dump_json(Json{{"directory", found.directory}, {"has_run", found.has_run}, {"json", found.json}});
}

std::vector<RunFound> decode(const std::vector<std::string>& answers) {
  std::vector<RunFound> all;
  for (const std::string& answer : answers) {
    if (!answer.empty()) {
      const Json found = parse_json(answer);
      all.push_back({.directory = found.at("directory"), .has_run = found.at("has_run"), .json = found.at("json")});
    }
  }
  return all;
}

bool is_record_of(const std::string& json, const std::string& run_id) {
  try {
    return parse_run_record(json, {}).id == run_id;
  } catch (const CheckpointError&) {
    return false;  // damaged: only --fresh gets this far
  }
}

/// Names, shapes and dtypes of the parameters.
std::string fingerprint(const torch::nn::Module& module) {
  std::string text;
  for (const auto& item : module.named_parameters()) {
    text += fmt::format("{} {}\n", item.key(), kind_text(item.value()));
  }
  return fmt::format("{:08x}-{}", crc32c(std::as_bytes(std::span(text))), text.size());
}

}  // namespace

std::shared_ptr<RunHold> RunHold::take(const Plan& plan, World& world) {
  const TrainConfig& config = plan.config;
  const std::string directory = run_directory(config);
  std::weak_ptr<RunHold>& shared = WorldAccess::run_hold(world);
  if (auto held = shared.lock(); held && held->directory_ == directory) {
    return held;
  }
  const bool writes = world.is_main() || (config.checkpoint.per_node && world.local_rank() == 0);
  std::shared_ptr<RunHold> hold(new RunHold(directory, WorldAccess::start_directory(world), writes));
  if (!changes_directory(config)) {
    return hold;
  }
  const RunRequest request{.fresh = config.fresh, .program = plan.facts.program, .launch = plan.facts.launch_name};
  const auto answers = run_on(world, "taking the run directory", writes, [&] {
    hold->held_ = std::make_unique<RunDirectory>(real_file_system(), hold->path_, request.launch);
    return encode(hold->held_->found());
  });
  // Rank 0 decides for all, because launchers may set different values on different ranks.
  const Json decided = parse_json(run_on_main(world, "choosing the run", [&] {
    const RunDecision decision = decide_run(request, decode(answers));
    if (decision.set_aside) {
      check_before_rename(config, hold->path_);
    }
    return dump_json(Json{{"record", to_json(decision.record)}, {"trained_before", decision.trained_before}});
  }));
  hold->record_ = parse_run_record(decided.at("record").get<std::string>(), directory);
  hold->trained_before_ = decided.at("trained_before");
  run_on(world, "recording the run", writes, [&] {
    const RunFound found = decode({answers[static_cast<std::size_t>(world.rank())]}).front();
    const bool same = !found.json.empty() && is_record_of(found.json, hold->record_.id);
    if (request.fresh && found.has_run && !same) {
      // Information is logged by the main rank only, and this is another disk.
      log(world.is_main() ? LogLevel::info : LogLevel::warning,
          fmt::format("--fresh: moved the old run to {}", hold->held_->set_aside().string()));
    }
    if (!hold->trained_before_) {  // a restart takes what the attempt before it was asked for
      drop_commands(real_file_system(), hold->path_);
    }
    try {
      hold->held_->write(hold->record_);
    } catch (const IoError& error) {
      if (!same) {
        throw;
      }
      log_warning(
          fmt::format("{}; the run goes on without it",
                      error.what()));  // a full disk: the next save frees space, and run.json already names this run
    }
  });
  if (request.fresh && !hold->trained_before_) {
    drop_batch_limit(real_file_system(), hold->path_);  // of a machine whose directory was not renamed
  }
  if (shared.expired()) {
    shared = hold;
  }
  return hold;
}

std::string RunHold::launch() const { return fmt::format("{}/{}", record_.id, record_.launches); }

std::string RunHold::batch_limit() const { return kept_batch_limit(real_file_system(), path_); }

bool RunHold::keep_batch_limit(std::string_view json) const {
  if (record_.id.empty()) {
    return false;
  }
  real_file_system().create_directories(path_);
  write_file(real_file_system(), path_ / kBatchLimitName, json);
  return true;
}

bool RunHold::trained_before() { return std::exchange(trained_before_, true); }

void RunHold::claim_model(const torch::nn::Module& module, bool allow_change, World& world) {
  const std::string model = fingerprint(module);
  if (record_.id.empty() || record_.model == model) {
    return;
  }
  if (!record_.model.empty() && !allow_change) {
    throw CheckpointError(fmt::format("{} holds a run of another model: its parameters have different names, shapes or "
                                      "dtypes",
                                      directory_),
                          "--run_name NAME starts another run, --fresh renames this one and starts over");
  }
  record_.model = model;
  run_on(world, "recording the model", writes_, [&] {
    try {
      held_->write(record_);
    } catch (const IoError& error) {
      log_warning(fmt::format("{}; the run goes on without it", error.what()));
    }
  });
}

Plan with_run_directory(Plan plan, World& world) {
  TrainConfig& config = plan.config;
  // That of rank 0, because launchers may set different values on different ranks.
  const auto pattern = parse_run_pattern(world.broadcast_bytes(run_directory(config)));
  if (!pattern) {
    return plan;
  }
  config.run_dir = run_on_main(world, "choosing the run directory", [&] {
    std::string directory = choose_run(real_file_system(), *pattern,
                                       {.launch = plan.facts.launch_name,
                                        .newest = config.resume == "last" || config.resume == "best",
                                        .creates = changes_directory(config)});
    log_info(fmt::format("run directory: {}", directory));
    return directory;
  });
  if (parse_run_pattern(config.run_name)) {
    config.run_name = std::filesystem::path(config.run_dir).filename().string();
  }
  RunHold::take(plan, world);
  return plan;
}

}  // namespace lockstep
