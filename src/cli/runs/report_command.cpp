#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>

#include "base/mapped.h"
#include "base/text.h"
#include "base/wall_clock.h"
#include "cli/commands.h"
#include "cli/runs/report_page.h"

namespace lockstep {
namespace {

constexpr FlagRow kFlags[] = {
    {"out", "FILE", "the file to write (default: RUN/report.html of a single run, report.html here for several)"},
};

/// Throws: ConfigError for a place that is no file: it would be replaced.
void check_place(const std::filesystem::path& out) {
  std::error_code ignored;
  const auto status = std::filesystem::symlink_status(out, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw ConfigError(
        fmt::format("report: --out {}: this is {}, expected a new name or a file", printable(out.string()),
                    std::filesystem::is_directory(status) ? "a directory"
                    : std::filesystem::is_symlink(status) ? "a link"
                                                          : "no file"),
        "give a name such as report.html");
  }
}

/// Runs of the same name get the paths that the user wrote.
void tell_apart(std::vector<RunData>& runs) {
  std::map<std::string, int> count;
  for (const RunData& run : runs) {
    ++count[run.name];
  }
  for (RunData& run : runs) {
    if (count[run.name] > 1) {
      run.name = run.directory.string();
    }
  }
}

int report(const CommandLine& line, const Variables&) {
  const std::vector<std::filesystem::path> directories(line.arguments.begin(), line.arguments.end());
  const std::string usual = directories.size() == 1 ? (directories.front() / "report.html").string() : "report.html";
  const std::filesystem::path out = line.value("out", usual);
  check_place(out);
  FileSystem& fs = real_file_system();
  auto runs = mapped(directories, [&](const auto& directory) { return read_run(fs, directory); });
  tell_apart(runs);
  const std::string page = report_page(runs, unix_time());
  try {
    write_file(fs, out, page);
  } catch (const IoError& error) {
    if (line.has("out")) {
      throw;
    }
    throw IoError(error.what(), "give another place with --out FILE, such as --out report.html", error.number());
  }
  fmt::print("{}\n", printable(out.string()));
  return 0;
}

}  // namespace

const Command kReportCommand{
    .name = "report",
    .arguments = "RUN...",
    .summary = "write an HTML page with the curves and events of runs",
    .description =
        "Writes one HTML file about the runs in the directories RUN: curves of all metrics over steps, time per phase "
        "and rank, events on a time line, settings. Several runs share each chart. The file needs no network and no "
        "other file.",
    .exit_codes = "0, 2 usage or no run in RUN, 74 the file cannot be written",
    .flags = kFlags,
    .run = report};

}  // namespace lockstep
