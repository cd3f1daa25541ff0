// One binary under every launcher that can be installed here gives the same bytes as our launcher with the same world
// size.
#include <chrono>
#include <regex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/fake_driver.h"
#include "support/network.h"
#include "support/python.h"
#include "support/requirements.h"
#include "support/runs.h"
#include "support/sweep.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

const std::vector<std::string> kFlags{"--max_epochs", "2", "--data.workers", "1"};
const Process::Environment kOneThread{{"OMP_NUM_THREADS", "1"}};  // sums depend on the number of threads

/// Whether PATH, or where Debian puts daemons, has the program.
bool is_installed(const std::string& program) {
  for (const auto& folder : split(read_environment().get("PATH").value_or("") + ":/usr/sbin:/sbin", ':')) {
    if (access((folder + "/" + program).c_str(), X_OK) == 0) {
      return true;
    }
  }
  return false;
}

Requirements installed(const std::string& program, const std::string& package) {
  return Requirements().that(is_installed(program),
                             program + " is missing: apt-get install --no-install-recommends " + package);
}

/// `launcher` with the command that trains into `run`.
std::vector<std::string> launch(std::vector<std::string> launcher, const std::filesystem::path& run,
                                const std::vector<std::string>& more = {}) {
  std::vector<std::string> flags = kFlags;
  flags.insert(flags.end(), more.begin(), more.end());
  const auto program = command(TRAIN_PROGRAM, run, flags);
  launcher.insert(launcher.end(), program.begin(), program.end());
  return launcher;
}

/// Weights, optimizer and generators after training with our own launcher. The gradients are added as between nodes:
/// with three ranks or more shared memory has another order.
std::map<std::string, std::string> own_state(const std::filesystem::path& run, int ranks) {
  const auto result =
      run_program(launch({}, run, {"--nprocs", std::to_string(ranks), "--backend", "gloo"}), kOneThread);
  EXPECT_EQ(result.code, 0) << result.err;
  return final_state(run);
}

// --- MPI ---

TEST(OpenMpi, EndsWithTheSameWeights) {
  LOCKSTEP_REQUIRE(installed("mpirun.openmpi", "openmpi-bin"));
  const TempDir dir;
  std::vector<std::string> mpirun{"mpirun.openmpi", "--oversubscribe", "-np", "2"};
  if (geteuid() == 0) {
    mpirun.insert(mpirun.begin() + 1, "--allow-run-as-root");
  }
  const auto result = run_program(launch(mpirun, dir.path() / "run"), kOneThread);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("Open MPI, 2 ranks (OMPI_COMM_WORLD_RANK"));
  EXPECT_EQ(final_state(dir.path() / "run"), own_state(dir.path() / "own", 2));
}

TEST(Mpich, EndsWithTheSameWeights) {
  LOCKSTEP_REQUIRE(installed("mpirun.mpich", "mpich"));
  const TempDir dir;
  const auto result = run_program(launch({"mpirun.mpich", "-np", "2"}, dir.path() / "run"), kOneThread);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err + result.out, HasSubstr("Hydra, 2 ranks (PMI_RANK"));
  EXPECT_EQ(final_state(dir.path() / "run"), own_state(dir.path() / "own", 2));
}

/// Like ssh: starts a command on the machine with the given address.
std::filesystem::path remote_shell(const TempDir& dir, const Network& network) {
  const auto script = dir.path() / "shell";
  std::ofstream(script) << "#!/bin/sh\nshift_to=$1\nshift\ncase $shift_to in " << Network::address(0)
                        << ") network=" << network.name(0) << " ;; *) network=" << network.name(1)
                        << " ;; esac\nexec ip netns exec $network unshare --uts sh -c \"hostname $network; $*\"\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  return script;
}

std::vector<std::string> on_first(const Network& network, std::vector<std::string> launcher) {
  launcher.insert(launcher.begin(),
                  {"unshare", "--uts", "sh", "-c", "hostname " + network.name(0) + "; exec \"$@\"", "sh"});
  return network.on(0, launcher);
}

