#include <string>

#include <fcntl.h>
#include <gmock/gmock.h>

#include <lockstep/environment/identity.h>

#include "base/descriptor.h"
#include "ipc/channel.h"
#include "support/launch_environment.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

Values torchrun() {
  return {{"RANK", "3"},
          {"WORLD_SIZE", "4"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "2"},
          {"GROUP_RANK", "1"},
          {"GROUP_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "node0"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
          {"TORCHELASTIC_RESTART_COUNT", "2"},
          {"TORCHELASTIC_RUN_ID", "abc"}};
}

TEST(Identity, IsEmptyWithoutRankVariables) {
  EXPECT_FALSE(detect_identity(Variables{}));
  EXPECT_FALSE(detect_identity(Variables({{"MASTER_ADDR", "somewhere"}, {"MASTER_PORT", "1"}})));
}

TEST(Identity, ReadsTorchrun) {
  const auto identity = detect_identity(Variables(torchrun()));
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->launcher, "torchrun");
  EXPECT_EQ(identity->rank, 3);
  EXPECT_EQ(identity->world_size, 4);
  EXPECT_EQ(identity->local_rank, 1);
  EXPECT_EQ(identity->local_world_size, 2);
  EXPECT_EQ(identity->node, 1);
  EXPECT_EQ(identity->nodes, 2);
  EXPECT_EQ(identity->master_addr, "node0");
  EXPECT_EQ(identity->master_port, 29500);
  EXPECT_TRUE(identity->agent_store);
  EXPECT_EQ(identity->restart, 2);
  EXPECT_EQ(identity->run_id, "abc");
  EXPECT_EQ(identity->control_fd, -1);
  EXPECT_EQ(identity->variables.front(), "RANK");
  EXPECT_EQ(identity->variables.size(), torchrun().size());
}

TEST(Identity, TakesOnlyTheLiteralTrueForAnAgentStore) {
  for (const char* other : {"False", "true", "1"}) {
    const auto identity = detect_identity(Variables(with(torchrun(), {{"TORCHELASTIC_USE_AGENT_STORE", other}})));
    EXPECT_FALSE(identity->agent_store) << other;
  }
  EXPECT_FALSE(detect_identity(Variables(with(torchrun(), {{"TORCHELASTIC_USE_AGENT_STORE", {}}})))->agent_store);
}

TEST(Identity, ReadsOurOwnLauncher) {
  const Values values = with(torchrun(), {{"RANK", "1"},
                                          {"WORLD_SIZE", "2"},
                                          {"GROUP_RANK", "0"},
                                          {"GROUP_WORLD_SIZE", "1"},
                                          {"LOCKSTEP_RUN_ID", "f00"},
                                          {"LOCKSTEP_CONTROL_FD", "3"},
                                          {"LOCKSTEP_DEVICES", "1,3"}});
  const auto identity = detect_identity(Variables(values));
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->launcher, "lockstep");
  EXPECT_EQ(identity->nodes, 1);
  EXPECT_EQ(identity->run_id, "f00");
  EXPECT_EQ(identity->control_fd, 3);
  EXPECT_EQ(identity->store_fd, -1);
  EXPECT_EQ(identity->devices, "1,3");
  EXPECT_FALSE(identity->agent_store);
  EXPECT_EQ(identity->restart, 0);
  EXPECT_EQ(detect_identity(Variables(with(values, {{"LOCKSTEP_STORE_FD", "4"}})))->store_fd, 4);
}

TEST(Identity, IsNotThatOfTheRankThatStartedThisProcess) {
  const Values inherited = with(torchrun(), {{"LOCKSTEP_RUN_ID", "abc"}, {"LOCKSTEP_LAUNCH_ID", "5"}});
  EXPECT_FALSE(detect_identity(Variables(inherited)));
  const auto other = detect_identity(Variables(with(inherited, {{"TORCHELASTIC_RUN_ID", "none"}})));
  ASSERT_TRUE(other) << "the rank started torchrun";
  EXPECT_EQ(other->launcher, "torchrun");
  const auto mpi = detect_identity(Variables(with(inherited, {{"OMPI_COMM_WORLD_RANK", "1"},
                                                              {"OMPI_COMM_WORLD_SIZE", "2"},
                                                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}})));
  ASSERT_TRUE(mpi) << "the rank started mpirun";
  EXPECT_EQ(mpi->launcher, "Open MPI");
}

