// The command line of `lockstep run`: torchrun's flag names, for a fixed set of machines. Torch-free.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/base/variables.h>

#include "cli/command_line.h"

namespace lockstep {

/// Prefix of the variables that may stand for flags, torchrun's too: PET_NNODES for --nnodes.
inline constexpr std::string_view kFlagVariables = "PET_";

/// The value of --nproc-per-node.
enum class RankCount { numbers, automatic, gpu, cpu };

/// torchrun's numbers for the output streams of a rank.
enum class Streams { none = 0, out = 1, err = 2, both = 3 };

/// One value for all ranks of a machine, or one per local rank.
struct StreamsPerRank {
  Streams all = Streams::none;
  std::map<int, Streams> by_local_rank{};
  Streams of(int local_rank) const;
};

struct RunFlags {
  RankCount rank_count = RankCount::numbers;
  std::vector<int> ranks_per_node{1};  ///< one number per machine, for RankCount::numbers
  int nodes = 1;
  int node_rank = 0;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;   ///< 0: any free port
  std::string run_id{};  ///< "": random
  int max_restarts = 0;
  double grace_s = 5;
  std::filesystem::path log_dir{};
  StreamsPerRank redirects{};
  StreamsPerRank tee{};
  std::optional<std::set<int>> shown_local_ranks{};  ///< nullopt: all
  bool bind_numa = false;
  std::vector<std::string> command{};  ///< the program and its arguments
};

/// `line`: the words of kRunCommand. A flag that is not given takes its PET_ variable. Throws: ConfigError with all
/// problems: those of the line, values that do not parse, and options that only torchrun supports.
RunFlags parse_run_flags(const CommandLine& line, const Variables& variables);

}  // namespace lockstep
