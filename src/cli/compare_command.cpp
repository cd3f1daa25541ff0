#include "cli/compare_command.h"

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/text.h"
#include "report/record_comparison.h"

namespace lockstep {
namespace {

constexpr std::string_view kUsage =
    "usage: lockstep compare A B\n\n"
    "A and B are directories of runs that were started with --report.record, or single files of records. Names the "
    "first\n"
    "step and rank in which they differ: epoch, samples and their order, bits of the loss, parameters after the step.\n"
    "Runs of different numbers of ranks are compared in what does not depend on it: epoch, global batch, "
    "parameters.\n\n"
    "exit code: 0 same in every step that both recorded, 1 different or no step in common, 2 usage, 65 damaged "
    "records\n";

}  // namespace

int compare_command(std::span<const std::string> args) {
  if (args.size() == 1 && (args[0] == "--help" || args[0] == "-h")) {
    fmt::print("{}", kUsage);
    return 0;
  }
  if (args.size() != 2) {
    throw ConfigError(fmt::format("compare: found {} arguments, expected 2", args.size()),
                      "lockstep compare A B; see lockstep compare --help");
  }
  FileSystem& fs = real_file_system();
  const RecordComparison result = compare_records(read_run_records(fs, args[0]), read_run_records(fs, args[1]));
  if (result.common_steps == 0) {
    fmt::print("different: no step was recorded in both\n");
    return 1;
  }
  if (!result.difference) {
    fmt::print("same: {} steps, {} to {}\n", result.common_steps, result.first_step, result.last_step);
    return 0;
  }
  const RecordDifference& difference = *result.difference;
  fmt::print("different: step {}, {} (after {} equal steps)\n", difference.step,
             difference.rank ? fmt::format("rank {}", *difference.rank) : "all ranks together",
             result.common_steps - 1);
  for (const std::string& field : difference.fields) {
    fmt::print("  {}\n", field);
  }
  return 1;
}

}  // namespace lockstep
