#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>

#include "base/json.h"
#include "base/mapped.h"
#include "base/problems.h"
#include "base/text.h"
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

/// "records-1.bin, records-2.bin, records-3.bin, ..."
std::string missing_files(const RunRecords& run) { return join_first(mapped(run.missing, record_file_name), 3); }

/// A line for each run without the files of all ranks.
std::string not_compared_text(const std::vector<RunRecords>& runs, const std::vector<std::string>& paths) {
  std::string text;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (const std::vector<int>& ranks = runs[i].missing; !ranks.empty()) {
      text += fmt::format("\n  not compared: {} {}, because {} has no {}", ranks.size() == 1 ? "rank" : "ranks",
                          format_ranges(ranks), printable(paths[i]), missing_files(runs[i]));
    }
  }
  return text;
}

// `lockstep compare A`
void print_chain(FileSystem& fs, const std::string& path, bool json) {
  const RunRecords run = read_run_records(fs, path);
  const RecordChain chain = chain_of(run);
  if (chain.steps == 0) {
    throw DataError(fmt::format("{}: not all ranks have recorded its first step{}", path,
                                run.missing.empty() ? "" : ": it has no " + missing_files(run)),
                    "give the directory with the records-<rank>.bin of all ranks; with two runs, lockstep compare A B "
                    "compares what both have");
  }
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
  if (line.has("json")) {
    Json json = to_json(result);
    std::vector<int> missing;
    std::ranges::set_union(runs[0].missing, runs[1].missing, std::back_inserter(missing));
    if (!missing.empty()) {
      json["not_compared"] = std::move(missing);
    }
    fmt::print("{}\n", dump_json(json));
  } else {
    fmt::print("{}{}\n", to_text(result), not_compared_text(runs, line.arguments));
  }
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
    .exit_codes =
        "0 all common steps are equal, 1 different or no common step, 2 usage, 65 damaged or incomplete records",
    .flags = kFlags,
    .run = compare};

}  // namespace lockstep
