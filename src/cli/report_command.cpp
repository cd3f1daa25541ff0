#include "cli/report_command.h"

#include <filesystem>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>

#include "base/text.h"
#include "base/wall_clock.h"
#include "cli/report_page.h"

namespace lockstep {
namespace {

constexpr std::string_view kUsage =
    "usage: lockstep report RUN... [--out FILE]\n\n"
    "Writes one HTML file about the runs in the directories RUN: curves of all metrics over steps, time per phase and\n"
    "rank, events on a time line, settings. Several runs share each chart. The file needs no network and no other\n"
    "file. Without --out it is RUN/report.html of a single run, and report.html here for several.\n\n"
    "exit code: 0, 2 usage or no run in RUN, 74 the file cannot be written\n";

constexpr const char* kHint = "lockstep report RUN... [--out FILE]; see lockstep report --help";

struct Request {
  std::vector<std::filesystem::path> runs{};
  std::filesystem::path out{};
};

Request parse(std::span<const std::string> args) {
  constexpr std::string_view kOut = "--out=";
  Request request;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i].starts_with(kOut)) {
      request.out = args[i].substr(kOut.size());
    } else if (args[i] == "--out") {
      if (++i == args.size()) {
        throw ConfigError("report: --out: found no file", kHint);
      }
      request.out = args[i];
    } else if (args[i].starts_with('-')) {
      throw ConfigError(fmt::format("report: {}: unknown flag", printable(args[i])), kHint);
    } else {
      request.runs.emplace_back(args[i]);
    }
  }
  if (request.runs.empty()) {
    throw ConfigError("report: found no run, expected at least 1 directory", kHint);
  }
  if (request.out.empty()) {
    request.out = request.runs.size() == 1 ? request.runs.front() / "report.html" : "report.html";
  }
  std::error_code ignored;
  const auto status = std::filesystem::symlink_status(request.out, ignored);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {  // it would be replaced
    throw ConfigError(
        fmt::format("report: --out {}: this is {}, expected a new name or a file", printable(request.out.string()),
                    std::filesystem::is_directory(status) ? "a directory"
                    : std::filesystem::is_symlink(status) ? "a link"
                                                          : "no file"),
        "give a name such as report.html");
  }
  return request;
}

}  // namespace

int report_command(std::span<const std::string> args) {
  if (args.size() == 1 && (args[0] == "--help" || args[0] == "-h")) {
    fmt::print("{}", kUsage);
    return 0;
  }
  const Request request = parse(args);
  FileSystem& fs = real_file_system();
  std::vector<RunData> runs;
  for (const auto& directory : request.runs) {
    runs.push_back(read_run(fs, directory));
  }
  write_file(fs, request.out, report_page(runs, unix_time()));
  fmt::print("{}\n", printable(request.out.string()));
  return 0;
}

}  // namespace lockstep
