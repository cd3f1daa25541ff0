#include "plan/rank_shares.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/fake_hardware.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

Identity on_nodes(int nodes) {
  return {.world_size = nodes, .nodes = nodes, .starts_ranks = true, .launcher = "Slurm"};
}

TEST(RankShares, DivideTheGlobalBatch) {
  const Plan plan = resolve({.nprocs = 3, .global_batch_size = 32}, no_gpu(), std::nullopt);
  const auto shares = rank_shares(plan);
  ASSERT_EQ(shares.size(), 3U);
  EXPECT_EQ(shares[0].samples, 11);
  EXPECT_EQ(shares[1].samples, 11);
  EXPECT_EQ(shares[2].samples, 10);
  EXPECT_EQ(shares[2].local_rank, 2);
}

TEST(RankShares, CountTheRanksOfEqualNodes) {
  const Plan plan = resolve({.devices = "0,2"}, eight_gpus(), on_nodes(3));
  const auto shares = rank_shares(plan);
  ASSERT_EQ(shares.size(), 6U);
  EXPECT_EQ(shares[5].node, 2);
  EXPECT_EQ(shares[5].local_rank, 1);
  EXPECT_EQ(to_string(shares[5].device.id), "cuda:2");
  EXPECT_EQ(shares[5].samples, 32);
}

TEST(RankShares, GiveTheFirstNodesOneMoreIfTheDivisionHasARest) {
  const auto shares = rank_shares(resolve({.nprocs = 4}, eight_gpus(), on_nodes(3)));
  ASSERT_EQ(shares.size(), 4U);
  EXPECT_EQ(shares[1].node, 0);
  EXPECT_EQ(shares[2].node, 1);
  EXPECT_EQ(shares[3].node, 2);
  EXPECT_EQ(to_string(shares[3].device.id), "cuda:0");
}

TEST(RankShares, AreUnknownIfNodesDiffer) {
  Identity identity = on_nodes(2);
  identity.ranks_per_node = {1, 3};
  EXPECT_THAT(rank_shares(resolve({.devices = 1}, eight_gpus(), identity)), IsEmpty());
}

TEST(DryRunText, HasARowPerRankOfRanksThatAreNotStartedYet) {
  const Plan two = resolve({.nprocs = 2}, no_gpu(), std::nullopt);
  EXPECT_EQ(dry_run_text(two, std::nullopt), describe(two) +
                                                 "\nrank  node  local rank  device  samples per step\n"
                                                 "0     0     0           cpu     32\n"
                                                 "1     0     1           cpu     32\n");
  const Plan one = resolve({}, no_gpu(), std::nullopt);
  EXPECT_EQ(dry_run_text(one, std::nullopt), describe(one));
  const Identity started = launched(1, 2);
  const Plan of_torchrun = resolve({}, no_gpu(), started);
  EXPECT_EQ(dry_run_text(of_torchrun, started), describe(of_torchrun));
}

TEST(DryRunText, StaysShort) {
  const Plan plan = resolve({}, eight_gpus(), on_nodes(9));
  EXPECT_THAT(dry_run_text(plan, on_nodes(9)), HasSubstr("\n... and 8 more ranks\n"));
  const Plan smaller = resolve({}, eight_gpus(), on_nodes(8));
  EXPECT_THAT(dry_run_text(smaller, on_nodes(8)), Not(HasSubstr("more ranks")));
}

}  // namespace
}  // namespace lockstep
