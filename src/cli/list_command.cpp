#include "cli/list_command.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/storage/checkpoint_dir.h>

#include "base/text.h"
#include "base/wall_clock.h"
#include "storage/names.h"

namespace lockstep {
namespace {

constexpr std::string_view kUsage =
    "usage: lockstep list [--json] [DIR]\n\n"
    "Shows the runs in the directory DIR (default: runs), the latest first: state, last step, epoch, best metric and\n"
    "its checkpoint, time since the last activity, and number and size of the checkpoints. Changes nothing. With\n"
    "--json it prints one JSON object, which docs/reports.md describes.\n\n"
    "exit code: 0, also without a run; 2 usage\n";

constexpr std::int64_t kLastBytes = 64 << 10;

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string best_text(const RunCheckpointFacts& checkpoints) {
  return checkpoints.best ? fmt::format("{} {:.5g} (step {})", printable(checkpoints.monitor), checkpoints.best_value,
                                        *checkpoints.best)
                          : "-";
}

std::vector<RunData> read_runs(FileSystem& fs, const std::filesystem::path& directory) {
  if (is_run(fs, directory)) {
    return {read_run(fs, directory, kLastBytes)};
  }
  std::vector<RunData> runs;
  for (const std::string& name : fs.list(directory)) {
    std::error_code ignored;
    const auto path = directory / name;
    if (!std::filesystem::is_directory(path, ignored)) {
      continue;
    }
    try {
      if (is_run(fs, path)) {
        runs.push_back(read_run(fs, path, kLastBytes));
      }
    } catch (const Error& error) {  // a directory of another user, or one that is renamed just now
      log_warning(fmt::format("{} is left out: {}", printable(path.string()), error.what()));
    }
  }
  std::ranges::stable_sort(runs, std::ranges::greater{}, &RunData::last_activity);
  return runs;
}

}  // namespace

std::string list_table(std::span<const RunData> runs, double now) {
  constexpr std::size_t kColumns = 7;
  std::vector<std::array<std::string, kColumns>> rows{
      {"name", "state", "step", "epoch", "best", "last activity", "checkpoints"}};
  for (const RunData& run : runs) {
    const auto& steps = run.checkpoints.steps;
    rows.push_back({printable(run.name), std::string(to_string(run.state)), std::to_string(run.last_step),
                    run.epoch ? fmt::format("{:g}", *run.epoch) : "-", best_text(run.checkpoints),
                    run.last_activity > 0 ? rough_duration(now - run.last_activity) + " ago" : "-",
                    steps.empty() ? "-" : fmt::format("{}, {}", steps.size(), human_bytes(run.checkpoints.bytes))});
  }
  std::array<std::size_t, kColumns> widths{};
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < kColumns; ++i) {
      widths[i] = std::max(widths[i], columns_of(row[i]));
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < kColumns; ++i) {
      const std::string fill(widths[i] - columns_of(row[i]), ' ');
      const bool is_number = i == 2 || i == 3;
      line += (i > 0 ? "  " : "") + (is_number ? fill + row[i] : row[i] + fill);
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

Json list_json(std::span<const RunData> runs, const std::string& directory) {
  Json all = Json::array();
  for (const RunData& run : runs) {
    const RunCheckpointFacts& checkpoints = run.checkpoints;
    Json json{{"name", run.name},
              {"directory", run.directory.string()},
              {"state", to_string(run.state)},
              {"why", run.why},
              {"step", run.last_step},
              {"epoch", run.epoch ? Json(*run.epoch) : Json()},
              {"started", run.started > 0 ? Json(run.started) : Json()},
              {"last_activity", run.last_activity > 0 ? Json(run.last_activity) : Json()},
              {"best", nullptr},
              {"checkpoints", {{"steps", checkpoints.steps}, {"bytes", checkpoints.bytes}}},
              {"notes", run.notes}};
    if (checkpoints.best) {
      json["best"] = {{"metric", checkpoints.monitor},
                      {"value", checkpoints.best_value},
                      {"step", *checkpoints.best},
                      {"checkpoint", (run.directory / "checkpoints" / step_name(*checkpoints.best)).string()}};
    }
    all.push_back(std::move(json));
  }
  return {{"format", 1}, {"directory", directory}, {"runs", std::move(all)}};
}

int list_command(std::span<const std::string> args) {
  if (args.size() == 1 && (args[0] == "--help" || args[0] == "-h")) {
    fmt::print("{}", kUsage);
    return 0;
  }
  std::vector<std::string> words(args.begin(), args.end());
  const bool json = std::erase(words, "--json") != 0;
  if (words.size() > 1 || (words.size() == 1 && words[0].starts_with('-'))) {
    throw ConfigError(words.size() > 1 ? fmt::format("list: found {} arguments, expected at most 1", words.size())
                                       : fmt::format("list: {}: unknown flag", printable(words[0])),
                      "lockstep list [--json] [DIR]; see lockstep list --help");
  }
  const std::string directory = words.empty() ? "runs" : words[0];
  std::error_code ignored;
  if (!std::filesystem::is_directory(directory, ignored)) {
    throw ConfigError(fmt::format("{}: no such directory", printable(directory)),
                      "give the directory that contains the runs; see lockstep list --help");
  }
  const std::vector<RunData> runs = read_runs(real_file_system(), directory);
  if (json) {
    fmt::print("{}\n", dump_json(list_json(runs, directory)));
  } else if (runs.empty()) {
    fmt::print("no run in {}\n", printable(directory));
  } else {
    fmt::print("{}", list_table(runs, unix_time()));
  }
  return 0;
}

}  // namespace lockstep