TEST(OpenMpi, EndsWithTheSameWeightsOnTwoMachines) {
  const Network network;
  LOCKSTEP_REQUIRE(installed("mpirun.openmpi", "openmpi-bin")
                       .that(network.works(), "no network namespaces: they need root and iproute2"));
  const TempDir dir;
  const std::string hosts = Network::address(0) + "," + Network::address(1);
  const auto result = run_program(
      launch(on_first(network, {"mpirun.openmpi", "--allow-run-as-root", "-np", "2", "--host", hosts, "--mca",
                                "plm_rsh_agent", remote_shell(dir, network).string(), "--mca", "oob_tcp_if_include",
                                "cable", "-x", "OMP_NUM_THREADS", "-x", "MASTER_ADDR=" + Network::address(0)}),
             dir.path() / "run"),
      kOneThread);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("Open MPI, 2 ranks on 2 nodes"));
  EXPECT_EQ(final_state(dir.path() / "run"), own_state(dir.path() / "own", 2));
}

// Every rank has a different shell as parent, but all must use the same port.
TEST(Mpich, MeetsThroughAShellScript) {
  LOCKSTEP_REQUIRE(installed("mpiexec.hydra", "mpich"));
  const TempDir dir;
  const auto script = dir.path() / "train.sh";
  std::ofstream(script) << "#!/bin/sh\n\"$@\"\nexit $?\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  const auto result =
      run_program(launch({"mpiexec.hydra", "-np", "2", script.string()}, dir.path() / "run"), kOneThread);
  EXPECT_EQ(result.code, 0) << result.err << result.out;
}

// --- Slurm ---

/// A cluster of two nodes for one test. Only Slurm takes its GPUs for GPUs: they are device nodes like /dev/null.
class SlurmCluster {
 public:
  explicit SlurmCluster(const std::string& mode, int gpus_per_node = 0) {
    const auto result = run_program({SLURM_CLUSTER, "up", folder(), mode, "2", std::to_string(gpus_per_node)}, path());
    EXPECT_EQ(result.code, 0) << result.err;
  }
  ~SlurmCluster() { run_program({SLURM_CLUSTER, "down", folder()}, path()); }
  SlurmCluster(const SlurmCluster&) = delete;
  SlurmCluster& operator=(const SlurmCluster&) = delete;

  static Requirements requirements() {
    Requirements needed;
    needed.that(geteuid() == 0, "only root can start Slurm's daemons");
    for (const char* program : {"srun", "slurmctld", "slurmd", "munged"}) {
      needed.that(is_installed(program),
                  std::string(program) + " is missing: apt-get install --no-install-recommends slurm-wlm munge");
    }
    return needed;
  }
  /// The same for nodes with separate networks.
  static Requirements networks() {
    const bool allowed = is_installed("ip") && run_program({"unshare", "--net", "--uts", "--mount", "true"}).code == 0;
    return requirements().that(allowed, "network namespaces need `ip` (iproute2) and the rights to make them");
  }

  /// The same for nodes with GPUs.
  static Requirements gpus() {
    const TempDir dir;
    const bool allowed = run_program({"mknod", (dir.path() / "gpu").string(), "c", "1", "3"}).code == 0;
    return networks().that(allowed, "fake GPUs need the right to make device nodes");
  }

  std::string folder() const { return (dir_.path() / "cluster").string(); }
  Process::Environment environment(Process::Environment more = {}) const {
    more["SLURM_CONF"] = folder() + "/slurm.conf";
    more["OMP_NUM_THREADS"] = "1";
    return more;
  }
  Process::Result run(const std::vector<std::string>& argv, const Process::Environment& more = {}) const {
    return run_program(argv, environment(more));
  }

 private:
  static Process::Environment path() {
    return {{"PATH", read_environment().get("PATH").value_or("") + ":/usr/sbin:/sbin"}};
  }
  TempDir dir_;
};

struct StepCase {
  const char* what;
  std::vector<std::string> flags;
  int ranks;
  const char* launch;
};

