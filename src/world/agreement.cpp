#include "world/agreement.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include <ATen/Parallel.h>
#include <torch/headeronly/version.h>

#include <lockstep/base/error.h>
#include <lockstep/config/config_io.h>
#include <lockstep/version.h>

#include "base/mapped.h"
#include "base/text.h"
#include "environment/build_info.h"
#include "world/process_group.h"
#include "world/warn_on_main.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

std::string line_of(const std::vector<std::string>& lines, std::size_t line) {
  return line < lines.size() && !lines[line].empty() ? lines[line] : std::string("nothing");
}

/// Compares values that are not all equal.
Disagreement odd_one_out(const std::vector<std::string>& values) {
  std::map<std::string_view, std::size_t> counts;
  for (const auto& value : values) {
    ++counts[value];
  }
  const auto most =
      std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const bool majority = 2 * most->second > values.size();
  Disagreement result;
  result.expected = majority ? std::string(most->first) : values.front();
  result.others = majority ? fmt::format("{} of {} ranks have", most->second, values.size()) : "rank 0 has";
  const auto odd = std::find_if(values.begin(), values.end(), [&](const auto& v) { return v != result.expected; });
  result.rank = static_cast<std::size_t>(odd - values.begin());
  result.found = *odd;
  return result;
}

std::string facts(const TrainConfig& config) {
  std::vector<std::string> lines{
      fmt::format("program build {}", program_build_id()),
      fmt::format("lockstep {} build {}", LOCKSTEP_VERSION,
                  build_id_of(reinterpret_cast<const void*>(&agree_at_start))),
      fmt::format("LibTorch {} build {}", TORCH_VERSION,
                  build_id_of(reinterpret_cast<const void*>(&at::get_num_threads))),
  };
  for (const auto& [name, value] : config_values(config)) {
    if (ranks_agree_on(name)) {
      lines.push_back(fmt::format("{} = {}", name, value));
    }
  }
  if (config.backend == Backend::nccl) {  // after the backend itself: ranks are compared line by line
    lines.push_back(fmt::format("NCCL {}", nccl_version()));
  }
  return join(lines, "\n");
}

// NCCL hangs if two ranks use one GPU; Gloo works at half the speed.
void check_gpus(const std::vector<std::string>& gpus, Backend backend, const World& world) {
  std::map<std::string_view, std::size_t> owners;
  for (std::size_t rank = 0; rank < gpus.size(); ++rank) {
    const auto [other, first] = owners.emplace(gpus[rank], rank);
    if (gpus[rank].empty() || first) {
      continue;
    }
    const std::string what =
        fmt::format("ranks {} and {} use one GPU ({})", other->second, rank, printable(gpus[rank]));
    if (backend == Backend::nccl) {
      throw CommError(what,
                      "give every rank a GPU of its own (--devices, --nprocs, CUDA_VISIBLE_DEVICES), or use "
                      "--backend gloo",
                      ExitCode::usage);
    }
    warn_on_main(world, what);
  }
}

}  // namespace

void throw_disagreement(const Disagreement& difference, const World& world, std::string_view what, std::string hint) {
  throw_about_rank(difference.rank, world,
                   CommError(fmt::format("rank {} {} {}, {} {}", difference.rank, what, printable(difference.found),
                                         difference.others, printable(difference.expected)),
                             std::move(hint), ExitCode::disagree));
}

std::optional<Disagreement> find_disagreement(const std::vector<std::string>& texts) {
  std::vector<std::vector<std::string>> ranks;
  std::size_t longest = 0;
  for (const auto& text : texts) {
    ranks.push_back(split(text, '\n'));
    longest = std::max(longest, ranks.back().size());
  }
  for (std::size_t line = 0; line < longest; ++line) {
    const auto values = mapped(ranks, [&](const auto& lines) { return line_of(lines, line); });
    if (std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) != values.end()) {
      Disagreement result = odd_one_out(values);
      result.line = line;
      return result;
    }
  }
  return std::nullopt;
}

std::optional<Disagreement> find_disagreement(std::string_view mine, World& world) {
  return WorldAccess::all_equal(world, mine) ? std::nullopt : find_disagreement(world.gather(mine));
}

std::vector<RankPlace> agree_at_start(const TrainConfig& config, std::string_view gpu, World& world,
                                      const RankPlace& place) {
  std::vector<std::string> gpus;
  std::vector<RankPlace> places;
  if (const auto difference = find_disagreement(facts(config), world)) {
    throw_disagreement(*difference, world, "has",
                       "start every rank with the same program, flags, files and LOCKSTEP_CFG_ variables");
  }
  for (const std::string& theirs : world.gather(fmt::format("{}\n{}", gpu, to_line(place)))) {
    const auto end = theirs.find('\n');
    gpus.push_back(theirs.substr(0, end));
    places.push_back(parse_place(theirs.substr(end + 1)));
  }
  check_gpus(gpus, config.backend, world);
  return places;
}

}  // namespace lockstep
