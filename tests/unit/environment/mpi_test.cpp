// Open MPI 4.1 and MPICH 4.0 as recorded, the others as documented.
#include <gmock/gmock.h>

#include "support/launch_environment.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Files = std::map<std::string, std::string>;

Values open_mpi() {  // mpirun -np 2, rank 1
  return {{"OMPI_COMM_WORLD_RANK", "1"},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
          {"PMIX_RANK", "1"},
          {"PMIX_NAMESPACE", "1144061953"},
          {"OMPI_MCA_ess_base_jobid", "1144061953"}};
}

Values hydra() {  // mpiexec -np 2, rank 1
  return {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}, {"PMI_FD", "8"}};
}

Values mvapich2() {
  return {{"MV2_COMM_WORLD_RANK", "1"},
          {"MV2_COMM_WORLD_SIZE", "2"},
          {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
          {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}};
}

std::string stat_of(int pid, const std::string& name, int parent, int start) {
  return std::to_string(pid) + " (" + name + ") S " + std::to_string(parent) +
         " 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 " + std::to_string(start) + " 1000 100\n";
}

/// train <- sh <- hydra_pmi_proxy
Files under_hydra(int proxy = 70) {
  return {{"/proc/self/stat", stat_of(72, "a) (b", 71, 9)},
          {"/proc/71/stat", stat_of(71, "sh", proxy, 8)},
          {"/proc/" + std::to_string(proxy) + "/stat", stat_of(proxy, "hydra_pmi_proxy", 1, 777)}};
}

TEST(Mpi, ReadsOpenMpi) {
  const auto identity = identity_of(open_mpi());
  ASSERT_TRUE(identity);
  EXPECT_EQ(identity->launcher, "Open MPI");
  EXPECT_EQ(identity->rank, 1);
  EXPECT_EQ(identity->world_size, 2);
  EXPECT_EQ(identity->local_rank, 1);
  EXPECT_EQ(identity->local_world_size, 2);
  EXPECT_EQ(identity->nodes, 1);
  EXPECT_EQ(identity->master_addr, "127.0.0.1");
  EXPECT_EQ(identity->run_id, "1144061953");
  EXPECT_EQ(identity->master_port, derived_port("1144061953"));
  EXPECT_FALSE(identity->starts_ranks);
  EXPECT_EQ(identity_of(with(open_mpi(), {{"PMIX_NAMESPACE", {}}}))->run_id, "1144061953");
}

TEST(Mpi, ReadsHydraAndMvapich2) {
  for (const auto& [values, launcher] : {std::pair(hydra(), "Hydra"), {mvapich2(), "MVAPICH2"}}) {
    const auto identity = identity_of(values, under_hydra());
    ASSERT_TRUE(identity);
    EXPECT_EQ(identity->launcher, launcher);
    EXPECT_EQ(identity->rank, 1);
    EXPECT_EQ(identity->local_world_size, 2);
    EXPECT_EQ(identity->run_id, "70-777");
    EXPECT_EQ(identity->master_port, derived_port("70-777"));
  }
  EXPECT_NE(identity_of(hydra(), under_hydra(60))->run_id, "70-777");
}

TEST(Mpi, DerivesPortsThatTheKernelDoesNotGiveAway) {
  for (const char* launch : {"", "1144061953", "70-777", "prterun-node-71@1"}) {
    EXPECT_GE(derived_port(launch), 20000);
    EXPECT_LE(derived_port(launch), 29999);
    EXPECT_EQ(derived_port(launch), derived_port(std::string(launch)));
  }
  EXPECT_NE(derived_port("1"), derived_port("2"));
}

TEST(Mpi, AsksForAPortWhereRanksShareNothing) {
  EXPECT_THAT(problems(hydra(), {{"/proc/self/stat", stat_of(5, "train", 1, 1)}}),
              ElementsAre(AllOf(HasSubstr("MASTER_PORT is not set"), HasSubstr("mpiexec -genv MASTER_PORT ..."))));
  EXPECT_THAT(problems(with(open_mpi(), {{"PMIX_NAMESPACE", {}}, {"OMPI_MCA_ess_base_jobid", {}}})),
              ElementsAre(HasSubstr("mpirun -x MASTER_PORT=...")));
  EXPECT_EQ(identity_of(with(hydra(), {{"MASTER_PORT", "29500"}}))->master_port, 29500);
  // a process that is its own ancestor, and files that are no stat
  for (const char* text :
       {"72 (train) S 72 1", "", "72", "72 )(", "72 (train) S 72 1 1 0 -1 0 1 0 0 0 0 0 0 0 20 0 1 0 5"}) {
    EXPECT_THAT(problems(hydra(), {{"/proc/self/stat", text}, {"/proc/72/stat", text}}),
                ElementsAre(HasSubstr("MASTER_PORT is not set")))
        << text;
  }
}

TEST(Mpi, NeedsAnAddressOnSeveralMachines) {
  const Values two = with(open_mpi(), {{"OMPI_COMM_WORLD_SIZE", "4"}});
  EXPECT_THAT(
      problems(two),
      ElementsAre("MASTER_ADDR is not set, expected the address of rank 0's machine, as 2 of 4 ranks run on this "
                  "one | set it: mpirun -x MASTER_ADDR=..."));
  const auto identity = identity_of(with(two, {{"MASTER_ADDR", "node0"}}));
  EXPECT_EQ(identity->master_addr, "node0");
  EXPECT_EQ(identity->nodes, 2);
  EXPECT_THAT(problems(with(hydra(), {{"PMI_SIZE", "4"}}), under_hydra()),  // each machine has its own daemon
              ElementsAre(HasSubstr("mpiexec -genv MASTER_ADDR"), HasSubstr("mpiexec -genv MASTER_PORT")));
  EXPECT_THAT(problems(with(mvapich2(), {{"MV2_COMM_WORLD_SIZE", "4"}})),
              Contains(HasSubstr("mpirun_rsh MASTER_ADDR=... <program>")));
}

TEST(Mpi, AcceptsUnequalMachines) {
  const auto identity = identity_of(with(open_mpi(), {{"OMPI_COMM_WORLD_RANK", "2"},
                                                      {"OMPI_COMM_WORLD_SIZE", "3"},
                                                      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                                      {"MASTER_ADDR", "node0"}}));
  EXPECT_EQ(identity->world_size, 3);
  EXPECT_EQ(identity->local_world_size, 1);
}

TEST(Mpi, FindsTheMasterOfAzureAndSageMaker) {
  const Values two = with(open_mpi(), {{"OMPI_COMM_WORLD_SIZE", "4"}});
  const auto azure =
      identity_of(with(two, {{"AZ_BATCH_MASTER_NODE", "10.0.0.4:6000"}, {"AZUREML_EXPERIMENT_ID", "e"}}));
  EXPECT_EQ(azure->master_addr, "10.0.0.4");
  EXPECT_EQ(azure->master_port, 6000);
  EXPECT_EQ(azure->master_source, "AZ_BATCH_MASTER_NODE");
  for (const char* bad : {"10.0.0.4", ":6000", "a b:6000", "10.0.0.4:", "10.0.0.4:70000"}) {
    EXPECT_THAT(problems(with(two, {{"AZ_BATCH_MASTER_NODE", bad}})), ElementsAre(HasSubstr("expected address:port")))
        << bad;
  }
  const auto sagemaker =
      identity_of(with(two, {{"SM_HOSTS", R"(["algo-2","algo-1"])"}, {"SM_CURRENT_HOST", "algo-2"}}));
  EXPECT_EQ(sagemaker->launcher, "Open MPI");
  EXPECT_EQ(sagemaker->master_addr, "algo-1");
  EXPECT_EQ(sagemaker->master_port, derived_port("1144061953"));
}

TEST(Mpi, NeedsNoMasterForOneRank) {
  const auto identity =
      identity_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}});
  EXPECT_EQ(identity->world_size, 1);
  EXPECT_EQ(identity->master_port, 0);
}