TEST(SlurmStep, EndsWithTheSameWeights) {
  LOCKSTEP_REQUIRE(SlurmCluster::networks());
  const StepCase cases[] = {
      {"one task per node", {"-N2", "--ntasks-per-node=1"}, 2, "Slurm, 2 ranks on 2 nodes (SLURM_PROCID"},
      {"2 + 1 tasks", {"-N2", "-n3"}, 3, "Slurm, 3 ranks on 2 nodes"},
      {"ranks not numbered node by node", {"-N2", "-n3", "-m", "cyclic"}, 3, "Slurm, 3 ranks on 2 nodes"},
      {"a step on the second node", {"-N1", "-n2", "-w", "n2"}, 2, "Slurm, 2 ranks (SLURM_PROCID"},
      {"Slurm's own PMI", {"--mpi=pmi2", "-N2", "-n2"}, 2, "Slurm, 2 ranks on 2 nodes"},
  };
  const SlurmCluster cluster("netns");
  const TempDir dir;
  const std::map<int, std::map<std::string, std::string>> own{{2, own_state(dir.path() / "own2", 2)},
                                                              {3, own_state(dir.path() / "own3", 3)}};
  for (const auto& [what, flags, ranks, said] : cases) {
    SCOPED_TRACE(what);
    std::vector<std::string> srun{"srun", "--kill-on-bad-exit=1"};
    srun.insert(srun.end(), flags.begin(), flags.end());
    const auto run = dir.path() / what;
    const auto result = cluster.run(launch(srun, run));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr(said));
    EXPECT_EQ(final_state(run), own.at(ranks));
  }
}

TEST(SlurmStep, StartsTheRanksOfANodeWithOneTask) {
  LOCKSTEP_REQUIRE(SlurmCluster::networks());
  const SlurmCluster cluster("netns");
  const TempDir dir;
  const auto result = cluster.run(
      launch({"srun", "--kill-on-bad-exit=1", "-N2", "--ntasks-per-node=1"}, dir.path() / "run", {"--nprocs", "4"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("Slurm, one process per node on 2 nodes, this program starts 2 ranks there"));
  EXPECT_EQ(final_state(dir.path() / "run"), own_state(dir.path() / "own", 4));
}

// The shell of salloc has variables of the whole job. Only those of the step that srun starts in it count; here the
// step runs on the second node.
TEST(SlurmStep, RunsOnSomeNodesOfAnAllocation) {
  LOCKSTEP_REQUIRE(SlurmCluster::networks());
  const SlurmCluster cluster("netns");
  const TempDir dir;
  const auto result = cluster.run(launch(
      {"salloc", "-N2", "--ntasks-per-node=2", "srun", "-N1", "-n2", "-w", "n2", "--overlap"}, dir.path() / "run"));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("Slurm, 2 ranks (SLURM_PROCID"));
  EXPECT_EQ(final_state(dir.path() / "run"), own_state(dir.path() / "own", 2));
}

const std::string kFourGpus = "GPU-a free,GPU-b free,GPU-c free,GPU-d free";

/// A GPU by its number on the node, and by its number among those that the task sees.
using SeenGpu = std::pair<int, int>;

/// The GPU that the task with this place on its node plans to take: of a device for each task of the node, or of the
/// only one that this task sees. Those of the fake driver have 100 bytes, 200, 300, ...
SeenGpu planned_gpu(const std::string& table, std::size_t local_rank) {
  static const std::regex kDevice(R"(Test GPU \((\d)00 B\), cuda:(\d))");
  std::vector<SeenGpu> gpus;
  for (std::sregex_iterator found(table.begin(), table.end(), kDevice); found != std::sregex_iterator(); ++found) {
    gpus.emplace_back(std::stoi((*found)[1]) - 1, std::stoi((*found)[2]));
  }
  return gpus.size() == 1 ? gpus.front() : local_rank < gpus.size() ? gpus[local_rank] : SeenGpu{-1, -1};
}

struct GpuCase {
  const char* what;
  std::vector<std::string> launcher;
  std::vector<std::string> flags;
  std::vector<SeenGpu> gpus;  // by local rank
};

TEST(SlurmStep, TakesAnotherGpuInEachTaskOfANode) {
  const std::vector<SeenGpu> all{{0, 0}, {1, 1}, {2, 2}, {3, 3}};
  const std::vector<SeenGpu> own{{0, 0}, {1, 0}, {2, 0}, {3, 0}};
  const GpuCase cases[] = {
      {"plain", {}, {"--gpus-per-node=4"}, all},
      {"one GPU per task", {}, {"--gpus-per-task=1"}, own},
      {"bound one by one", {}, {"--gpus-per-node=4", "--gpu-bind=single:1"}, own},
      {"bound in another order",
       {},
       {"--gpus-per-node=4", "--gpu-bind=map_gpu:3,1,2,0"},
       {{3, 0}, {1, 0}, {2, 0}, {0, 0}}},
      {"not bound", {}, {"--gpus-per-node=4", "--gpu-bind=none"}, all},
      {"two of four", {}, {"--gpus-per-node=2"}, {{0, 0}, {1, 1}}},
      {"beside another job",
       {"salloc", "-N2", "-n2", "--gpus-per-node=2", "env", "-u", "SLURM_JOB_ID", "-u", "SLURM_JOBID"},
       {"--gpus-per-node=2"},
       {{2, 0}, {3, 1}}},
      // The control: two tasks with one GPU. The plan cannot know it, but such ranks find it out when they connect.
      {"bound to one GPU", {}, {"--gpus-per-node=4", "--gpu-bind=map_gpu:2,2"}, {{2, 0}, {2, 0}}},
  };
  LOCKSTEP_REQUIRE(SlurmCluster::gpus().that(probe_hardware().cuda_built, "this build has no CUDA"));
  const SlurmCluster cluster("netns", 4);
  const TempDir dir;
  const auto driver = fake_driver(dir.path(), kFourGpus);
  for (const auto& [what, launcher, flags, gpus] : cases) {
    SCOPED_TRACE(what);
    const auto tasks = gpus.size();
    const auto output = dir.path() / what;
    auto srun = with(launcher, {"srun", "-N2", "-n" + std::to_string(2 * tasks),
                                "--ntasks-per-node=" + std::to_string(tasks), "--output=" + output.string() + "%t"});
    srun = with(with(srun, flags), {TRAIN_PROGRAM, "--dry-run"});
    const auto result = cluster.run(srun, driver);
    EXPECT_EQ(result.code, 0) << result.err;
    for (std::size_t task = 0; task < 2 * tasks; ++task) {
      const std::string table = read_text(output.string() + std::to_string(task));
      EXPECT_EQ(planned_gpu(table, task % tasks), gpus[task % tasks]) << "task " << task << "\n" << table;
    }
  }
}

TEST(SlurmStep, PlansARankForEachGpuWithOneTaskPerNode) {
  LOCKSTEP_REQUIRE(SlurmCluster::gpus().that(probe_hardware().cuda_built, "this build has no CUDA"));
  const SlurmCluster cluster("netns", 4);
  const TempDir dir;
  for (const int gpus : {3, 4}) {
    const auto result = cluster.run(
        {"srun", "-N2", "--ntasks-per-node=1", "--gpus-per-node=" + std::to_string(gpus), TRAIN_PROGRAM, "--dry-run"},
        fake_driver(dir.path(), kFourGpus));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("this program starts " + std::to_string(gpus) + " ranks there"));
    const auto last = std::to_string(gpus - 1);
    EXPECT_THAT(result.out, HasSubstr("\n" + std::to_string(2 * gpus - 1) + "     1     " + last +
                                      "           cuda:" + last + " Test GPU"));
  }
}

