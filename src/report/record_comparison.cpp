#include "report/record_comparison.h"

#include <algorithm>
#include <bit>
#include <map>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/splitmix.h"
#include "base/text.h"

namespace lockstep {
namespace {

using Path = std::filesystem::path;
using Entry = RankRecords::Entry;
using Step = std::map<int, const Entry*>;  // by rank

std::vector<Path> record_files(FileSystem& fs, const Path& directory) {
  std::vector<Path> files;
  for (const std::string& name : fs.list(directory)) {
    constexpr std::string_view kPrefix = "records-";
    constexpr std::string_view kSuffix = ".bin";
    if (name.starts_with(kPrefix) && name.ends_with(kSuffix) && name.size() > kPrefix.size() + kSuffix.size()) {
      const std::string_view number =
          std::string_view(name).substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
      if (const auto rank = parse_int(number); rank && fmt::format("{}", *rank) == number) {
        files.push_back(directory / name);
      }
    }
  }
  return files;
}

std::vector<int> ranks_without_file(const std::vector<RankRecords>& found) {
  int ranks = 0;
  for (const RankRecords& rank : found) {
    for (const Entry& entry : rank.entries) {
      ranks = std::max(ranks, entry.ranks);
    }
  }
  std::vector<int> missing;
  for (int rank = 0; rank < ranks; ++rank) {
    if (std::ranges::find(found, rank, &RankRecords::rank) == found.end()) {
      missing.push_back(rank);
    }
  }
  return missing;
}

std::map<std::int64_t, Step> by_step(const RunRecords& run) {
  std::map<std::int64_t, Step> steps;
  for (const RankRecords& rank : run.ranks) {
    for (const Entry& entry : rank.entries) {
      steps[entry.record.step][rank.rank] = &entry;
    }
  }
  return steps;
}

std::string loss_text(std::uint64_t bits) { return fmt::format("{} ({:016x})", std::bit_cast<double>(bits), bits); }
std::string digest_text(std::uint64_t digest) { return fmt::format("{:016x}", digest); }

std::string update_text(const StepRecord& record) {
  return fmt::format("{}{}", record.rolled_back ? "weights of before put back, then " : "",
                     record.left_out ? "left out" : "made");
}

// Differences between two records; ignores fields that one of them does not have.
std::vector<RecordDifference::Field> differing(const StepRecord& a, const StepRecord& b) {
  std::vector<RecordDifference::Field> fields;
  const auto compare = [&](const char* name, const auto& left, const auto& right, auto&& text) {
    if (left && right && *left != *right) {
      fields.push_back({name, text(*left), text(*right)});
    }
  };
  if (a.epoch != b.epoch) {
    fields.push_back({"epoch", std::to_string(a.epoch), std::to_string(b.epoch)});
  }
  if (a.samples != b.samples) {
    fields.push_back({"samples", std::to_string(a.samples), std::to_string(b.samples)});
  } else {
    compare("samples", a.sample_digest, b.sample_digest, digest_text);
  }
  compare("loss", a.loss_bits, b.loss_bits, loss_text);
  compare("parameters", a.parameter_digest, b.parameter_digest, digest_text);
  if (!fields.empty() && update_text(a) != update_text(b)) {  // the reason
    fields.push_back({"update", update_text(a), update_text(b)});
  }
  return fields;
}

int ranks_of(const Step& step) { return step.begin()->second->ranks; }
bool is_complete(const Step& step) { return static_cast<int>(step.size()) == ranks_of(step); }

// The fields that do not depend on the number of ranks.
StepRecord global(const Step& step) {
  StepRecord sum = step.begin()->second->record;
  sum.loss_bits.reset();
  for (auto rank = std::next(step.begin()); rank != step.end(); ++rank) {
    const StepRecord& record = rank->second->record;
    sum.samples += record.samples;
    if (sum.sample_digest && record.sample_digest) {
      *sum.sample_digest += *record.sample_digest;
    } else {
      sum.sample_digest.reset();
    }
  }
  return sum;
}

// nullopt: the runs have no common fields; else the differences, possibly none.
std::optional<RecordDifference> compare_step(std::int64_t step, const Step& a, const Step& b) {
  if (ranks_of(a) != ranks_of(b)) {
    return is_complete(a) && is_complete(b)
               ? std::optional(RecordDifference{.step = step, .fields = differing(global(a), global(b))})
               : std::nullopt;
  }
  std::optional<RecordDifference> result;
  for (const auto& [rank, entry] : a) {
    if (const auto other = b.find(rank); other != b.end()) {
      result = {.step = step, .rank = rank, .fields = differing(entry->record, other->second->record)};
      if (!result->fields.empty()) {
        break;
      }
    }
  }
  return result;
}

}  // namespace

RunRecords read_run_records(FileSystem& fs, const Path& path) {
  std::error_code ignored;
  const bool is_directory = std::filesystem::is_directory(path, ignored);
  const std::vector<Path> files = is_directory ? record_files(fs, path) : std::vector{path};
  if (files.empty() || !fs.exists(files.front())) {
    throw ConfigError(fmt::format("{}: found no {}", path.string(), is_directory ? "records-<rank>.bin" : "such file"),
                      "give the directory of a run that was started with --report.record");
  }
  RunRecords run;
  for (const Path& file : files) {
    run.ranks.push_back(read_records(fs, file));
  }
  std::ranges::sort(run.ranks, {}, &RankRecords::rank);
  if (run.ranks.front().rank == 0) {
    std::map<std::int64_t, int> ranks_at;
    for (const Entry& entry : run.ranks.front().entries) {
      ranks_at[entry.record.step] = entry.ranks;
    }
    const std::int64_t last = ranks_at.empty() ? 0 : ranks_at.rbegin()->first;
    for (RankRecords& rank : run.ranks) {
      const bool has_left = run.ranks.front().ranks <= rank.rank;  // what it has after `last` is abandoned
      std::erase_if(rank.entries, [&](const Entry& entry) {
        const auto found = ranks_at.find(entry.record.step);
        return found != ranks_at.end() ? found->second <= rank.rank : has_left && entry.record.step > last;
      });
    }
  }
  if (is_directory) {
    run.missing = ranks_without_file(run.ranks);
  }
  return run;
}

RecordComparison compare_records(const RunRecords& a, const RunRecords& b) {
  const auto steps_a = by_step(a);
  const auto steps_b = by_step(b);
  RecordComparison result;
  for (const auto& [step, records] : steps_a) {
    const auto other = steps_b.find(step);
    auto compared = other == steps_b.end() ? std::nullopt : compare_step(step, records, other->second);
    if (!compared) {
      continue;
    }
    result.first_step = result.common_steps++ == 0 ? step : result.first_step;
    result.last_step = step;
    if (!compared->fields.empty()) {
      result.difference = std::move(compared);
      break;
    }
  }
  return result;
}

RecordChain chain_of(const RunRecords& run) {
  RecordChain chain;
  for (const auto& [step, records] : by_step(run)) {
    if (!is_complete(records)) {
      break;
    }
    const StepRecord record = global(records);
    for (const std::uint64_t value : {static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(record.epoch),
                                      static_cast<std::uint64_t>(record.samples), record.sample_digest.value_or(0),
                                      record.parameter_digest.value_or(0)}) {
      chain.hash = mix(splitmix(chain.hash) + value);
    }
    ++chain.steps;
    chain.last_step = step;
  }
  return chain;
}

}  // namespace lockstep
