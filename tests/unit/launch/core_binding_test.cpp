#include "launch/core_binding.h"

#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>

namespace lockstep {
namespace {

using Cores = std::vector<int>;
using Shares = std::vector<Cores>;

TEST(CoreBinding, ReadsTheSystemsLists) {
  EXPECT_EQ(parse_core_list("0-3,8"), (Cores{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_core_list("5"), (Cores{5}));
  for (const char* bad : {"", "a", "3-1", "1-", "-1", "0-99999999"}) {
    EXPECT_EQ(parse_core_list(bad), Cores{}) << bad;
  }
}

TEST(CoreBinding, DividesCoresAmongNeighbours) {
  EXPECT_EQ(divide_cores({0, 1, 2, 3}, 2), (Shares{{0, 1}, {2, 3}}));
  EXPECT_EQ(divide_cores({0, 2, 4, 6, 8}, 2), (Shares{{0, 2}, {4, 6, 8}}));
  EXPECT_EQ(divide_cores({3, 4}, 4), (Shares{{3}, {3}, {4}, {4}}));
}

TEST(CoreBinding, TakesTheCoresNearTheGpu) {
  const std::map<std::string, std::string> files = {{"/sys/bus/pci/devices/0000:3b:00.0/numa_node", "0\n"},
                                                    {"/sys/bus/pci/devices/0000:af:00.0/numa_node", "1\n"},
                                                    {"/sys/bus/pci/devices/0000:d8:00.0/numa_node", "-1\n"},
                                                    {"/sys/devices/system/node/node0/cpulist", "0-3\n"},
                                                    {"/sys/devices/system/node/node1/cpulist", "4-7\n"}};
  const ReadText read = [&](const std::string& path) {
    const auto found = files.find(path);
    return found == files.end() ? std::nullopt : std::optional(found->second);
  };
  const std::vector<Gpu> gpus = {
      {.pci_bus_id = "00000000:3B:00.0"}, {.pci_bus_id = "00000000:AF:00.0"}, {.pci_bus_id = "00000000:D8:00.0"}};
  const Cores allowed{1, 2, 3, 4, 5};
  EXPECT_EQ(cores_of_ranks(3, gpus, allowed, read), (Shares{{1, 2, 3}, {4, 5}, allowed}));
  EXPECT_EQ(cores_of_ranks(4, gpus, {0, 1, 2, 3}, read), (Shares{{0}, {1}, {2}, {3}})) << "not a GPU for everyone";
}

TEST(CoreBinding, CountsTheCoresThatALauncherGaveToTheRanks) {
  EXPECT_EQ(threads_of_bound_ranks({{0, 1, 2, 3}, {0, 1, 2, 3}}), std::nullopt) << "not bound";
  EXPECT_EQ(threads_of_bound_ranks({{0, 1, 2, 3}, {4, 5, 6, 7}}), 4) << "each its own";
  EXPECT_EQ(threads_of_bound_ranks({{0, 1}, {0, 1}, {2, 3}, {2, 3}}), 1) << "two share a socket";
  EXPECT_EQ(threads_of_bound_ranks({{0}, {1}, {1}}), 1) << "never none";
}

}  // namespace
}  // namespace lockstep