struct BatchJob {
  int code = 0;
  std::string log{};
};

/// Waits for the end of a job whose script has these lines.
BatchJob run_batch(const SlurmCluster& cluster, const TempDir& dir, const std::vector<std::string>& options,
                   const std::string& lines) {
  const auto script = dir.path() / "job.sh";
  const auto log = dir.path() / "job.log";
  std::ofstream(script) << "#!/bin/sh\n" << lines << '\n';
  const auto result =
      cluster.run(with(with({"sbatch", "--wait", "--output=" + log.string()}, options), {script.string()}));
  return {.code = result.code, .log = result.err + read_text(log)};
}

TEST(SlurmBatch, TrainsAloneWithoutSrunAndSaysSo) {
  LOCKSTEP_REQUIRE(SlurmCluster::requirements());
  const SlurmCluster cluster("loopback");
  const TempDir dir;
  const auto [code, text] =
      run_batch(cluster, dir, {"-N2", "--ntasks-per-node=2"}, join(launch({}, dir.path() / "run"), " "));
  EXPECT_EQ(code, 0) << text;
  EXPECT_THAT(text, HasSubstr("launch       alone"));
  EXPECT_THAT(
      text,
      HasSubstr("warning: SLURM_JOB_NUM_NODES=2 and SLURM_NTASKS=4, but this process is not in a step of the job"));
  EXPECT_EQ(final_state(dir.path() / "run"), own_state(dir.path() / "own", 1));
}

