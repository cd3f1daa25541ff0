#include "cli/runs/list_command.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/storage/checkpoint_dir.h>

#include "base/columns.h"
#include "base/run_files.h"
#include "base/text.h"
#include "base/wall_clock.h"
#include "cli/commands.h"
#include "storage/names.h"

namespace lockstep {
namespace {

constexpr FlagRow kFlags[] = {{"json", "", "print one JSON object, which docs/reports.md describes"}};

constexpr std::int64_t kLastBytes = 64 << 10;

std::string best_text(const RunCheckpointFacts& checkpoints) {
  return checkpoints.best ? fmt::format("{} {:.5g} (step {})", printable(checkpoints.monitor), checkpoints.best_value,
                                        *checkpoints.best)
                          : "-";
}

/// Looks for runs in a directory and a few levels below it, so that experiments may have directories of their own.
class Search {
 public:
  Search(FileSystem& fs, std::filesystem::path root) : fs_(fs), root_(std::move(root)) {}

  std::vector<RunData> run() {
    if (is_run(fs_, root_)) {
      return {read_run(fs_, root_, kLastBytes)};
    }
    look_into(root_, 1);
    if (seen_ > kMostNames) {
      log_warning(
          fmt::format("{} contains more than {} files, and only these were searched; give a directory nearer to "
                      "the runs",
                      printable(root_.string()), with_commas(kMostNames)));
    }
    std::ranges::stable_sort(runs_, std::ranges::greater{}, &RunData::last_activity);
    return std::move(runs_);
  }

 private:
  static constexpr int kDeepest = 3;                   // runs/experiment/part/run
  static constexpr std::int64_t kMostNames = 100'000;  // a directory of data can have millions

  void look_into(const std::filesystem::path& directory, int depth) {
    std::error_code error;
    for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
         entry.increment(error)) {
      if (++seen_ > kMostNames) {
        return;
      }
      std::error_code ignored;
      if (entry->is_directory(ignored)) {
        look_at(entry->path(), depth);
      }
    }
    if (error) {
      leave_out(directory, error.message());
    }
  }

  void look_at(const std::filesystem::path& path, int depth) {
    std::error_code ignored;
    try {
      if (is_run(fs_, path)) {
        runs_.push_back(read_run(fs_, path, kLastBytes));
        runs_.back().name = path.lexically_relative(root_).string();
      } else if (depth < kDeepest && !std::filesystem::is_symlink(path, ignored)) {
        look_into(path, depth + 1);
      }
    } catch (const Error& error) {  // a directory of another user, or one that is renamed just now
      leave_out(path, error.what());
    }
  }

  static void leave_out(const std::filesystem::path& path, std::string_view why) {
    log_warning(fmt::format("{} is left out: {}", printable(path.string()), why));
  }

  FileSystem& fs_;
  std::filesystem::path root_;
  std::int64_t seen_ = 0;
  std::vector<RunData> runs_{};
};

}  // namespace

std::string list_table(std::span<const RunData> runs, double now) {
  constexpr std::size_t kColumns = 7;
  std::vector<std::array<std::string, kColumns>> rows{
      {"name", "state", "step", "epoch", "best", "last activity", "checkpoints"}};
  for (const RunData& run : runs) {
    const auto& steps = run.checkpoints.steps;
    rows.push_back({printable(run.name), std::string(to_string(run.state)), std::to_string(run.last_step),
                    run.epoch ? short_number(*run.epoch) : "-", best_text(run.checkpoints),
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
      const bool is_number = i == 2 || i == 3;
      line += i > 0 ? "  " : "";
      line += is_number ? fmt::format("{:>{}}", row[i], widths[i]) : padded(row[i], widths[i]);
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
              {"epoch", or_null(run.epoch)},
              {"started", run.started > 0 ? Json(run.started) : Json()},
              {"last_activity", run.last_activity > 0 ? Json(run.last_activity) : Json()},
              {"best", nullptr},
              {"checkpoints", {{"steps", checkpoints.steps}, {"bytes", checkpoints.bytes}}},
              {"notes", run.notes}};
    if (checkpoints.best) {
      json["best"] = {{"metric", checkpoints.monitor},
                      {"value", checkpoints.best_value},
                      {"step", *checkpoints.best},
                      {"checkpoint", (run.directory / kCheckpointsName / step_name(*checkpoints.best)).string()}};
    }
    all.push_back(std::move(json));
  }
  return {{"format", 1}, {"directory", directory}, {"runs", std::move(all)}};
}

namespace {

int list(const CommandLine& line, const Variables&) {
  const std::string directory = line.arguments.empty() ? "runs" : line.arguments[0];
  std::error_code ignored;
  if (!std::filesystem::is_directory(directory, ignored)) {
    throw ConfigError(fmt::format("{}: {}", printable(directory),
                                  std::filesystem::exists(directory, ignored) ? "is a file" : "no such directory"),
                      "give the directory that contains the runs; see lockstep list --help");
  }
  const std::vector<RunData> runs = Search(real_file_system(), directory).run();
  if (line.has("json")) {
    fmt::print("{}\n", dump_json(list_json(runs, directory)));
  } else if (runs.empty()) {
    fmt::print("no run in {}\n", printable(directory));
  } else {
    fmt::print("{}", list_table(runs, unix_time()));
  }
  return 0;
}

}  // namespace

const Command kListCommand{
    .name = "list",
    .arguments = "[DIR]",
    .summary = "show the runs in a directory",
    .description =
        "Shows the runs in the directory DIR (default: runs) and up to two levels below it, the latest first: state, "
        "last step, epoch, best metric "
        "and its checkpoint, time since the last activity, and number and size of the checkpoints. Changes nothing.",
    .exit_codes = "0, also without a run; 2 usage",
    .flags = kFlags,
    .run = list};

}  // namespace lockstep