TEST(Identity, IsThatOfAnOrdinaryRankIfAScriptHasTakenTheDescriptors) {
  const auto identity_with = [](int control_fd) {
    return detect_identity(Variables(with(torchrun(), {{"RANK", "1"},
                                                       {"WORLD_SIZE", "2"},
                                                       {"GROUP_RANK", "0"},
                                                       {"GROUP_WORLD_SIZE", "1"},
                                                       {"LOCKSTEP_CONTROL_FD", std::to_string(control_fd)},
                                                       {"LOCKSTEP_PROGRESS_FD", "4"}})));
  };
  const Descriptor file(open("/dev/null", O_WRONLY | O_CLOEXEC));
  constexpr int kClosed = 1 << 20;
  for (const int fd : {file.get(), kClosed}) {
    const auto identity = identity_with(fd);
    ASSERT_TRUE(identity);
    EXPECT_FALSE(identity->is_supervised());
    EXPECT_EQ(identity->progress_fd, -1);
    EXPECT_EQ(identity->rank, 1);
    EXPECT_THAT(identity->hints, ElementsAre(HasSubstr("close_fds=False")));
  }
  const auto [supervisor, rank] = make_channel_pair();
  const auto identity = identity_with(rank.fd());
  EXPECT_EQ(identity->control_fd, rank.fd());
  EXPECT_EQ(identity->progress_fd, 4);
  EXPECT_THAT(identity->hints, IsEmpty());
}

TEST(Identity, ReadsVariablesSetByHand) {
  const auto identity = detect_identity(Variables({{"RANK", "5"},
                                                   {"WORLD_SIZE", "6"},
                                                   {"LOCAL_RANK", "1"},
                                                   {"LOCAL_WORLD_SIZE", "2"},
                                                   {"MASTER_ADDR", "10.0.0.1"},
                                                   {"MASTER_PORT", "1234"}}));
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->launcher, "environment");
  EXPECT_EQ(identity->node, 2);
  EXPECT_EQ(identity->nodes, 3);
  EXPECT_EQ(identity->run_id, "");
}

TEST(Identity, NeedsLittleOfASingleRank) {
  const auto identity = detect_identity(Variables({{"RANK", "0"}, {"WORLD_SIZE", "1"}}));
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->local_rank, 0);
  EXPECT_EQ(identity->local_world_size, 1);
  EXPECT_EQ(identity->nodes, 1);
  EXPECT_EQ(identity->master_port, 0);
}