TEST(SlurmBatch, StartsOneTaskPerRankWithSrun) {
  LOCKSTEP_REQUIRE(SlurmCluster::networks());
  const SlurmCluster cluster("netns");
  const TempDir dir;
  const auto [code, text] =
      run_batch(cluster, dir, {"-N2", "--ntasks=3"}, join(launch({"srun"}, dir.path() / "run"), " "));
  EXPECT_EQ(code, 0) << text;
  EXPECT_EQ(final_state(dir.path() / "run"), own_state(dir.path() / "own", 3));
}

// The loop of docs/launching.md.
TEST(SlurmBatch, StartsTheStepAgainWhenMemoryRunsOut) {
  LOCKSTEP_REQUIRE(SlurmCluster::requirements());
  const SlurmCluster cluster("loopback");
  const TempDir dir;
  const auto train = join(launch({"srun", "--kill-on-bad-exit=1"}, dir.path() / "run",
                                 {"--batch_size", "8", "--memory.halve_batch", "true", "--fits", "4", "--fail_step",
                                  "0", "--fail_in", "nowhere", "--fail_rank", "1"}),
                          " ");
  const auto [code, text] =
      run_batch(cluster, dir, {"-N1", "--ntasks=2"},
                "set -eu\nexport MASTER_ADDR=127.0.0.1\ncode=77\nwhile [ $code = 77 ]; do\n  code=0\n  " + train +
                    " || code=$?\ndone\nexit $code");
  EXPECT_EQ(code, 0) << text;
  EXPECT_THAT(text, HasSubstr("Exited with exit code 77"));
  EXPECT_THAT(text, HasSubstr("micro-batches have 4 samples instead of 8 (--memory.halve_batch): 8 did not fit"));
}

/// The scripts of examples/slurm as they are. Their ranks train on the CPU.
TEST(SlurmBatch, RunsTheScriptsOfTheExamples) {
  struct Script {
    const char* name;
    std::vector<std::string> flags;
    const char* launch;
  };
  const Script scripts[] = {
      {"srun_one_gpu", {}, "Slurm, 1 rank"},
      {"srun_one_node", {"--nprocs", "4"}, "Slurm, one process per node, this program starts 4 ranks there"},
      {"srun_many_nodes", {}, "Slurm, 8 ranks on 2 nodes"},
      {"torchrun_one_gpu", {}, "torchrun, 1 rank ("},
      {"torchrun_one_node", {}, "torchrun, 4 ranks ("},
      {"torchrun_many_nodes", {}, "torchrun, 8 ranks on 2 nodes"},
  };
  const std::string torchrun = find_torchrun(LIBTORCH_DIR);
  LOCKSTEP_REQUIRE(SlurmCluster::gpus().that(!torchrun.empty(), "no torchrun beside " LIBTORCH_DIR));
  const SlurmCluster cluster("netns", 4);
  const TempDir dir;
  const auto path =
      std::filesystem::path(torchrun).parent_path().string() + ":" + read_environment().get("PATH").value_or("");
  for (const auto& [name, flags, launched] : scripts) {
    SCOPED_TRACE(name);
    const auto log = dir.path() / (std::string(name) + ".log");
    const auto program = command(std::string(EXAMPLES_DIR) + "/02_multi_device", dir.path() / name, flags);
    const auto result = cluster.run(with({"sbatch", "--wait", "--output=" + log.string(),
                                          EXAMPLE_SOURCES "/slurm/" + std::string(name) + ".sbatch"},
                                         program),
                                    {{"PATH", path}});
    EXPECT_EQ(result.code, 0) << result.err << read_text(log);
    EXPECT_THAT(read_text(log), HasSubstr("launch       " + std::string(launched)));
  }
  EXPECT_THAT(read_text(dir.path() / "torchrun_many_nodes.log"),
              testing::ContainsRegex("Node IP: 10\\.213\\.[0-9]+\\.1\n"));
}

