// LSF, Kubeflow and SageMaker from their documented variables.
#include <gmock/gmock.h>

#include <lockstep/plan/plan.h>

#include "support/fake_hardware.h"
#include "support/launch_environment.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kRankFile = "/home/user/.lsbatch/1234.hostfile";

Values lsf() {  // jsrun -n4 -a1 -r2, rank 3
  return {{"JSM_NAMESPACE_RANK", "3"},         {"JSM_NAMESPACE_SIZE", "4"},         {"JSM_NAMESPACE_LOCAL_RANK", "1"},
          {"JSM_NAMESPACE_LOCAL_SIZE", "2"},   {"OMPI_COMM_WORLD_RANK", "3"},       {"OMPI_COMM_WORLD_SIZE", "4"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"LSB_JOBID", "1234"},
          {"LSB_DJOB_RANKFILE", kRankFile}};
}

const std::map<std::string, std::string> kHosts{{kRankFile, "batch5\na01n04\na01n04\na01n05\na01n05\n"}};

TEST(Lsf, ReadsJsrun) {
  const auto identity = identity_of(lsf(), kHosts);
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->launcher, "LSF");  // jsrun sets Open MPI's variables too
  EXPECT_EQ(identity->rank, 3);
  EXPECT_EQ(identity->local_rank, 1);
  EXPECT_EQ(identity->local_world_size, 2);
  EXPECT_EQ(identity->node, 1);
  EXPECT_EQ(identity->nodes, 2);
  EXPECT_EQ(identity->master_addr, "a01n04");  // not the node of the batch script
  EXPECT_EQ(identity->master_source, "LSB_DJOB_RANKFILE");
  EXPECT_EQ(identity->master_port, 10234);
  EXPECT_EQ(identity->run_id, "lsf-1234");
  EXPECT_EQ(identity_of(with(lsf(), {{"JSM_NAMESPACE_LOCAL_SIZE", {}}}), kHosts)->local_world_size, 2);
  EXPECT_EQ(identity_of(with(lsf(), {{"MASTER_ADDR", "x"}, {"LSB_DJOB_RANKFILE", {}}}))->master_addr, "x");
}

TEST(Lsf, ReportsMissingVariables) {
  EXPECT_THAT(problems(with(lsf(), {{"JSM_NAMESPACE_SIZE", {}}, {"JSM_NAMESPACE_LOCAL_RANK", {}}}), kHosts),
              ElementsAre(AllOf(HasSubstr("JSM_NAMESPACE_SIZE is not set"), HasSubstr("jsrun")),
                          HasSubstr("JSM_NAMESPACE_LOCAL_RANK is not set")));
  EXPECT_THAT(problems(with(lsf(), {{"LSB_JOBID", {}}}), kHosts), ElementsAre(HasSubstr("LSB_JOBID is not set")));
  EXPECT_THAT(problems(with(lsf(), {{"LSB_DJOB_RANKFILE", {}}})),
              ElementsAre(AllOf(HasSubstr("LSB_DJOB_RANKFILE is not set"), HasSubstr("MASTER_ADDR"))));
  for (const char* text : {"", "batch5\n", "batch5\n\n", "batch5\n$(id)\n"}) {
    EXPECT_THAT(problems(lsf(), {{kRankFile, text}}), ElementsAre(HasSubstr("line 2 of the file"))) << text;
  }
}

TEST(Kubeflow, CountsOneProcessPerPod) {
  const auto identity = identity_of({{"RANK", "1"},
                                     {"WORLD_SIZE", "3"},
                                     {"MASTER_ADDR", "job-master-0"},
                                     {"MASTER_PORT", "23456"},
                                     {"PET_NPROC_PER_NODE", "1"},
                                     {"PYTHONUNBUFFERED", "1"}});
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->launcher, "environment");
  EXPECT_EQ(identity->rank, 1);
  EXPECT_EQ(identity->local_rank, 0);
  EXPECT_EQ(identity->local_world_size, 1);
  EXPECT_EQ(identity->node, 1);
  EXPECT_EQ(identity->nodes, 3);
  EXPECT_EQ(identity->master_port, 23456);
}

