#include "cli/compare_command.h"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/json.h"
#include "report/record_comparison.h"

namespace lockstep {
namespace {

constexpr std::string_view kUsage =
    "usage: lockstep compare [--json] A [B]\n\n"
    "Compares two runs that were started with --report.record. A and B are run directories or single files of "
    "records.\n"
    "Prints the first step and rank in which they differ: epoch, samples and their order, bits of the loss, or\n"
    "parameters after the step, and whether one of them left out the update or went back to weights of before. With\n"
    "different numbers of ranks it compares epoch, global batch and parameters. With A alone it prints a hash of all\n"
    "steps, which is the same for equal runs on any number of ranks.\n"
    "With --json it prints one JSON object, which docs/checkpoints.md describes.\n\n"
    "exit code: 0 all common steps are equal, 1 different or no common step, 2 usage, 65 damaged records\n";

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
    json["difference"] = {{"step", difference->step},
                          {"rank", difference->rank ? Json(*difference->rank) : Json()},
                          {"fields", std::move(fields)}};
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
  return text;
}

}  // namespace

// compare A
void print_chain(FileSystem& fs, const std::string& path, bool json) {
  const RecordChain chain = chain_of(read_run_records(fs, path));
  const std::string hash = fmt::format("{:016x}", chain.hash);
  fmt::print("{}\n", json ? dump_json(Json{
                                {"format", 1}, {"steps", chain.steps}, {"last_step", chain.last_step}, {"hash", hash}})
                          : fmt::format("{} after {} steps, the last one is {}", hash, chain.steps, chain.last_step));
}

int compare_command(std::span<const std::string> args) {
  if (args.size() == 1 && (args[0] == "--help" || args[0] == "-h")) {
    fmt::print("{}", kUsage);
    return 0;
  }
  std::vector<std::string> words(args.begin(), args.end());
  const bool json = std::erase(words, "--json") != 0;
  if (words.empty() || words.size() > 2) {
    throw ConfigError(fmt::format("compare: found {} arguments, expected 1 or 2", words.size()),
                      "lockstep compare [--json] A [B]; see lockstep compare --help");
  }
  FileSystem& fs = real_file_system();
  if (words.size() == 1) {
    print_chain(fs, words[0], json);
    return 0;
  }
  const RecordComparison result = compare_records(read_run_records(fs, words[0]), read_run_records(fs, words[1]));
  fmt::print("{}\n", json ? dump_json(to_json(result)) : to_text(result));
  return is_same(result) ? 0 : 1;
}

}  // namespace lockstep