// The other half of the test above: Slurm looks at the numbers of GPUs in the scripts.
TEST(SlurmBatch, RefusesTheScriptsOfTheExamplesWithoutEnoughGpus) {
  LOCKSTEP_REQUIRE(SlurmCluster::gpus());
  const SlurmCluster none("loopback");
  const SlurmCluster three("loopback", 3);
  for (const auto& entry : std::filesystem::directory_iterator(EXAMPLE_SOURCES "/slurm")) {
    const auto script = entry.path().string();
    const auto without = none.run({"sbatch", script, "true"});
    EXPECT_EQ(without.code, 1) << script;
    EXPECT_THAT(without.err, HasSubstr("Invalid generic resource (gres) specification")) << script;
    EXPECT_EQ(none.run({"sbatch", "--gpus-per-node=0", script, "true"}).code, 0) << script;
    const bool one = script.find("one_gpu") != std::string::npos;
    EXPECT_EQ(three.run({"sbatch", script, "true"}).code, one ? 0 : 1) << script;
  }
}

TEST(SlurmBatch, GivesEveryTaskItsCores) {
  LOCKSTEP_REQUIRE(SlurmCluster::requirements());
  const SlurmCluster cluster("loopback");
  const TempDir dir;
  const auto program = dir.path() / "step.sh";
  const auto log = dir.path() / "job.log";
  std::ofstream(program) << "#!/bin/sh\nscontrol show step $SLURM_JOB_ID.$SLURM_STEP_ID\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const auto result =
      cluster.run({"sbatch", "--wait", "--gpus-per-node=0", "--cpus-per-task=2", "--output=" + log.string(),
                   EXAMPLE_SOURCES "/slurm/srun_one_node.sbatch", program.string()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(read_text(log), HasSubstr("TresPerStep=cpu:2"));
}

/// Waits until a file that another process writes has the text.
bool appears(const std::filesystem::path& file, const std::string& text, std::chrono::seconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (read_text(file).find(text) == std::string::npos && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // there is no event to wait for
  }
  return read_text(file).find(text) != std::string::npos;
}

/// By default, Slurm waits two minutes before a requeued job starts again.
void start_again(const SlurmCluster& cluster, const std::string& job) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (cluster.run({"squeue", "-h", "-j", job, "-o", "%T"}).out.starts_with("PENDING")) {
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // Slurm can only be asked
  }
  EXPECT_EQ(cluster.run({"scontrol", "update", "JobId=" + job, "StartTime=now"}).code, 0);
}

struct Requeue {
  const char* name;
  const char* starter;
  std::vector<std::string> flags;
  std::vector<std::string> signal;
};

class SlurmRequeue : public testing::TestWithParam<Requeue> {};

// --fresh starts over at the first start of the job, but not after a requeue.
TEST_P(SlurmRequeue, GoesOnWhenItWasAskedToStop) {
  LOCKSTEP_REQUIRE(SlurmCluster::requirements());
  const SlurmCluster cluster("loopback");
  const TempDir dir;
  const auto script = dir.path() / "job.sh";
  const auto log = dir.path() / "job.log";
  ASSERT_EQ(run_program(launch({}, dir.path() / "run")).code, 0);
  std::ofstream(script) << "#!/bin/sh\nexport MASTER_ADDR=127.0.0.1\n"
                        << join(launch({GetParam().starter}, dir.path() / "run",
                                       with({"--max_epochs", "100000", "--dist.requeue", "true", "--fresh"},
                                            GetParam().flags)),
                                " ")
                        << '\n';
  const auto submitted = cluster.run({"sbatch", "--parsable", "--requeue", "-N1", "--ntasks=2", "--open-mode=append",
                                      "--output=" + log.string(), script.string()});
  ASSERT_EQ(submitted.code, 0) << submitted.err;
  const std::string job(trim(submitted.out));
  constexpr std::chrono::seconds kPatience{60};
  ASSERT_TRUE(appears(log, "step 5 ", kPatience)) << read_text(log);
  ASSERT_EQ(cluster.run(with(GetParam().signal, {job})).code, 0);
  ASSERT_TRUE(appears(log, "run the same command again to continue", kPatience)) << read_text(log);
  start_again(cluster, job);
  EXPECT_TRUE(appears(log, "resuming from step", kPatience)) << read_text(log);
  cluster.run({"scancel", job});
  EXPECT_TRUE(appears(log, "the job is not queued again", kPatience)) << read_text(log);
  EXPECT_TRUE(std::filesystem::exists(dir.path() / "run.1"));
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "run.2")) << read_text(log);
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, SlurmRequeue,
    testing::Values(Requeue{"with_srun", "srun --kill-on-bad-exit=1", {}, {"scancel", "--signal=USR1"}},
                    Requeue{"without_srun", "exec", {"--nprocs", "2"}, {"scancel", "--batch", "--signal=USR1"}}),
    [](const auto& test) { return test.param.name; });