TEST(Identity, NamesEveryMissingVariable) {
  EXPECT_THAT(problems({{"RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}}),
              ElementsAre(HasSubstr("WORLD_SIZE is not set"), HasSubstr("LOCAL_RANK is not set"),
                          HasSubstr("MASTER_ADDR is not set"), HasSubstr("MASTER_PORT is not set")));
  EXPECT_THAT(problems({{"LOCAL_RANK", "0"}, {"RANK", "0"}, {"WORLD_SIZE", "2"}}),
              ElementsAre(HasSubstr("MASTER_ADDR is not set"), HasSubstr("MASTER_PORT is not set")));
  EXPECT_THAT(problems({{"RANK", "0"}}),
              ElementsAre(HasSubstr("WORLD_SIZE is not set"), HasSubstr("MASTER_ADDR is not set"),
                          HasSubstr("MASTER_PORT is not set")));
  EXPECT_THAT(problems({{"WORLD_SIZE", "1"}}), ElementsAre(HasSubstr("RANK is not set")));
  EXPECT_THAT(problems({{"LOCAL_RANK", "0"}}), testing::Contains(HasSubstr("RANK is not set")));
  EXPECT_THAT(problems({{"LOCKSTEP_CONTROL_FD", "3"}}), testing::Contains(HasSubstr("RANK is not set")));
}

TEST(Identity, RefusesEachMalformedVariableWithItsValue) {
  EXPECT_THAT(problems(torchrun()), IsEmpty());  // the vectors below change one variable of a good set
  const std::pair<const char*, const char*> cases[] = {
      {"RANK", "-1"},
      {"RANK", "one"},
      {"RANK", ""},
      {"RANK", " 1"},
      {"RANK", "1 "},
      {"RANK", "1.0"},
      {"RANK", "0x1"},
      {"RANK", "+1"},
      {"RANK", "99999999999"},
      {"WORLD_SIZE", "0"},
      {"LOCAL_RANK", "x"},
      {"LOCAL_WORLD_SIZE", "0"},
      {"GROUP_RANK", "-2"},
      {"GROUP_WORLD_SIZE", "0"},
      {"MASTER_PORT", "0"},
      {"MASTER_PORT", "65536"},
      {"MASTER_ADDR", ""},
      {"TORCHELASTIC_RESTART_COUNT", "x"},
  };
  for (const auto& [name, value] : cases) {
    EXPECT_THAT(problems(with(torchrun(), {{name, value}})),
                ElementsAre(HasSubstr(std::string(name) + "=\"" + value + '"')))
        << name << '=' << value;
  }
}

TEST(Identity, RefusesContradictionsWithBothValues) {
  struct Case {
    std::map<std::string, std::optional<std::string>> changes;
    const char* expected;
  };
  const Case cases[] = {
      {{{"RANK", "4"}}, "RANK=4 and WORLD_SIZE=4: expected 0 to 3"},
      {{{"RANK", "4"}, {"GROUP_RANK", {}}, {"GROUP_WORLD_SIZE", {}}}, "RANK=4 and WORLD_SIZE=4: expected 0 to 3"},
      {{{"LOCAL_RANK", "2"}}, "LOCAL_RANK=2 and LOCAL_WORLD_SIZE=2: expected 0 to 1"},
      {{{"GROUP_RANK", "2"}}, "GROUP_RANK=2 and GROUP_WORLD_SIZE=2: expected 0 to 1"},
      {{{"LOCAL_WORLD_SIZE", "8"}}, "LOCAL_WORLD_SIZE=8 and WORLD_SIZE=4 on 2 nodes: expected 1 to 3"},
      {{{"LOCAL_WORLD_SIZE", "4"}}, "LOCAL_WORLD_SIZE=4 and WORLD_SIZE=4 on 2 nodes: expected 1 to 3"},
      {{{"LOCAL_WORLD_SIZE", "8"}, {"GROUP_WORLD_SIZE", {}}, {"GROUP_RANK", {}}},
       "LOCAL_WORLD_SIZE=8 and WORLD_SIZE=4: expected 1 to 4"},
      {{{"GROUP_WORLD_SIZE", "1"}, {"GROUP_RANK", "0"}}, "LOCAL_WORLD_SIZE=2 and WORLD_SIZE=4 on 1 node: expected 4"},
      {{{"GROUP_WORLD_SIZE", "9"}}, "LOCAL_WORLD_SIZE=2 and WORLD_SIZE=4 on 9 nodes: expected a rank on every node"},
      {{{"RANK", "3"}, {"WORLD_SIZE", "2"}, {"GROUP_RANK", {}}, {"GROUP_WORLD_SIZE", {}}},
       "RANK=3 and WORLD_SIZE=2: expected 0 to 1"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(problems(with(torchrun(), c.changes)), ElementsAre(HasSubstr(c.expected)));
  }
}

// As torchrun starts them: 2 + 1, 4 + 2.
TEST(Identity, AcceptsUnequalNodes) {
  const Values second =
      with(torchrun(), {{"RANK", "2"}, {"WORLD_SIZE", "3"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}});
  for (const Values& values :
       {second, with(second, {{"LOCKSTEP_CONTROL_FD", "3"}}), with(second, {{"TORCHELASTIC_RUN_ID", {}}})}) {
    const auto identity = identity_of(values);
    EXPECT_EQ(identity->local_world_size, 1);
    EXPECT_EQ(identity->node, 1);
    EXPECT_EQ(identity->nodes, 2);
    EXPECT_FALSE(identity->node_is_guess || identity->local_size_is_guess);
  }
  const auto first = identity_of(
      with(torchrun(),
           {{"RANK", "3"}, {"WORLD_SIZE", "6"}, {"LOCAL_RANK", "3"}, {"LOCAL_WORLD_SIZE", "4"}, {"GROUP_RANK", "0"}}));
  EXPECT_EQ(first->node, 0);
  EXPECT_EQ(first->nodes, 2);
  EXPECT_THAT(problems(with(second, {{"LOCAL_WORLD_SIZE", "4"}})),
              ElementsAre("LOCAL_WORLD_SIZE=4 and WORLD_SIZE=3 on 2 nodes: expected 1 to 2"));
}

// As perceptrain's scripts export them.
TEST(Identity, GuessesTheSizeOfANodeThatNobodySays) {
  const Values values{
      {"RANK", "1"}, {"LOCAL_RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "1234"}};
  const auto one_node = identity_of(values);
  ASSERT_TRUE(one_node);
  EXPECT_EQ(one_node->local_world_size, 2);
  EXPECT_EQ(one_node->nodes, 1);
  EXPECT_TRUE(one_node->local_size_is_guess);
  EXPECT_TRUE(one_node->node_is_guess);
  const auto second_node = identity_of(with(values, {{"RANK", "3"}, {"WORLD_SIZE", "4"}}));
  EXPECT_EQ(second_node->local_world_size, 2) << "the two ranks before are on another node";
  EXPECT_THAT(problems(with(values, {{"LOCAL_RANK", "2"}})),
              ElementsAre("LOCAL_RANK=2 and WORLD_SIZE=2: expected 0 to 1"));
}

// As Lightning's scripts export them.
TEST(Identity, TakesTheLocalRankForTheRankOnTheFirstNode) {
  const Values values{
      {"NODE_RANK", "0"}, {"LOCAL_RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1234"}};
  EXPECT_EQ(identity_of(values)->rank, 1);
  EXPECT_EQ(identity_of(with(values, {{"NODE_RANK", "1"}, {"RANK", "1"}, {"LOCAL_RANK", "0"}}))->node, 1);
  EXPECT_THAT(problems(with(values, {{"NODE_RANK", "1"}})), ElementsAre(HasSubstr("RANK is not set")));
  EXPECT_THAT(problems(with(values, {{"NODE_RANK", {}}})), ElementsAre(HasSubstr("RANK is not set")));
}

// torchrun's virtual local rank: every process is number 0 and sees its own GPU.
TEST(Identity, ReadsAVirtualLocalRank) {
  const auto identity = identity_of(with(torchrun(), {{"LOCAL_RANK", "0"}}));
  EXPECT_EQ(identity->rank, 3);
  EXPECT_EQ(identity->local_rank, 0);
  EXPECT_EQ(identity->local_world_size, 2);
}

TEST(Identity, ReportsEverythingAtOnce) {
  EXPECT_THAT(
      problems(with(torchrun(), {{"RANK", "nine"}, {"LOCAL_RANK", "5"}, {"MASTER_PORT", "http"}, {"MASTER_ADDR", {}}})),
      UnorderedElementsAre(HasSubstr("RANK=\"nine\""), HasSubstr("LOCAL_RANK=5"), HasSubstr("MASTER_PORT=\"http\""),
                           HasSubstr("MASTER_ADDR is not set")));
}

}  // namespace
}  // namespace lockstep
