// Recorded environments (tests/data/launch) and the facts about Slurm that they hold.
#include <gmock/gmock.h>

#include <lockstep/plan/plan.h>

#include "support/fake_hardware.h"
#include "support/launch_environment.h"
#include "support/message_of.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

struct Place {
  int rank;
  int world_size;
  int local_rank;
  int local_world_size;
  int node;
  int nodes;
  bool operator==(const Place&) const = default;
};

Place place_of(const Identity& identity) {
  return {identity.rank, identity.world_size, identity.local_rank, identity.local_world_size,
          identity.node, identity.nodes};
}

TEST(Slurm, ReadsAStep) {
  const auto identity = identity_of(recorded("sbatch_step_task3"));
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->launcher, "Slurm");
  EXPECT_EQ(place_of(*identity), (Place{3, 4, 1, 2, 1, 2}));
  EXPECT_EQ(identity->master_addr, "n1");
  EXPECT_EQ(identity->master_source, "SLURM_STEP_NODELIST");
  EXPECT_EQ(identity->master_port, 20000 + 15 * 7);
  EXPECT_EQ(identity->run_id, "slurm-15-0");
  EXPECT_EQ(identity->restart, 0);
  EXPECT_FALSE(identity->starts_ranks);
  EXPECT_THAT(identity->variables, Contains("SLURM_PROCID"));
  EXPECT_THAT(identity->hints, IsEmpty());
}

// Fact 1: a step may run unequal numbers of tasks on its nodes.
TEST(Slurm, ReadsUnequalNodes) {
  EXPECT_EQ(place_of(*identity_of(recorded("srun_N2_n4_task0"))), (Place{0, 4, 0, 3, 0, 2}));
  EXPECT_EQ(place_of(*identity_of(recorded("srun_N2_n4_task2"))), (Place{2, 4, 2, 3, 0, 2}));
  EXPECT_EQ(place_of(*identity_of(recorded("srun_N2_n4_task3"))), (Place{3, 4, 0, 1, 1, 2}));
  EXPECT_EQ(place_of(*identity_of(recorded("srun_N3_n5_task4"))), (Place{4, 5, 0, 1, 2, 3}));
}

// Fact 2: the body of a batch script has SLURM_PROCID=0 and SLURM_NTASKS=4, and is no rank.
TEST(Slurm, LeavesABatchScriptAlone) {
  const auto body = identity_of(recorded("sbatch_body"));
  ASSERT_TRUE(body);
  EXPECT_EQ(body->launcher, "single");
  EXPECT_EQ(place_of(*body), (Place{0, 1, 0, 1, 0, 1}));
  EXPECT_TRUE(body->starts_ranks);
  EXPECT_THAT(body->hints, ElementsAre("SLURM_JOB_NUM_NODES=2 and SLURM_NTASKS=4, but this process is not in a step of "
                                       "the job: it trains on this node alone; start it with: srun <program>"));
  EXPECT_THAT(identity_of(recorded("salloc_shell"))->hints, ElementsAre(HasSubstr("srun <program>")));
  EXPECT_FALSE(identity_of(with(recorded("sbatch_body"), {{"SLURM_JOB_NUM_NODES", "1"}, {"SLURM_NTASKS", "1"}})));
}

