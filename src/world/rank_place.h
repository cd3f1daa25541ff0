// Where each rank runs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct RankPlace {
  std::string host{};
  std::string device{};  ///< "CPU", "cuda:1 NVIDIA H100 GPU-1234"
  std::int64_t pid = 0;
};

/// One line of text, and back.
std::string to_line(const RankPlace& place);
RankPlace parse_place(std::string_view line);

/// "rank 1 of 4 on host a, cuda:1 NVIDIA H100 GPU-1234, pid 4321": a line per rank.
std::string describe_ranks(const std::vector<RankPlace>& places);
/// "64 ranks on 8 hosts: a (ranks 0-7), b (ranks 8-15), ..."
std::string summarize_ranks(const std::vector<RankPlace>& places);

}  // namespace lockstep
