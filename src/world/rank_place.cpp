#include "world/rank_place.h"

#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"

namespace lockstep {

std::string to_line(const RankPlace& place) {
  return fmt::format("{}\t{}\t{}", printable(place.host), printable(place.device), place.pid);
}

RankPlace parse_place(std::string_view line) {
  std::vector<std::string> parts = split(line, '\t');
  parts.resize(3);
  return {.host = std::move(parts[0]), .device = std::move(parts[1]), .pid = parse_int(parts[2]).value_or(0)};
}

std::string describe_ranks(const std::vector<RankPlace>& places) {
  std::vector<std::string> lines;
  for (const RankPlace& place : places) {
    lines.push_back(fmt::format("rank {} of {} on host {}, {}, pid {}", lines.size(), places.size(), place.host,
                                place.device, place.pid));
  }
  return join(lines, "\n");
}

std::string summarize_ranks(const std::vector<RankPlace>& places) {
  std::vector<std::string> hosts;  // neighbours in order are one entry
  for (std::size_t first = 0; first < places.size();) {
    std::size_t end = first;
    while (end < places.size() && places[end].host == places[first].host) {
      ++end;
    }
    hosts.push_back(end == first + 1 ? fmt::format("{} (rank {})", places[first].host, first)
                                     : fmt::format("{} (ranks {}-{})", places[first].host, first, end - 1));
    first = end;
  }
  return fmt::format("{} ranks on {}: {}", places.size(), counted(std::ssize(hosts), "host"), join(hosts, ", "));
}

}  // namespace lockstep