TEST(Kubeflow, RejectsPodsWithSeveralRanks) {
  EXPECT_THAT(problems({{"RANK", "1"},
                        {"WORLD_SIZE", "8"},
                        {"MASTER_ADDR", "m"},
                        {"MASTER_PORT", "23456"},
                        {"PET_NPROC_PER_NODE", "4"}}),
              ElementsAre(AllOf(HasSubstr("RANK=1"), HasSubstr("PET_NPROC_PER_NODE=4"), HasSubstr("WORLD_SIZE=8"),
                                HasSubstr("lockstep run"))));
}

TEST(Kubeflow, IsDetectedAfterMpi) {
  const auto identity = identity_of({{"RANK", "0"},
                                     {"WORLD_SIZE", "2"},
                                     {"OMPI_COMM_WORLD_RANK", "1"},
                                     {"OMPI_COMM_WORLD_SIZE", "2"},
                                     {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                     {"PMIX_NAMESPACE", "7"}});
  EXPECT_EQ(identity->launcher, "Open MPI");
}

TEST(Kubeflow, WarnsAboutAProgramWithoutALauncher) {
  const auto identity = identity_of({{"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}});
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->launcher, "single");
  EXPECT_THAT(identity->hints, ElementsAre(HasSubstr("PET_NNODES=2, but no launcher started this program")));
  EXPECT_FALSE(identity_of({{"PET_NNODES", "1"}}));
}

Values sagemaker() {
  return {{"SM_HOSTS", R"(["algo-2","algo-1","algo-3"])"},
          {"SM_CURRENT_HOST", "algo-2"},
          {"SM_NUM_GPUS", "2"},
          {"TRAINING_JOB_NAME", "digits-1"}};
}

TEST(SageMaker, CountsItsHosts) {
  const auto identity = identity_of(sagemaker());
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->launcher, "SageMaker");
  EXPECT_EQ(identity->node, 1);
  EXPECT_EQ(identity->nodes, 3);
  EXPECT_EQ(identity->master_addr, "algo-1");
  EXPECT_EQ(identity->master_port, 29500);
  EXPECT_EQ(identity->run_id, "digits-1");
  EXPECT_TRUE(identity->starts_ranks);
  EXPECT_EQ(resolve({}, machine_with(2), identity).world_size, 6);
}

TEST(SageMaker, RejectsInvalidHosts) {
  for (const char* hosts : {"", "algo-1", "[]", "[1]", R"({"a":1})", R"(["a b"])", R"([["algo-1"]])", R"(["algo-1")"}) {
    EXPECT_THAT(problems(with(sagemaker(), {{"SM_HOSTS", hosts}})), ElementsAre(HasSubstr("SM_HOSTS=\""))) << hosts;
  }
  EXPECT_THAT(problems(with(sagemaker(), {{"SM_CURRENT_HOST", "algo-9"}})),
              ElementsAre(HasSubstr("expected one of them")));
  EXPECT_THAT(problems(with(sagemaker(), {{"SM_CURRENT_HOST", {}}})),
              ElementsAre(HasSubstr("SM_CURRENT_HOST is not set")));
  EXPECT_THAT(problems(with(sagemaker(), {{"SM_HOSTS", {}}})), ElementsAre(HasSubstr("SM_HOSTS is not set")));
}

TEST(Launchers, AreDetectedInOrder) {
  // All variables at once: the inner launcher wins.
  Values values = recorded("openmpi_in_slurm_task3");
  values.merge(
      Values{{"MASTER_ADDR", "n1"}, {"MASTER_PORT", "29500"}, {"SM_HOSTS", R"(["a"])"}, {"SM_CURRENT_HOST", "a"}});
  EXPECT_EQ(identity_of(values)->launcher, "Open MPI");
  values.merge(Values{{"RANK", "0"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(identity_of(values)->launcher, "Open MPI");
  values.merge(Values{{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}});
  EXPECT_EQ(identity_of(values)->launcher, "environment");
  values["TORCHELASTIC_RUN_ID"] = "r";
  EXPECT_EQ(identity_of(values)->launcher, "torchrun");
  values["LOCKSTEP_CONTROL_FD"] = "3";
  EXPECT_EQ(identity_of(values)->launcher, "lockstep");
}

}  // namespace
}  // namespace lockstep