TEST(Mpi, RefusesPartialSets) {
  EXPECT_THAT(
      problems({{"OMPI_COMM_WORLD_SIZE", "2"}}),
      ElementsAre(HasSubstr("OMPI_COMM_WORLD_RANK is not set"), HasSubstr("OMPI_COMM_WORLD_LOCAL_RANK is not set"),
                  HasSubstr("OMPI_COMM_WORLD_LOCAL_SIZE is not set")));
  EXPECT_THAT(problems({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}),
              ElementsAre(HasSubstr("MPI_LOCALRANKID is not set"), HasSubstr("MPI_LOCALNRANKS is not set")));
  EXPECT_THAT(problems({{"MV2_COMM_WORLD_RANK", "0"}}), Contains(HasSubstr("MV2_COMM_WORLD_SIZE is not set")));
}

TEST(Mpi, RefusesContradictions) {
  EXPECT_THAT(problems(open_mpi()), IsEmpty());  // the cases below change one variable of a good set
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"OMPI_COMM_WORLD_RANK", "2", "OMPI_COMM_WORLD_RANK=2 and OMPI_COMM_WORLD_SIZE=2: expected 0 to 1"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "2", "OMPI_COMM_WORLD_LOCAL_RANK=2 and OMPI_COMM_WORLD_LOCAL_SIZE=2"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "3", "OMPI_COMM_WORLD_LOCAL_SIZE=3 and OMPI_COMM_WORLD_SIZE=2: expected 1 to 2"},
      {"OMPI_COMM_WORLD_SIZE", "two", "OMPI_COMM_WORLD_SIZE=\"two\""},
  };
  for (const auto& [name, value, expected] : cases) {
    EXPECT_THAT(problems(with(open_mpi(), {{name, value}})), Contains(HasSubstr(expected))) << name << '=' << value;
  }
}

}  // namespace
}  // namespace lockstep