// Fact 3: the nodes of the step count, not those of the job.
TEST(Slurm, TakesTheNodesOfTheStep) {
  const Values values = recorded("step_on_n2");
  EXPECT_EQ(values.at("SLURM_NODELIST"), "n[1-2]");
  const auto identity = identity_of(values);
  EXPECT_EQ(place_of(*identity), (Place{0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(identity->master_addr, "127.0.0.1");  // one node: nobody else has to find it
  // with a second node, the first of the step is where rank 0 listens
  const auto wider = identity_of(with(values, {{"SLURM_STEP_NODELIST", "n[2-3]"},
                                               {"SLURM_STEP_NUM_NODES", "2"},
                                               {"SLURM_STEP_NUM_TASKS", "2"},
                                               {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}}));
  EXPECT_EQ(wider->master_addr, "n2");
}

// Fact 4: SLURM_NTASKS_PER_NODE is what was asked of the job.
TEST(Slurm, DoesNotBelieveTheTasksPerNodeOfTheJob) {
  const Values values = recorded("one_task_of_two");
  EXPECT_EQ(values.at("SLURM_NTASKS_PER_NODE"), "2");
  EXPECT_EQ(place_of(*identity_of(values)), (Place{0, 1, 0, 1, 0, 1}));
}

// Fact 5: the name of the job says nothing; a shell of `srun --pty` is interactive, a step inside it is not.
TEST(Slurm, TellsAShellFromAStep) {
  EXPECT_EQ(identity_of(with(recorded("srun_N2_n4_task3"), {{"SLURM_JOB_NAME", "bash"}}))->launcher, "Slurm");
  EXPECT_EQ(identity_of(with(recorded("srun_N2_n4_task3"), {{"SLURM_JOB_NAME", "interactive"}}))->launcher, "Slurm");
  const auto shell = identity_of(recorded("pty_shell"));
  ASSERT_TRUE(shell);
  EXPECT_EQ(shell->launcher, "single");
  EXPECT_THAT(shell->hints, SizeIs(1));
  const Values inner = recorded("step_in_pty_shell_task1");
  EXPECT_TRUE(inner.contains("SLURM_PTY_PORT"));  // inherited from the shell
  EXPECT_EQ(place_of(*identity_of(inner)), (Place{1, 4, 0, 1, 1, 2}));
}

// Fact 6: ranks need not be numbered node by node.
TEST(Slurm, ReadsACyclicStep) {
  EXPECT_EQ(place_of(*identity_of(recorded("srun_cyclic_task1"))), (Place{1, 4, 0, 2, 1, 2}));
  EXPECT_EQ(place_of(*identity_of(recorded("srun_cyclic_task2"))), (Place{2, 4, 1, 2, 0, 2}));
}

// Fact 7: mpirun inside an allocation leaves the variables of its own daemon's step; Slurm's PMI is not Hydra.
TEST(Slurm, GivesWayToMpi) {
  for (const auto& [file, launcher] :
       {std::pair("openmpi_in_slurm_task3", "Open MPI"), {"hydra_in_slurm_task3", "Hydra"}}) {
    const auto identity = identity_of(with(recorded(file), {{"MASTER_ADDR", "n1"}, {"MASTER_PORT", "29500"}}));
    EXPECT_EQ(identity->launcher, launcher);
    EXPECT_EQ(place_of(*identity), (Place{3, 4, 1, 2, 1, 2})) << launcher;
  }
  const auto pmi = identity_of(recorded("srun_pmi2_task1"));
  EXPECT_EQ(pmi->launcher, "Slurm");
  EXPECT_EQ(place_of(*pmi), (Place{1, 2, 0, 1, 1, 2}));
}

// Fact 8: a launcher that srun started once per node sets RANK for its children, who inherit the step's variables.
TEST(Slurm, GivesWayToALauncherInsideTheStep) {
  const auto identity = identity_of(with(recorded("srun_one_per_node_task1"), {{"RANK", "3"},
                                                                               {"WORLD_SIZE", "4"},
                                                                               {"LOCAL_RANK", "1"},
                                                                               {"LOCAL_WORLD_SIZE", "2"},
                                                                               {"MASTER_ADDR", "n1"},
                                                                               {"MASTER_PORT", "29500"}}));
  EXPECT_EQ(identity->launcher, "environment");
  EXPECT_EQ(identity->rank, 3);
  EXPECT_FALSE(identity->starts_ranks);
}

// Fact 9: one visible GPU is device 0 of every rank, else the local number counts.
TEST(Slurm, ChoosesTheGpuThatTheSchedulerMeans) {
  const auto plan = [](const char* file) {
    const Values values = recorded(file);
    const auto visible = values.find("CUDA_VISIBLE_DEVICES");
    const Hardware node = visible == values.end() ? machine_with(2) : seen_through(machine_with(2), visible->second);
    return resolve({}, node, identity_of(values));
  };
  const auto device = [&](const char* file) {
    return to_string(plan(file).local_devices[static_cast<std::size_t>(identity_of(recorded(file))->local_rank)].id);
  };
  EXPECT_EQ(device("srun_gres_task3"), "cuda:1");
  EXPECT_EQ(device("srun_gpu_bind_none_task1"), "cuda:1");
  EXPECT_EQ(device("srun_gpus_per_task_task1"), "cuda:0");
  EXPECT_EQ(device("srun_gpu_bind_map_task1"), "cuda:0");
  EXPECT_EQ(plan("srun_gpus_per_task_task1").local_devices[0].uuid, "GPU-10000000");
  EXPECT_THROW(resolve({}, machine_with(2), identity_of(recorded("srun_N2_n4_task0"))), ConfigError);  // 3 tasks
}

// Fact 10: the name in the list may not resolve; MASTER_ADDR overrides it.
TEST(Slurm, TakesTheMasterThatIsSaid) {
  const auto identity =
      identity_of(with(recorded("sbatch_step_task3"), {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "1234"}}));
  EXPECT_EQ(identity->master_addr, "10.0.0.1");
  EXPECT_EQ(identity->master_source, "MASTER_ADDR");
  EXPECT_EQ(identity->master_port, 1234);
}

TEST(Slurm, TellsTheStepsOfAJobApart) {
  const auto first = identity_of(recorded("sbatch_step_task3"));
  const auto second = identity_of(recorded("sbatch_step1"));
  EXPECT_EQ(second->master_port, first->master_port + 1);
  EXPECT_NE(second->run_id, first->run_id);
  EXPECT_EQ(identity_of(with(recorded("sbatch_step1"), {{"SLURM_JOB_ID", "4294967294"}}))->master_port,
            20000 + (4294967294LL * 7 + 1) % 10000);
}

TEST(Slurm, ReadsArraysAndRequeuedJobs) {
  EXPECT_EQ(place_of(*identity_of(recorded("array3_task1"))), (Place{1, 2, 1, 2, 0, 1}));
  EXPECT_EQ(identity_of(with(recorded("array3_task1"), {{"SLURM_JOB_ID", "15_3"}}))->run_id, "slurm-15_3-0");
  const auto requeued = identity_of(recorded("requeued_task1"));
  EXPECT_EQ(requeued->restart, 1);
  EXPECT_EQ(place_of(*requeued), (Place{1, 2, 1, 2, 0, 1}));
}

// --- one task per node: the node's ranks are ours to start ---

TEST(Slurm, StartsTheRanksOfANodeWithOneTask) {
  const auto identity = identity_of(recorded("srun_one_per_node_task1"));
  EXPECT_TRUE(identity->starts_ranks);
  EXPECT_EQ(place_of(*identity), (Place{1, 2, 0, 1, 1, 2}));
  const Plan gpus = resolve({}, machine_with(2), identity);
  EXPECT_EQ(gpus.world_size, 4);
  EXPECT_EQ(gpus.nodes, 2);
  EXPECT_EQ(gpus.local_world_size(), 2);
  EXPECT_EQ(gpus.launch,
            "Slurm, one process per node on 2 nodes, this program starts 2 ranks there (SLURM_PROCID, "
            "SLURM_STEP_NUM_TASKS, SLURM_LOCALID, ...)");
  const Plan asked = resolve({.nprocs = 6}, no_gpu(), identity);
  EXPECT_EQ(asked.world_size, 6);
  EXPECT_EQ(asked.local_world_size(), 3);
  const Plan uneven = resolve({.nprocs = 3}, no_gpu(), identity);
  EXPECT_EQ(uneven.world_size, 3);
  EXPECT_EQ(uneven.local_world_size(), 1) << "the first node has two";
  const Plan plain = resolve({}, no_gpu(), identity);
  EXPECT_EQ(plain.world_size, 2);
  EXPECT_EQ(plain.local_world_size(), 1);
  EXPECT_THAT(plain.launch, HasSubstr("Slurm, 2 ranks on 2 nodes (SLURM_PROCID"));
  EXPECT_EQ(resolve({.devices = 2}, no_gpu(), identity).world_size, 4);
  EXPECT_EQ(resolve({.devices = {0, 1}, .nprocs = 4}, machine_with(2), identity).world_size, 4);
}

TEST(Slurm, SaysHowToStartMoreTasks) {
  const auto identity = identity_of(with(recorded("sbatch_step_task3"), {{"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}}));
  const auto error = error_of<ConfigError>([&] { resolve({.devices = {0, 1, 2, 3}}, machine_with(4), identity); });
  EXPECT_THAT(error.what(), HasSubstr("--devices 0,1,2,3 and 2 ranks of Slurm on this node: found 4 devices"));
  EXPECT_THAT(error.hint(), HasSubstr("srun --ntasks-per-node 4"));
}

// --- what is wrong ---

TEST(Slurm, NamesEveryMissingVariable) {
  EXPECT_THAT(problems({{"SLURM_STEP_ID", "0"}}),
              ElementsAre(HasSubstr("SLURM_PROCID is not set"), HasSubstr("SLURM_STEP_NUM_TASKS is not set"),
                          HasSubstr("SLURM_LOCALID is not set"), HasSubstr("SLURM_NODEID is not set"),
                          HasSubstr("SLURM_STEP_NUM_NODES is not set")));
  const Values step = recorded("sbatch_step_task3");
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST", "SLURM_JOB_ID"}) {
    EXPECT_THAT(problems(with(step, {{name, {}}})), ElementsAre(HasSubstr(std::string(name) + " is not set"))) << name;
  }
}

TEST(Slurm, RefusesMalformedAndContradictoryVariables) {
  const Values step = recorded("sbatch_step_task3");
  EXPECT_THAT(problems(step), IsEmpty());  // the cases below change one variable of a good set
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"SLURM_PROCID", "x", "SLURM_PROCID=\"x\""},
      {"SLURM_PROCID", "4", "SLURM_PROCID=4 and SLURM_STEP_NUM_TASKS=4: expected 0 to 3"},
      {"SLURM_LOCALID", "2", "SLURM_LOCALID=2 and SLURM_STEP_TASKS_PER_NODE=2: expected 0 to 1"},
      {"SLURM_NODEID", "2", "SLURM_NODEID=2 and SLURM_STEP_NUM_NODES=2: expected 0 to 1"},
      {"SLURM_STEP_NUM_NODES", "5", "SLURM_STEP_NUM_NODES=5 and SLURM_STEP_NUM_TASKS=4"},
      {"SLURM_STEP_NUM_TASKS", "5", "found 4 tasks, expected 5"},
      {"SLURM_STEP_NODELIST", "n[1-3]", "found 3 nodes, expected 2"},
      {"SLURM_STEP_NODELIST", "n[1-", "a bracket that is not closed"},
      {"SLURM_STEP_NODELIST", "", "SLURM_STEP_NODELIST=\"\""},
      {"SLURM_JOB_ID", "12; rm -r", "SLURM_JOB_ID=\"12; rm -r\": expected a number"},
      {"SLURM_JOB_ID", "1_2_3", "expected a number"},
      {"SLURM_JOB_ID", "_2", "expected a number"},
      {"SLURM_JOB_ID", "99999999999999999999", "expected a number"},
      {"SLURM_STEP_ID", "-1", "SLURM_STEP_ID=\"-1\": expected a number"},
      {"SLURM_RESTART_COUNT", "often", "SLURM_RESTART_COUNT=\"often\""},
      {"MASTER_PORT", "0", "MASTER_PORT=\"0\""},
      {"MASTER_ADDR", "two words", "MASTER_ADDR=\"two words\": expected the name or address of a machine"},
  };
  for (const auto& [name, value, expected] : cases) {
    EXPECT_THAT(problems(with(step, {{name, value}})), Contains(HasSubstr(expected))) << name << '=' << value;
  }
  for (const char* tasks : {"2", "2(x3)", "2(x", "2(x)", "2x2", "(x2)", "0(x2)", "2,", "2(x0)", "2(x2)b", "2(x-1)",
                            "2(x99999999999)", "-2,6", "2(x2),"}) {
    EXPECT_THAT(problems(with(step, {{"SLURM_STEP_TASKS_PER_NODE", tasks}})),
                ElementsAre(AllOf(HasSubstr(tasks), HasSubstr("expected a number of tasks for each node"))))
        << tasks;
  }
}

}  // namespace
}  // namespace lockstep
