#include "storage/run_record.h"

#include <stdexcept>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/json.h"
#include "base/run_files.h"
#include "base/text.h"

namespace lockstep {
namespace {

constexpr int kFormat = 1;
constexpr const char* kOtherRun =
    "--run_name NAME starts another run, --fresh renames this one and starts over; in another run, --resume DIRECTORY "
    "continues this one and --init_weights DIRECTORY takes only its weights";

std::optional<RunRecord> record_of(const RunFound& found) {
  return found.json.empty() ? std::nullopt
                            : std::optional(parse_run_record(found.json, found.directory + "/" + kRunRecordName));
}

/// The run that the directories contain: that of the first node, or of another node if the first is new.
std::optional<RunRecord> run_in(const std::vector<RunFound>& found) {
  std::optional<RunRecord> run;
  std::string directory;
  for (const RunFound& here : found) {
    auto record = record_of(here);
    if (!record) {
      continue;
    }
    if (run && run->id != record->id) {
      throw CheckpointError(fmt::format("{} and {} contain different runs ({} and {})", directory, here.directory,
                                        printable(run->id), printable(record->id)),
                            "move one of them away, or start over with --fresh");
    }
    if (!run) {
      run = std::move(record);
      directory = here.directory;
    }
  }
  return run;
}

/// On any node, because the first may be new. With --fresh, an unreadable run counts as an old run.
std::optional<RunRecord> run_of_this_launch(const RunRequest& request, const std::vector<RunFound>& found) {
  for (const RunFound& here : found) {
    try {
      if (auto run = record_of(here); run && same_launch(run->launch, request.launch)) {
        return run;
      }
    } catch (const CheckpointError&) {
    }
  }
  return std::nullopt;
}

}  // namespace

std::string to_json(const RunRecord& record) {
  return dump_json_pretty(
             Json{{"format", kFormat},
                  {"id", record.id},
                  {"program", record.program},
                  {"model", record.model},
                  {"launches", record.launches},
                  {"launch",
                   {{"id", record.launch.id}, {"job", record.launch.job}, {"requeues", record.launch.requeues}}}}) +
         "\n";
}

RunRecord parse_run_record(std::string_view json, const std::string& where) {
  const char* hint =
      "the file is damaged: delete it to continue with the checkpoints beside it, or start over with --fresh";
  try {
    const Json root = parse_json(json);
    if (const auto format = member_as<std::int64_t>(root, "format"); format != kFormat) {
      hint = "continue the run with the version of lockstep that wrote it, or start over with --fresh";
      throw std::runtime_error(fmt::format("its format is {}, this build reads {}", format, kFormat));
    }
    const Json& launch = member(root, "launch");
    return {.id = member_as<std::string>(root, "id"),
            .program = member_as<std::string>(root, "program"),
            .model = member_as<std::string>(root, "model"),
            .launches = member_as<std::int64_t>(root, "launches"),
            .launch = {.id = member_as<std::string>(launch, "id"),
                       .job = member_as<std::string>(launch, "job"),
                       .requeues = member_as<int>(launch, "requeues")}};
  } catch (const std::exception& error) {
    throw CheckpointError(fmt::format("{}: {}", where, printable(error.what())), hint);
  }
}

RunDecision decide_run(const RunRequest& request, const std::vector<RunFound>& found) {
  std::optional<RunRecord> run = request.fresh ? run_of_this_launch(request, found) : run_in(found);
  RunDecision decision{.set_aside = request.fresh && !run};
  if (!run) {
    decision.record = {.id = random_id(), .program = request.program, .launches = 1, .launch = request.launch};
    return decision;
  }
  if (!run->program.empty() && !request.program.empty() && run->program != request.program) {
    throw CheckpointError(fmt::format("{} contains a run of the program {}, this program is {}",
                                      found.front().directory, printable(run->program), printable(request.program)),
                          kOtherRun);
  }
  decision.trained_before = same_launch(run->launch, request.launch);
  decision.record = std::move(*run);
  if (decision.record.program.empty()) {
    decision.record.program = request.program;
  }
  decision.record.launches += decision.trained_before ? 0 : 1;
  decision.record.launch = request.launch;
  return decision;
}

}  // namespace lockstep
