#include <algorithm>

#include <gmock/gmock.h>

#include <lockstep/plan/plan.h>

#include "support/fake_hardware.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

constexpr std::nullopt_t kAlone = std::nullopt;

std::vector<std::string> devices(const Plan& plan) {
  std::vector<std::string> names;
  std::transform(plan.local_devices.begin(), plan.local_devices.end(), std::back_inserter(names),
                 [](const LocalDevice& device) { return to_string(device.id); });
  return names;
}

std::vector<Problem> problems(const TrainConfig& config, const Hardware& hardware,
                              const std::optional<Identity>& identity = kAlone) {
  try {
    resolve(config, hardware, identity);
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

/// The only problem as "what | hint"; what else there is, if it is not one.
std::string refusal(const TrainConfig& config, const Hardware& hardware,
                    const std::optional<Identity>& identity = kAlone) {
  const std::vector<Problem> all = problems(config, hardware, identity);
  std::string text = all.size() == 1 ? "" : std::to_string(all.size()) + " problems: ";
  for (const Problem& problem : all) {
    text += problem.what + " | " + problem.hint;
  }
  return text;
}

Hardware with_free_memory(const std::vector<std::int64_t>& free_gib) {
  Hardware hardware = machine_with(static_cast<int>(free_gib.size()));
  for (std::size_t i = 0; i < free_gib.size(); ++i) {
    hardware.gpus[i].free_bytes = free_gib[i] * kGiB;
  }
  return hardware;
}

Hardware with_unusable(int gpus, const std::vector<int>& unusable) {
  Hardware hardware = machine_with(gpus);
  for (const int index : unusable) {
    hardware.gpus[static_cast<std::size_t>(index)].usable = false;
  }
  return hardware;
}

// --- compute ---

TEST(Resolve, PlansOneCpuRankWithoutGpu) {
  const Plan plan = resolve({}, no_gpu(), kAlone);
  EXPECT_THAT(devices(plan), ElementsAre("cpu"));
  EXPECT_EQ(plan.world_size, 1);
  EXPECT_EQ(plan.config.compute_setup, ComputeSetup::cpu);
  EXPECT_EQ(plan.config.backend, Backend::gloo);
  EXPECT_EQ(plan.launch, "alone");
  EXPECT_EQ(plan.threads_per_rank, 16);
  EXPECT_THAT(plan.warnings, IsEmpty());
  EXPECT_THAT(plan.notes, IsEmpty());
}

TEST(Resolve, NotesTensorCoresThatAreNotUsed) {
  const auto notes = [](const char* capability, const TrainConfig& config) {
    Hardware hardware = one_gpu();
    hardware.gpus.front().compute_capability = capability;
    return resolve(config, hardware, kAlone).notes;
  };
  for (const char* capability : {"8.0", "8.6", "9.0", "10.0", "12.1"}) {
    EXPECT_THAT(
        notes(capability, {}),
        ElementsAre(
            "this GPU has tensor cores that fp32 does not use: set --matmul_precision high, or --precision bf16_mixed"))
        << capability;
  }
  for (const char* capability : {"", "6.1", "7.5"}) {
    EXPECT_THAT(notes(capability, {}), IsEmpty()) << capability;
  }
  EXPECT_THAT(notes("9.0", {.precision = Precision::bf16_mixed}), IsEmpty());
  EXPECT_THAT(notes("9.0", {.precision = Precision::fp64}), IsEmpty());
  EXPECT_THAT(notes("9.0", {.matmul_precision = MatmulPrecision::high}), IsEmpty());
  EXPECT_THAT(notes("9.0", {.compute_setup = ComputeSetup::cpu}), IsEmpty());
}

TEST(Resolve, KeepsWhatWasAskedForBesideWhatItDerives) {
  const TrainConfig asked{.seed = 7, .max_epochs = 3, .global_batch_size = 64, .run_name = "a"};
  Plan plan = resolve(asked, machine_with(2), kAlone);
  EXPECT_EQ(plan.config.nprocs, 2);
  plan.config.max_epochs = 5;  // a program may change its plan
  const TrainConfig kept = asked_config(plan);
  EXPECT_EQ(kept.nprocs, 0);
  EXPECT_EQ(kept.batch_size, asked.batch_size);
  EXPECT_EQ(kept.accumulation, 0);
  EXPECT_EQ(kept.global_batch_size, 64);
  EXPECT_EQ(kept.compute_setup, ComputeSetup::automatic);
  EXPECT_EQ(kept.devices, DeviceSpec());
  EXPECT_EQ(kept.run_dir, "");
  EXPECT_EQ(kept.run_name, "a");
  EXPECT_EQ(kept.max_epochs, 5);
  plan.config.run_dir = "runs/a/second";
  EXPECT_EQ(asked_config(plan).run_dir, "runs/a/second");
}

TEST(Resolve, NamesTheRunDirectoryWithoutASlashAtTheEnd) {
  for (const std::string written : {"r", "r/", "r//", "r/.", "r/./"}) {
    EXPECT_EQ(run_directory({.run_dir = written}), "r") << written;
  }
  EXPECT_EQ(run_directory({.run_dir = "/"}), "/");
  EXPECT_EQ(run_directory({.run_dir = "./"}), ".");
  EXPECT_EQ(run_directory({.run_dir = "a/.."}), "a/..") << "a may be a link";
}

TEST(Resolve, PrefersAllGpus) {
  const Plan plan = resolve({}, eight_gpus(), kAlone);
  EXPECT_EQ(plan.world_size, 8);
  EXPECT_EQ(devices(plan).front(), "cuda:0");
  EXPECT_EQ(devices(plan).back(), "cuda:7");
  EXPECT_EQ(plan.config.compute_setup, ComputeSetup::gpu);
  EXPECT_EQ(plan.config.backend, Backend::nccl);
  EXPECT_EQ(plan.config.nprocs, 8);
  EXPECT_EQ(plan.launch, "this program starts 8 ranks");
  EXPECT_EQ(plan.threads_per_rank, 2);
  EXPECT_EQ(plan.local_devices[3].name, "Test GPU");
  EXPECT_EQ(plan.local_devices[3].uuid, "GPU-30000000");
  EXPECT_EQ(plan.local_devices[3].memory_bytes, 80 * kGiB);
}

TEST(Resolve, SaysWhyNoGpuCanBeUsed) {
  const TrainConfig config{.compute_setup = ComputeSetup::gpu};
  Hardware not_built = eight_gpus();
  not_built.cuda_built = false;
  EXPECT_EQ(
      refusal(config, no_gpu()),
      "--compute_setup gpu: no GPU can be used: no NVIDIA driver | use --compute_setup cpu, or --allow_fallback true");
  EXPECT_THAT(refusal(config, seen_through(eight_gpus(), "")), HasSubstr("CUDA_VISIBLE_DEVICES=\"\" hides"));
  EXPECT_THAT(refusal(config, not_built), HasSubstr("lockstep was built without CUDA | build lockstep with"));
  EXPECT_THAT(refusal(config, with_unusable(2, {0, 1})), HasSubstr("all 2 are prohibited or exclusively in use"));
  EXPECT_THAT(refusal({.devices = {0, 1}}, no_gpu()), StartsWith("--devices 0,1: no GPU can be used"));
}

TEST(Resolve, FallsBackWhereThatIsAllowed) {
  const Plan one = resolve({.compute_setup = ComputeSetup::gpu, .allow_fallback = true}, no_gpu(), kAlone);
  EXPECT_THAT(devices(one), ElementsAre("cpu"));
  EXPECT_THAT(one.warnings, ElementsAre("no GPU can be used: no NVIDIA driver; using the CPU"));
  const Plan two = resolve({.devices = {0, 2}, .allow_fallback = true}, no_gpu(), kAlone);
  EXPECT_THAT(devices(two), ElementsAre("cpu", "cpu"));
  const Plan all =
      resolve({.compute_setup = ComputeSetup::gpu, .devices = -1, .allow_fallback = true}, no_gpu(), kAlone);
  EXPECT_THAT(devices(all), ElementsAre("cpu"));
}

TEST(Resolve, WarnsOfGpusThatAreNotUsed) {
  const Plan asked = resolve({.compute_setup = ComputeSetup::cpu}, machine_with(2), kAlone);
  EXPECT_THAT(asked.warnings, ElementsAre("2 GPUs here, not used; --compute_setup gpu --devices auto uses them"));
  Hardware not_built = machine_with(1);
  not_built.cuda_built = false;
  EXPECT_THAT(resolve({}, not_built, kAlone).warnings,
              ElementsAre(HasSubstr("built without CUDA; build lockstep with")));
  EXPECT_THAT(resolve({}, seen_through(machine_with(1), ""), kAlone).warnings,
              ElementsAre(HasSubstr("change CUDA_VISIBLE_DEVICES")));
}

// --- devices ---

TEST(Resolve, ChoosesGpus) {
  struct Case {
    DeviceSpec request;
    int nprocs;
    std::vector<std::string> expected;
    const char* effective;
  };
  const Hardware machine = with_free_memory({30, 70, 10, 70});
  const Case cases[] = {
      {"auto", 0, {"cuda:0", "cuda:1", "cuda:2", "cuda:3"}, "0,1,2,3"},
      {"auto", 1, {"cuda:1"}, "1,"},
      {"auto", 2, {"cuda:1", "cuda:3"}, "1,3"},
      {"auto", 3, {"cuda:0", "cuda:1", "cuda:3"}, "0,1,3"},
      {2, 0, {"cuda:0", "cuda:1"}, "0,1"},
      {2, 2, {"cuda:0", "cuda:1"}, "0,1"},
      {-1, 0, {"cuda:0", "cuda:1", "cuda:2", "cuda:3"}, "0,1,2,3"},
      {{3, 0}, 0, {"cuda:0", "cuda:3"}, "0,3"},
      {"2,", 0, {"cuda:2"}, "2,"},
      {"cuda:0,2-3", 3, {"cuda:0", "cuda:2", "cuda:3"}, "0,2,3"},
      {"free:2", 0, {"cuda:1", "cuda:3"}, "1,3"},
      {"free:3@20GiB", 0, {"cuda:0", "cuda:1", "cuda:3"}, "0,1,3"},
      {"usable:2", 0, {"cuda:0", "cuda:1"}, "0,1"},
  };
  for (const Case& c : cases) {
    const Plan plan = resolve({.devices = c.request, .nprocs = c.nprocs}, machine, kAlone);
    EXPECT_EQ(devices(plan), c.expected) << c.request.text() << ", nprocs " << c.nprocs;
    EXPECT_EQ(plan.config.devices, DeviceSpec(c.effective)) << plan.config.devices.text();
    EXPECT_EQ(plan.config.nprocs, static_cast<int>(c.expected.size()));
  }
}

TEST(Resolve, SkipsGpusThatCannotBeUsed) {
  const Hardware machine = with_unusable(4, {0, 2});
  EXPECT_THAT(devices(resolve({}, machine, kAlone)), ElementsAre("cuda:1", "cuda:3"));
  EXPECT_THAT(devices(resolve({.devices = "usable:1"}, machine, kAlone)), ElementsAre("cuda:1"));
  EXPECT_THAT(devices(resolve({.devices = "free:2"}, machine, kAlone)), ElementsAre("cuda:1", "cuda:3"));
  EXPECT_THAT(refusal({.devices = 3}, machine), StartsWith("--devices 3: GPU 0,2 cannot be used"));
  EXPECT_THAT(refusal({.devices = "usable:3"}, machine), StartsWith("--devices usable:3: found 2 usable GPUs"));
}

TEST(Resolve, SaysWhichGpusThereAre) {
  EXPECT_EQ(refusal({.devices = "cuda:0,4"}, seen_through(machine_with(2), "0,1")),
            "--devices cuda:0,4: GPU 4 does not exist, this machine has 2 GPUs (0-1) | "
            "use --devices 0,1 or check CUDA_VISIBLE_DEVICES=\"0,1\"");
  EXPECT_EQ(refusal({.devices = {5, 6}}, machine_with(1)),
            "--devices 5,6: GPUs 5-6 do not exist, this machine has 1 GPU (0) | use --devices 0,");
  EXPECT_EQ(refusal({.devices = "2,"}, seen_through(machine_with(8), "4,5")),
            "--devices 2,: GPU 2 does not exist, this process sees 2 of this machine's 8 GPUs (0-1) | "
            "use --devices 0, or check CUDA_VISIBLE_DEVICES=\"4,5\"");
  EXPECT_EQ(refusal({.devices = 4}, machine_with(2)), "--devices 4: this machine has 2 GPUs (0-1) | use --devices 2");
  EXPECT_EQ(refusal({.nprocs = 4}, machine_with(2)),
            "--nprocs 4: found 2 usable GPUs, expected one per rank | use --nprocs 2 at most");
  EXPECT_EQ(refusal({.devices = "free:2@50GiB"}, with_free_memory({60, 40})),
            "--devices free:2@50GiB: 1 GPU with that much free memory (GPU 0: 60.0 GiB; GPU 1: 40.0 GiB) | "
            "use fewer GPUs or a smaller limit");
}

TEST(Resolve, RefusesDevicesAndRanksThatDisagree) {
  for (const DeviceSpec& request : {DeviceSpec(2), DeviceSpec("0,1"), DeviceSpec("free:2"), DeviceSpec("usable:2")}) {
    EXPECT_EQ(
        refusal({.devices = request, .nprocs = 3}, machine_with(4)),
        "--nprocs 3 and --devices " + request.text() + ": found 2 devices, expected one per rank | remove one of them");
  }
  EXPECT_THAT(refusal({.compute_setup = ComputeSetup::cpu, .devices = 2, .nprocs = 3}, no_gpu()),
              StartsWith("--nprocs 3 and --devices 2: found 2 devices"));
}

TEST(Resolve, CountsRanksOnTheCpu) {
  EXPECT_THAT(devices(resolve({.nprocs = 3}, no_gpu(), kAlone)), SizeIs(3));
  EXPECT_THAT(devices(resolve({.devices = 4}, no_gpu(), kAlone)), SizeIs(4));
  EXPECT_THAT(devices(resolve({.devices = "cpu", .nprocs = 2}, eight_gpus(), kAlone)), ElementsAre("cpu", "cpu"));
  const Plan plan = resolve({.nprocs = 3}, machine_with(0, 2), kAlone);
  EXPECT_EQ(plan.threads_per_rank, 1);
  EXPECT_EQ(plan.config.devices, DeviceSpec("cpu"));
}

TEST(Resolve, RefusesContradictionsOnce) {
  for (const char* request : {"-1", "0,1", "usable:2", "free:2"}) {
    EXPECT_THAT(refusal({.compute_setup = ComputeSetup::cpu, .devices = request}, machine_with(2)),
                StartsWith(std::string("--devices ") + request + " with --compute_setup cpu"));
    EXPECT_THAT(refusal({.devices = request}, no_gpu()),
                AllOf(StartsWith(std::string("--devices ") + request + ": no GPU can be used"),
                      HasSubstr("| use --devices auto, or")));
  }
  EXPECT_THAT(refusal({.compute_setup = ComputeSetup::gpu, .devices = "cpu"}, machine_with(1)),
              StartsWith("--devices cpu with --compute_setup gpu"));
  EXPECT_THAT(refusal({.compute_setup = ComputeSetup::cpu, .nprocs = 2, .backend = Backend::nccl}, no_gpu()),
              StartsWith("--backend nccl with --compute_setup cpu"));
  EXPECT_THAT(refusal({.devices = "0"}, machine_with(2)), HasSubstr("this requests no device"));
  EXPECT_THAT(refusal({.backend = Backend::shm}, machine_with(2)),
              StartsWith("--backend shm: it is for ranks on the CPU, found ranks on GPUs"));
}

TEST(Resolve, WarnsWhereCudaCountsDifferentGpusInItsOwnOrder) {
  Hardware machine = machine_with(2);
  machine.device_order = "FASTEST_FIRST";
  machine.visible_devices = "0,1";
  EXPECT_THAT(resolve({}, machine, kAlone).warnings, IsEmpty()) << "all of one kind: one order";
  machine.gpus[1].name = "Other GPU";
  EXPECT_THAT(resolve({}, machine, kAlone).warnings, ElementsAre(HasSubstr("CUDA_DEVICE_ORDER=FASTEST_FIRST with")));
  for (const char* known_by_uuid : {"(unset)", "GPU-00000000,GPU-1"}) {
    machine.visible_devices = known_by_uuid;
    EXPECT_THAT(resolve({}, machine, kAlone).warnings, IsEmpty()) << known_by_uuid;
  }
  machine.visible_devices = "0,1";
  machine.device_order = "PCI_BUS_ID";
  EXPECT_THAT(resolve({}, machine, kAlone).warnings, IsEmpty());
}

TEST(Resolve, SaysThatAGpuIsLost) {
  Hardware machine = machine_with(7);
  machine.gpu_note = "GPU 3 does not answer: GPU is lost";
  const Plan plan = resolve({}, machine, kAlone);
  EXPECT_EQ(plan.world_size, 7);
  EXPECT_THAT(plan.warnings, ElementsAre("GPU 3 does not answer: GPU is lost"));
  EXPECT_THAT(refusal({.devices = 8}, machine), HasSubstr("this machine has 7 GPUs (0-6)"));
}

TEST(Resolve, FollowsEveryFormOfCudasVariable) {
  struct Case {
    const char* visible;
    std::vector<std::string> uuids;  // {}: the CPU
  };
  const Case cases[] = {
      {"(unset)", {"GPU-00000000", "GPU-10000000", "GPU-20000000", "GPU-30000000"}},
      {"", {}},
      {"-1", {}},
      {"NoDevFiles", {}},
      {"void", {}},
      {"0,1", {"GPU-00000000", "GPU-10000000"}},
      {"2", {"GPU-20000000"}},
      {"3,0", {"GPU-30000000", "GPU-00000000"}},
      {"1,7,2", {"GPU-10000000"}},
      {"1,-1,2", {"GPU-10000000"}},
      {"7", {}},
      {"0,1,0", {}},
      {" 1 , 3 ", {"GPU-10000000", "GPU-30000000"}},
      {"GPU-30000000,GPU-1", {"GPU-30000000", "GPU-10000000"}},
      {"GPU-", {}},
      {"GPU-2,1", {"GPU-20000000"}},
  };
  for (const Case& c : cases) {
    const Plan plan = resolve({}, seen_through(machine_with(4), c.visible), kAlone);
    std::vector<std::string> uuids;
    for (const LocalDevice& device : plan.local_devices) {
      if (device.id.gpu) {
        EXPECT_EQ(device.id.index, static_cast<int>(uuids.size())) << c.visible << ": visible GPUs are counted from 0";
        uuids.push_back(device.uuid);
      }
    }
    EXPECT_EQ(uuids, c.uuids) << '"' << c.visible << '"';
    EXPECT_EQ(plan.gpu(), !c.uuids.empty()) << '"' << c.visible << '"';
  }
}

TEST(Resolve, GivesARankItsOnlyVisibleGpu) {
  // LOCAL_RANK 3 of 4, but GPU 0 of this process.
  Hardware machine = seen_through(machine_with(4), "3");
  Plan plan = resolve({}, machine, launched(3, 4));
  EXPECT_EQ(plan.local_devices.at(3).id, (DeviceId{.gpu = true, .index = 0}));
  EXPECT_EQ(plan.local_devices.at(3).uuid, "GPU-30000000");

  // A MIG device for each rank.
  machine = machine_with(0);
  machine.gpus = {{.name = "MIG device", .uuid = "MIG-7"}};
  machine.gpus_present = 1;
  machine.visible_devices = "MIG-7";
  plan = resolve({}, machine, launched(1, 2));
  EXPECT_EQ(plan.local_devices.at(1).id, (DeviceId{.gpu = true, .index = 0}));
  EXPECT_EQ(plan.local_devices.at(1).uuid, "MIG-7");
  EXPECT_THAT(refusal({.nprocs = 2}, machine), HasSubstr("found 1 usable GPU, expected one per rank"));
}

TEST(Resolve, PlansNodesOfFourAndTwoGpus) {
  const auto rank_of = [](int rank) {
    const int node = rank < 4 ? 0 : 1;
    Identity identity = launched(rank, 6);
    identity.local_rank = rank - 4 * node;
    identity.local_world_size = node == 0 ? 4 : 2;
    identity.node = node;
    identity.nodes = 2;
    return identity;
  };
  const Plan first = resolve({}, machine_with(4), rank_of(0));
  EXPECT_THAT(devices(first), ElementsAre("cuda:0", "cuda:1", "cuda:2", "cuda:3"));
  EXPECT_EQ(first.world_size, 6);
  EXPECT_EQ(first.config.backend, Backend::nccl);
  const Plan second = resolve({}, machine_with(2), rank_of(5));
  EXPECT_THAT(devices(second), ElementsAre("cuda:0", "cuda:1"));
  EXPECT_EQ(second.world_size, 6);
  EXPECT_THAT(refusal({}, machine_with(2), rank_of(1)), HasSubstr("found 2 visible GPUs, expected one per rank"));
}

TEST(Resolve, LeavesExclusiveGpusThatAreTaken) {
  const Hardware machine = with_unusable(8, {1, 2, 5});
  const Plan plan = resolve({}, machine, kAlone);
  EXPECT_THAT(devices(plan), ElementsAre("cuda:0", "cuda:3", "cuda:4", "cuda:6", "cuda:7"));
  // The ranks run already: each GPU may be taken by its own rank.
  EXPECT_THAT(devices(resolve({}, machine, launched(2, 8))), SizeIs(8));
}

// --- backend ---

TEST(Resolve, ChoosesTheBackend) {
  Hardware no_nccl = machine_with(2);
  no_nccl.nccl_built = false;
  EXPECT_EQ(resolve({}, machine_with(2), kAlone).config.backend, Backend::nccl);
  const Plan staged = resolve({.backend = Backend::gloo}, no_nccl, kAlone);
  EXPECT_EQ(staged.config.backend, Backend::gloo);
  EXPECT_THAT(staged.notes, ElementsAre(HasSubstr("staged through the host")));
  for (const Backend backend : {Backend::automatic, Backend::nccl}) {
    EXPECT_THAT(refusal({.backend = backend}, no_nccl), HasSubstr("| use --backend gloo (staged through the host)"));
  }
  EXPECT_EQ(resolve({.nprocs = 1}, no_nccl, kAlone).config.backend, Backend::gloo);
  EXPECT_EQ(refusal({.nprocs = 2, .backend = Backend::nccl}, no_gpu()),
            "--backend nccl: needs a GPU per rank, found ranks on the CPU | use --backend gloo");
}

TEST(Resolve, SharesMemoryBetweenCpuRanksOfOneMachine) {
  const auto of = [](const TrainConfig& config, const Identity& identity) {
    return resolve(config, no_gpu(), identity).config.backend;
  };
  const Plan plan = resolve({.nprocs = 3}, no_gpu(), kAlone);
  EXPECT_EQ(plan.config.backend, Backend::shm);
  EXPECT_EQ(plan.asked->backend, Backend::automatic);
  EXPECT_EQ(asked_config(plan).backend, Backend::automatic);
  EXPECT_EQ(resolve({.devices = "cpu", .nprocs = 2}, machine_with(2), kAlone).config.backend, Backend::shm);
  EXPECT_EQ(of({}, launched(0, 4)), Backend::shm);
  EXPECT_EQ(of({}, launched(0, 4, 2)), Backend::gloo) << "two machines";
  EXPECT_EQ(of({.backend = Backend::gloo}, launched(0, 4)), Backend::gloo);
  EXPECT_EQ(of({.backend = Backend::shm}, launched(0, 4)), Backend::shm);
  EXPECT_EQ(resolve({.nprocs = 1}, no_gpu(), kAlone).config.backend, Backend::gloo);
  EXPECT_THAT(refusal({.backend = Backend::shm}, no_gpu(), launched(0, 4, 2)),
              StartsWith("--backend shm: it is for ranks of one machine, found 2 machines"));
}

TEST(Resolve, IgnoresTheBackendOfOneRankWithANote) {
  EXPECT_THAT(resolve({.backend = Backend::nccl}, no_gpu(), kAlone).notes,
              ElementsAre("one rank: --backend nccl is not used"));
  EXPECT_THAT(resolve({.backend = Backend::gloo}, one_gpu(), kAlone).notes,
              ElementsAre("one rank: --backend gloo is not used"));
}

// --- launched by somebody ---

TEST(Resolve, PlansNodesThatStartDifferentNumbersOfRanks) {
  Identity identity{.rank = 1, .world_size = 2, .node = 1, .nodes = 2, .starts_ranks = true, .launcher = "Slurm"};
  EXPECT_EQ(resolve({}, machine_with(2), identity).world_size, 4) << "as many as here, until the nodes have met";
  identity.ranks_per_node = {4, 2};
  const Plan plan = resolve({.global_batch_size = 12}, machine_with(2), identity);
  EXPECT_EQ(plan.world_size, 6);
  EXPECT_EQ(plan.local_world_size(), 2);
  EXPECT_EQ(plan.loader.batch.explanation, "12 = 2 per rank x 1 micro-batch x 6 ranks");
}

TEST(Resolve, SharesRanksOutAmongTheNodesThatStartThem) {
  Identity identity{
      .world_size = 2, .nodes = 2, .starts_ranks = true, .launcher = "Slurm", .variables = {"SLURM_NNODES"}};
  EXPECT_THAT(devices(resolve({.nprocs = 3}, no_gpu(), identity)), SizeIs(2));
  identity.node = identity.rank = 1;
  const Plan second = resolve({.nprocs = 3}, no_gpu(), identity);
  EXPECT_THAT(devices(second), SizeIs(1));
  EXPECT_EQ(second.world_size, 3);
  EXPECT_EQ(
      refusal({.nprocs = 1}, no_gpu(), identity),
      "--nprocs 1: found 2 nodes (SLURM_NNODES), expected a rank on each | use --nprocs 2 or more, or fewer nodes");
}

TEST(Resolve, TakesItsPlaceInALaunch) {
  const Plan plan = resolve({}, machine_with(4), launched(5, 8, 2));
  EXPECT_EQ(plan.world_size, 8);
  EXPECT_EQ(plan.nodes, 2);
  EXPECT_THAT(devices(plan), ElementsAre("cuda:0", "cuda:1", "cuda:2", "cuda:3"));
  EXPECT_EQ(plan.config.global_batch_size, 8 * 32);
  EXPECT_EQ(plan.launch, "torchrun, 8 ranks on 2 nodes (RANK, WORLD_SIZE, LOCAL_RANK, ...)");
}

TEST(Resolve, LetsTheDevicesSayHowManyRanksANodeHasWhereTheLauncherDoesNot) {
  Identity identity = launched(1, 4);
  identity.local_size_is_guess = true;
  EXPECT_THAT(devices(resolve({}, machine_with(2), identity)), ElementsAre("cuda:0", "cuda:1"));
  EXPECT_THAT(devices(resolve({}, machine_with(8), identity)), SizeIs(4));
  EXPECT_THAT(devices(resolve({.devices = {2, 3}}, machine_with(8), identity)), ElementsAre("cuda:2", "cuda:3"));
  EXPECT_THAT(devices(resolve({}, no_gpu(), identity)), SizeIs(4));
  EXPECT_THAT(devices(resolve({.devices = 2}, no_gpu(), identity)), SizeIs(2));
  identity.local_rank = 3;
  EXPECT_EQ(
      refusal({}, machine_with(2), identity),
      "LOCAL_RANK=3: found 2 devices, expected one per rank on this node | start fewer ranks on this node, or set "
      "LOCAL_WORLD_SIZE");
}

TEST(Resolve, GivesTheFirstGpusToLaunchedRanks) {
  const Plan plan = resolve({}, with_free_memory({1, 2, 3, 4}), launched(0, 2));
  EXPECT_THAT(devices(plan), ElementsAre("cuda:0", "cuda:1"));  // free memory changes while the others start
  EXPECT_THAT(plan.notes, ElementsAre("2 of 4 GPUs used: one per rank on this node"));
}

TEST(Resolve, UsesTheOneGpuThatTheLauncherShowsARank) {
  const Plan plan = resolve({}, seen_through(machine_with(4), "2"), launched(1, 4));
  EXPECT_THAT(devices(plan), ElementsAre("cuda:0", "cuda:0", "cuda:0", "cuda:0"));
  EXPECT_EQ(plan.local_devices[1].uuid, "GPU-20000000");
  EXPECT_THAT(plan.warnings, IsEmpty());
}

TEST(Resolve, RefusesToShareTheOnlyGpuOverNccl) {
  EXPECT_THAT(refusal({}, one_gpu(), launched(0, 2)),
              StartsWith("2 ranks on this node share one GPU, but NCCL needs one per rank"));
  EXPECT_THAT(resolve({.backend = Backend::gloo}, one_gpu(), launched(0, 2)).warnings,
              ElementsAre("2 ranks on this node share one GPU"));
}

TEST(Resolve, DoesNotMindAGpuThatItsOwnRankHasTaken) {
  EXPECT_THAT(devices(resolve({}, with_unusable(2, {0, 1}), launched(1, 2))), ElementsAre("cuda:0", "cuda:1"));
  EXPECT_THAT(devices(resolve({.devices = {0, 1}}, with_unusable(2, {0}), launched(1, 2))),
              ElementsAre("cuda:0", "cuda:1"));
}

TEST(Resolve, RefusesALaunchThatDoesNotFit) {
  EXPECT_EQ(refusal({}, machine_with(2), launched(0, 4)),
            "4 ranks of torchrun on this node: found 2 visible GPUs, expected one per rank | use 2 ranks per node");
  EXPECT_EQ(refusal({.nprocs = 3}, machine_with(2), launched(0, 2)),
            "--nprocs 3: the ranks run already; torchrun started 2 (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE) | "
            "remove --nprocs, or start that many ranks");
  for (const DeviceSpec& request :
       {DeviceSpec(3), DeviceSpec({0, 1, 3}), DeviceSpec("usable:2"), DeviceSpec("free:2")}) {
    EXPECT_THAT(refusal({.devices = request}, machine_with(4), launched(0, 2)),
                StartsWith("--devices " + request.text()));
  }
  EXPECT_THAT(refusal({.devices = -1}, machine_with(4), launched(0, 2)), HasSubstr("found 4 devices"));
  EXPECT_THAT(refusal({.devices = 3}, no_gpu(), launched(0, 2)), HasSubstr("found 3 devices"));
}

TEST(Resolve, KeepsTheNamedGpusOfALaunch) {
  EXPECT_THAT(devices(resolve({.devices = {3, 1}}, machine_with(4), launched(0, 2))), ElementsAre("cuda:1", "cuda:3"));
  EXPECT_THAT(devices(resolve({.devices = 2}, machine_with(4), launched(0, 2))), ElementsAre("cuda:0", "cuda:1"));
  EXPECT_THAT(devices(resolve({}, no_gpu(), launched(0, 3))), ElementsAre("cpu", "cpu", "cpu"));
}

TEST(Resolve, CountsNamedGpusAsTheLauncherShowsThem) {
  // each rank is shown one GPU: it is device 0 of every rank, whatever is named
  const Hardware narrowed = seen_through(machine_with(4), "2");
  for (const DeviceSpec& request : {DeviceSpec(2), DeviceSpec(-1), DeviceSpec({0, 1})}) {
    EXPECT_THAT(devices(resolve({.devices = request}, narrowed, launched(1, 2))), ElementsAre("cuda:0", "cuda:0"))
        << request.text();
  }
  EXPECT_THAT(
      resolve({.devices = {0, 1}}, narrowed, launched(1, 2)).warnings,
      ElementsAre("--devices 0,1 is not used: CUDA_VISIBLE_DEVICES=\"2\" already shows this rank a single GPU"));
  EXPECT_THAT(refusal({.devices = {0, 1, 2}}, narrowed, launched(1, 2)), HasSubstr("found 3 devices"));
  // the scheduler gave the node two of its four
  const Plan two = resolve({.devices = {0, 1}}, seen_through(machine_with(4), "2,3"), launched(0, 2));
  EXPECT_THAT(devices(two), ElementsAre("cuda:0", "cuda:1"));
  EXPECT_THAT(two.warnings,
              ElementsAre("--devices 0,1 is an index among the 2 of 4 GPUs that CUDA_VISIBLE_DEVICES=\"2,3\" shows"));
  EXPECT_THAT(resolve({.devices = {0, 1}}, machine_with(4), launched(0, 2)).warnings, IsEmpty());
}

TEST(Resolve, WarnsOfSettingsThatOnlyAProgramThatStartsItsRanksReads) {
  const TrainConfig config{
      .dist = {.grace_s = 7, .max_restarts = 2}, .memory = {.halve_batch = true}, .report = {.log_dir = "logs"}};
  const std::string why = "torchrun started the ranks, and it is for programs that start their ranks themselves";
  EXPECT_THAT(resolve(config, no_gpu(), launched(0, 2)).warnings,
              ElementsAre("--dist.max_restarts has no effect: " + why, "--dist.grace_s has no effect: " + why,
                          "--report.log_dir has no effect: " + why));
  EXPECT_THAT(resolve({}, no_gpu(), launched(0, 2)).warnings, IsEmpty());
  Identity by_tool = launched(0, 2);
  by_tool.control_fd = 3;
  EXPECT_THAT(resolve({.dist = {.max_restarts = 2}}, no_gpu(), by_tool).warnings,
              ElementsAre("--dist.max_restarts has no effect: lockstep run started the ranks, and it is for programs "
                          "that start their ranks themselves; use lockstep run --max-restarts"));
  by_tool.devices = "cpu";
  EXPECT_THAT(resolve(config, no_gpu(), by_tool).warnings, IsEmpty()) << "started by this program";
  EXPECT_THAT(resolve(config, no_gpu(), kAlone).warnings, IsEmpty());
}

TEST(Resolve, WarnsOfASmallerBatchThatNoFileRemembers) {
  const TrainConfig asked{.memory = {.halve_batch = true}};
  EXPECT_THAT(resolve(asked, no_gpu(), kAlone).warnings, IsEmpty());
  TrainConfig trial = asked;
  trial.fast_dev_run = 2;
  TrainConfig steps = asked;
  steps.max_steps = 2;
  steps.barebones = true;
  TrainConfig fresh = asked;
  fresh.fresh = true;
  EXPECT_THAT(resolve(fresh, no_gpu(), kAlone).warnings, IsEmpty());
  fresh.checkpoint.enabled = fresh.report.jsonl = fresh.report.csv = false;
  for (const TrainConfig& config : {trial, steps, fresh}) {
    EXPECT_THAT(resolve(config, no_gpu(), kAlone).warnings,
                ElementsAre(HasSubstr("--memory.halve_batch remembers nothing: this run writes no files")));
  }
}

TEST(Resolve, SaysWhatSomebodyForgot) {
  Identity alone{.starts_ranks = true, .hints = {"start it with: srun <program>"}};
  const Plan plan = resolve({.nprocs = 2}, no_gpu(), alone);
  EXPECT_THAT(plan.warnings, ElementsAre("start it with: srun <program>"));
  EXPECT_EQ(plan.launch, "this program starts 2 ranks");
}

TEST(Resolve, FollowsTheDevicesThatTheSupervisorChose) {
  Identity identity = launched(1, 2);
  identity.launcher = "lockstep";
  const TrainConfig config{.devices = "free:2"};
  const Plan supervisor = resolve(config, with_free_memory({10, 70, 20, 70}), kAlone);
  identity.devices = supervisor.config.devices.text();
  const Plan worker = resolve(config, with_free_memory({70, 10, 70, 10}), identity);  // memory moved meanwhile
  EXPECT_EQ(devices(worker), devices(supervisor));

  identity.devices = resolve({.devices = 2}, no_gpu(), kAlone).config.devices.text();
  const Plan cpu = resolve({.devices = 2}, machine_with(2), identity);
  EXPECT_THAT(devices(cpu), ElementsAre("cpu", "cpu"));
  EXPECT_THAT(cpu.warnings, IsEmpty());
}

// --- the whole ---

TEST(Resolve, ReportsEverythingAtOnce) {
  const TrainConfig config{.devices = {0, 4},
                           .nprocs = 2,
                           .batch_size = 16,
                           .accumulation = 1,
                           .global_batch_size = 64,
                           .checkpoint = {.keep_last = 1}};
  std::vector<std::string> texts;
  for (const Problem& problem : problems(config, machine_with(2))) {
    EXPECT_NE(problem.hint, "") << problem.what;
    texts.push_back(problem.what);
  }
  EXPECT_THAT(texts, SizeIs(3));
  EXPECT_THAT(texts, Contains(HasSubstr("keep_last")));
  EXPECT_THAT(texts, Contains(HasSubstr("GPU 4 does not exist")));
  EXPECT_THAT(texts, Contains(HasSubstr("--global_batch_size 64")));
}

TEST(Resolve, LeavesNoFieldToDerive) {
  const Plan plan = resolve({.global_batch_size = 100}, machine_with(2), kAlone);
  EXPECT_EQ(plan.config.batch_size, 50);
  EXPECT_EQ(plan.config.accumulation, 1);
  EXPECT_EQ(plan.config.global_batch_size, 100);
  EXPECT_EQ(plan.config.run_name, "run");
  EXPECT_EQ(plan.config.run_dir, "runs/run");
  EXPECT_EQ(run_directory({.run_name = "digits"}), "runs/digits");
  EXPECT_EQ(run_directory({.run_dir = "/data/a", .run_name = "digits"}), "/data/a");
  EXPECT_EQ(plan.loader.batch.global_batch_size, 100);
  EXPECT_EQ(plan.loader.seed, 42U);
}

TEST(Resolve, ValidatesInOrderAndWhole) {
  const TrainConfig config{.batch_size = 8,
                           .global_batch_size = 100,
                           .sampler = {.order = SampleOrder::pytorch, .shuffle = true, .drop_last = true}};
  const Plan plan = resolve(config, machine_with(2), kAlone);
  EXPECT_EQ(plan.loader.sampler.order, SampleOrder::pytorch);
  EXPECT_EQ(plan.eval_loader.sampler.order, SampleOrder::keyed);
  EXPECT_FALSE(plan.eval_loader.sampler.shuffle);
  EXPECT_FALSE(plan.eval_loader.sampler.drop_last);
  EXPECT_EQ(plan.eval_loader.batch.batch_size, 8);
  EXPECT_EQ(plan.eval_loader.batch.accumulation, 1);
  EXPECT_EQ(plan.eval_loader.batch.global_batch_size, 16);
}

TEST(Resolve, ValidatesAsManySamplesAtOnceOnAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3, 4}) {
    const BatchPlan batch = resolve({.global_batch_size = 32}, machine_with(ranks), kAlone).eval_loader.batch;
    EXPECT_EQ(batch.global_batch_size, 32) << ranks;
    EXPECT_EQ(batch.accumulation, 1) << ranks;
  }
}

