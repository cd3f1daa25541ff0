#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>

#include "base/json.h"
#include "base/problems.h"
#include "cli/commands.h"
#include "report/record_comparison.h"

namespace lockstep {
namespace {

constexpr FlagRow kFlags[] = {{"json", "", "print one JSON object, which docs/checkpoints.md describes"}};

bool is_same(const RecordComparison& result) { return result.common_steps != 0 && !result.difference; }

Json to_json(const RecordComparison& result) {
  Json json = {{"format", 1}, {"same", is_same(result)}, {"common_steps", result.common_steps}};
  if (result.common_steps != 0) {
    json["first_step"] = result.first_step;
    json["last_step"] = result.last_step;
  }
  if (const auto& difference = result.difference) {
    Json fields = Json::object();
    for (const auto& [name, a, b] : difference->fields) {
      fields[name] = {a, b};
    }
    json["difference"] = {
        {"step", difference->step}, {"rank", or_null(difference->rank)}, {"fields", std::move(fields)}};
  }
  return json;
}

std::string to_text(const RecordComparison& result) {
  if (result.common_steps == 0) {
    return "different: no step was recorded in both";
  }
  if (!result.difference) {
    return fmt::format("same: {} steps, {} to {}", result.common_steps, result.first_step, result.last_step);
  }
  const RecordDifference& difference = *result.difference;
  std::string text = fmt::format("different: step {}, {} (after {} equal steps)", difference.step,
                                 difference.rank ? fmt::format("rank {}", *difference.rank) : "all ranks together",
                                 result.common_steps - 1);
  for (const auto& [name, a, b] : difference.fields) {
    text += fmt::format("\n  {}: {} and {}", name, a, b);
  }
  // Other samples are no matter of rounding.
  const bool may_be_rounding = std::ranges::all_of(
      difference.fields, [](const auto& field) { return field.name == "parameters" || field.name == "loss"; });
  if (!difference.rank && may_be_rounding) {
    text += "\n  another number of ranks adds in another order: differences of rounding are expected";
  }
  return text;
}

// `lockstep compare A`
void print_chain(FileSystem& fs, const std::string& path, bool json) {
  const RecordChain chain = chain_of(read_run_records(fs, path));
  const std::string hash = fmt::format("{:016x}", chain.hash);
  fmt::print("{}\n", json ? dump_json(Json{
                                {"format", 1}, {"steps", chain.steps}, {"last_step", chain.last_step}, {"hash", hash}})
                          : fmt::format("{} after {} steps, the last one is {}", hash, chain.steps, chain.last_step));
}

/// Throws: ConfigError that names all paths without records.
std::vector<RunRecords> read_all(FileSystem& fs, const std::vector<std::string>& paths) {
  std::vector<RunRecords> runs;
  std::vector<Problem> problems;
  for (const std::string& path : paths) {
    note_problems(problems, [&] { runs.push_back(read_run_records(fs, path)); });
  }
  throw_if_any(std::move(problems));
  return runs;
}

int compare(const CommandLine& line, const Variables&) {
  FileSystem& fs = real_file_system();
  if (line.arguments.size() == 1) {
    print_chain(fs, line.arguments[0], line.has("json"));
    return 0;
  }
  const std::vector<RunRecords> runs = read_all(fs, line.arguments);
  const RecordComparison result = compare_records(runs[0], runs[1]);
  fmt::print("{}\n", line.has("json") ? dump_json(to_json(result)) : to_text(result));
  return is_same(result) ? 0 : 1;
}

}  // namespace

const Command kCompareCommand{
    .name = "compare",
    .arguments = "A [B]",
    .summary = "find the first difference of two runs",
    .description =
        "Compares two runs that were started with --report.record. A and B are run directories or single files of "
        "records. Prints the first step and rank in which they differ: epoch, samples and their order, bits of the "
        "loss, or parameters after the step, and whether one of them left out the update or went back to weights of "
        "before. With different numbers of ranks it compares epoch, global batch and parameters. With A alone it "
        "prints a hash of all steps. Equal runs with the same number of ranks have the same hash; with another number "
        "sums are rounded differently, and the hash is the same only if all sums are exact.",
    .exit_codes = "0 all common steps are equal, 1 different or no common step, 2 usage, 65 damaged records",
    .flags = kFlags,
    .run = compare};

}  // namespace lockstep