// Each task of the array is a separate job with a separate run. Slurm sends the signal before the limit, up to a minute
// earlier than requested.
TEST(SlurmBatch, TasksOfAnArrayStopBeforeTheirTimeLimitAndAreQueuedAgain) {
  LOCKSTEP_REQUIRE(SlurmCluster::requirements());
  LOCKSTEP_REQUIRE(Requirements().that(rounds(0) > 0, "takes minutes, Slurm's: set LOCKSTEP_TEST_ROUNDS=100"));
  const SlurmCluster cluster("loopback");
  const TempDir dir;
  const auto script = dir.path() / "job.sh";
  std::ofstream(script) << "#!/bin/sh\nexport MASTER_ADDR=127.0.0.1\n"
                        << join(launch({"srun"}, dir.path() / "run$SLURM_ARRAY_TASK_ID",
                                       {"--max_epochs", "1000000", "--report.every_steps", "500", "--dist.requeue",
                                        "true"}),
                                " ")
                        << '\n';
  const auto submitted =
      cluster.run({"sbatch", "--parsable", "--requeue", "--array=3,5", "--time=2", "--signal=USR1@30", "-N1",
                   "--ntasks=2", "--open-mode=append", "--output=" + (dir.path() / "log%a").string(), script.string()});
  ASSERT_EQ(submitted.code, 0) << submitted.err;
  const std::string array(trim(submitted.out));
  for (const std::string task : {"3", "5"}) {
    const auto log = dir.path() / ("log" + task);
    ASSERT_TRUE(appears(log, "run the same command again to continue", std::chrono::seconds(150))) << read_text(log);
    start_again(cluster, array + "_" + task);
    EXPECT_TRUE(appears(log, "resuming from step", std::chrono::seconds(200))) << read_text(log);
  }
  cluster.run({"scancel", array});
}

TEST(SlurmStep, NamesTheNodeThatDoesNotResolve) {
  LOCKSTEP_REQUIRE(SlurmCluster::requirements());
  const SlurmCluster cluster("loopback");
  const TempDir dir;
  const std::vector<std::string> srun{"srun", "--kill-on-bad-exit=1", "-N2", "-n2"};
  const auto refused = cluster.run(launch(srun, dir.path() / "refused", {"--dist.init_timeout_s", "10"}));
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.err, HasSubstr("n1"));
  EXPECT_THAT(refused.err, HasSubstr("MASTER_ADDR"));
  const auto told = cluster.run(launch(srun, dir.path() / "told"), {{"MASTER_ADDR", "127.0.0.1"}});
  EXPECT_EQ(told.code, 0) << told.err;
}

TEST(SlurmStep, SavesAtOneStepWhenItIsCancelled) {
  LOCKSTEP_REQUIRE(SlurmCluster::networks());
  const SlurmCluster cluster("netns");
  const TempDir dir;
  Process training(launch({"srun", "--job-name=train", "-N2", "-n2"}, dir.path() / "run", {"--max_epochs", "100000"}),
                   cluster.environment());
  ASSERT_TRUE(training.wait_for("step 5 ")) << training.err();
  EXPECT_EQ(cluster.run({"scancel", "--signal=TERM", "--name=train"}).code, 0);
  const auto stopped = training.wait();
  EXPECT_EQ(stopped.code, 75) << stopped.err;
  const auto checkpoint = newest_checkpoint(dir.path() / "run");
  ASSERT_FALSE(checkpoint.empty());
  const auto step = std::to_string(std::stoi(checkpoint.filename().string().substr(std::string("step-").size())));
  const auto straight = run_program(
      launch({}, dir.path() / "own", {"--nprocs", "2", "--max_epochs", "100000", "--max_steps", step}), kOneThread);
  ASSERT_EQ(straight.code, 0) << straight.err;
  EXPECT_EQ(final_state(dir.path() / "run"), final_state(dir.path() / "own"));
}

}  // namespace
}  // namespace lockstep