TEST(Resolve, WarnsOfRanksWithoutSamples) {
  EXPECT_THAT(resolve({.global_batch_size = 3}, eight_gpus(), kAlone).warnings,
              ElementsAre(HasSubstr("some ranks have no samples")));
}

TEST(Resolve, PlansADescribedMachine) {
  const std::filesystem::path folder = std::filesystem::path(LOCKSTEP_TEST_DATA) / "hardware";
  const Plan eight = resolve({.nprocs = 4}, read_hardware(folder / "eight_gpus.json"), kAlone);
  EXPECT_THAT(devices(eight), ElementsAre("cuda:1", "cuda:3", "cuda:4", "cuda:7"));
  EXPECT_EQ(eight.threads_per_rank, 32);
  EXPECT_THAT(devices(resolve({}, read_hardware(folder / "one_gpu.json"), kAlone)), ElementsAre("cuda:0"));
  EXPECT_THAT(devices(resolve({}, read_hardware(folder / "no_gpu.json"), kAlone)), ElementsAre("cpu"));
}

TEST(Plan, NeedsOneMicroBatchForAStaticGraph) {
  TrainConfig config{.batch_size = 4, .accumulation = 2, .dist = {.static_graph = true}};
  config.nprocs = 2;
  EXPECT_EQ(refusal(config, no_gpu()),
            "--dist.static_graph with --accumulation 2: a static graph needs a step of one micro-batch | remove "
            "--dist.static_graph");
  config.accumulation = 1;
  EXPECT_TRUE(problems(config, no_gpu()).empty());
  config.accumulation = 2;
  config.nprocs = 1;
  EXPECT_TRUE(problems(config, no_gpu()).empty()) << "there is no reducer";
}

}  // namespace
}  // namespace lockstep
