// The judgement of `lockstep doctor`, on facts of machines that this one is not.
#include <algorithm>
#include <functional>

#include <gmock/gmock.h>

#include "cli/doctor/findings.h"
#include "cli/doctor/output.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::EndsWith;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

GpuDetails healthy_gpu(int number) {
  return {.number = number,
          .name = "Test GPU",
          .uuid = "GPU-" + std::to_string(number),
          .pci_bus_id = "00000000:0" + std::to_string(number) + ":00.0",
          .compute_capability = "9.0",
          .memory_bytes = 80 * kGiB,
          .free_bytes = 79 * kGiB,
          .ecc = true,
          .power_limit_w = 700,
          .default_power_limit_w = 700,
          .nvlinks = 18};
}

/// A machine with so many GPUs on which everything is fine.
Facts healthy(int gpus = 4) {
  Facts facts{.build = {.version = "1.2.3",
                        .build_id = "ab12",
                        .compiler = "GNU 12.2.0",
                        .libtorch = {.version = "2.11.0", .cuda_version = "13.0"},
                        .libtorch_library = {.file = "/opt/secret_folder/libtorch_cpu.so"},
                        .cuda = true,
                        .nccl = true,
                        .libraries = {.nccl = {.version = "2.28.9", .file = "/opt/secret_folder/libnccl.so.2"},
                                      .cudnn = {.version = "9.19.0", .file = "/opt/secret_folder/libcudnn.so.9"}}},
              .machine = {.kernel = "Linux 6.1.0 x86_64",
                          .libc = "glibc 2.36",
                          .cores_present = 16,
                          .cpu = {.cores = 16,
                                  .memory_bytes = 128 * kGiB,
                                  .affinity_cores = 16,
                                  .machine_memory_bytes = 128 * kGiB},
                          .available_memory_bytes = 120 * kGiB,
                          .shared_memory_bytes = 64 * kGiB,
                          .open_files = {.soft = 1024, .hard = 524288},
                          .processes = {.soft = 100000, .hard = 100000}},
              .network = {.interfaces = {{.name = "lo", .addresses = {"127.0.0.1"}, .up = true, .loopback = true},
                                         {.name = "eth0", .addresses = {"10.0.0.5"}, .up = true}},
                          .host = {.name = "secret_host", .addresses = {"10.0.0.5"}, .here = true},
                          .port = 29500,
                          .port_source = "default"},
              .directory = DirectoryFacts{.asked = "runs",
                                          .checked = "/data/secret_user/runs",
                                          .file_system = "ext4",
                                          .free_bytes = 500 * kGiB,
                                          .sync_s = 0.002},
              .ranks = std::max(1, gpus)};
  facts.gpus.visible_devices = "(unset)";
  facts.gpus.device_order = "PCI_BUS_ID";
  if (gpus > 0) {
    facts.gpus.driver = {.state = DriverState::running, .version = "580.65.06", .cuda_version = "13.0"};
    facts.gpus.kernel_module = "580.65.06";
    facts.gpus.pci_gpus = gpus;
    facts.gpus.device_files = {{.path = "/dev/nvidia-uvm"}, {.path = "/dev/nvidia0"}, {.path = "/dev/nvidiactl"}};
  }
  for (int number = 0; number < gpus; ++number) {
    facts.gpus.driver.gpus.push_back(healthy_gpu(number));
    facts.gpus.numa_nodes.emplace_back(number / 2);
    facts.gpus.processes.emplace_back();
    facts.gpus.visible_uuids.push_back("GPU-" + std::to_string(number));
    for (int other = 0; other < number; ++other) {
      facts.gpus.driver.pairs.push_back({.a = other, .b = number, .path = "NVLink", .peer_access = true});
    }
  }
  return facts;
}

auto is(FindingLevel level, const std::string& subject, const std::string& found, const std::string& fix = "") {
  return AllOf(Field("level", &Finding::level, level), Field("subject", &Finding::subject, subject),
               Field("found", &Finding::found, HasSubstr(found)), Field("fix", &Finding::fix, HasSubstr(fix)));
}
auto ok(const std::string& subject, const std::string& found) { return is(FindingLevel::ok, subject, found); }
auto warning(const std::string& subject, const std::string& found, const std::string& fix) {
  return is(FindingLevel::warning, subject, found, fix);
}
auto failure(const std::string& subject, const std::string& found, const std::string& fix) {
  return is(FindingLevel::failure, subject, found, fix);
}

/// The findings of a healthy machine after one change.
std::vector<Finding> after(const std::function<void(Facts&)>& change, int gpus = 4) {
  Facts facts = healthy(gpus);
  change(facts);
  return judge(facts);
}

TEST(DoctorFindings, NothingIsWrongWithAHealthyMachine) {
  for (const int gpus : {0, 1, 4, 8}) {
    const std::vector<Finding> findings = judge(healthy(gpus));
    EXPECT_THAT(findings, Each(Field(&Finding::level, FindingLevel::ok))) << gpus;
    EXPECT_THAT(findings, Each(Field(&Finding::fix, IsEmpty()))) << gpus;
    EXPECT_FALSE(has_failure(findings));
    EXPECT_THAT(
        doctor_text(healthy(gpus), findings, 100),
        EndsWith("\nverdict: everything is fine\n"
                 "for an issue: lockstep system prints the facts without names of hosts, users and directories\n"));
  }
}

TEST(DoctorFindings, LibrariesOfCudaHaveAVersionOrAReason) {
  EXPECT_THAT(judge(healthy()), Contains(ok("NCCL", "2.28.9 (/opt/secret_folder/libnccl.so.2)")));
  EXPECT_THAT(judge(healthy()), Contains(ok("cuDNN", "9.19.0")));
  const auto without_cuda = [](Facts& facts) { facts.build = {.version = "1.2.3"}; };
  EXPECT_THAT(after(without_cuda), Contains(ok("NCCL", "none: this build uses no CUDA")));
  const auto damaged = [](Facts& facts) {
    facts.build.libraries.nccl = {.file = "/odd/libnccl.so.2", .problem = "it does not give its version"};
  };
  EXPECT_THAT(after(damaged), Contains(failure("NCCL", "/odd/libnccl.so.2: it does not", "LD_LIBRARY_PATH")));
  EXPECT_THAT(after(damaged, 0), Contains(warning("NCCL", "it does not", "LD_LIBRARY_PATH"))) << "no GPU needs it";
}

TEST(DoctorFindings, NamesTheBackendsThatRanksCanUse) {
  EXPECT_THAT(judge(healthy()), Contains(ok("backends", "gloo, shm, nccl")));
  EXPECT_THAT(judge(healthy(0)), Contains(ok("backends", "gloo, shm; nccl: no driver")));
  EXPECT_THAT(after([](Facts& facts) { facts.gpus.visible_uuids.clear(); }),
              Contains(ok("backends", "gloo, shm; nccl: no GPU")));
  EXPECT_THAT(after([](Facts& facts) { facts.build.nccl = false; }),
              Contains(ok("backends", "gloo, shm; nccl: this build is without it")));
  EXPECT_THAT(after([](Facts& facts) { facts.build.libtorch = {}; }),
              Contains(ok("backends", "none: only the tool was built")));
  EXPECT_EQ(system_json(healthy(0)).at("backends"), (Json{"gloo", "shm"}));
}

TEST(DoctorFindings, LibTorchIsWhereTheLoaderFindsIt) {
  EXPECT_THAT(judge(healthy()), Contains(ok("LibTorch", "2.11.0 for CUDA 13.0, used with CUDA and NCCL (/opt/secret")));
  const auto without = [](Facts& facts) { facts.build.libtorch_library = {.problem = "libtorch_cpu.so is not found"}; };
  EXPECT_THAT(after(without),
              Contains(warning("LibTorch", "2.11.0 is needed: libtorch_cpu.so is not", "/opt/libtorch")));
}

TEST(DoctorFindings, EveryWarningAndFailureHasAFix) {
  Facts facts = healthy();
  facts.build.libraries.nccl = {.problem = "libnccl.so.2 is not found"};
  facts.ranks = 100;
  facts.build.libtorch_library = {.problem = "libtorch_cpu.so is not found"};
  facts.machine = {.open_files = {.hard = 10},
                   .processes = {.soft = 100},
                   .address_space = {.soft = 1},
                   .file_size = {.soft = 1},
                   .infiniband = {"mlx5_0 port 1: ACTIVE"}};
  facts.machine.locked_memory.soft = 1;
  facts.gpus.driver.gpus[1].error = "GPU is lost";
  facts.network = {};
  facts.launcher.problems.push_back({.what = "RANK=x", .hint = ""});
  facts.directory->file_system = "tmpfs";
  facts.directory->free_bytes = 0;
  facts.directory->lock_problem = "no locks";
  const std::vector<Finding> findings = judge(facts);
  EXPECT_GT(std::ranges::count(findings, FindingLevel::failure, &Finding::level), 5);
  for (const Finding& found : findings) {
    EXPECT_EQ(found.level == FindingLevel::ok, found.fix.empty()) << found.subject << ": " << found.found;
    EXPECT_THAT(kFindingGroups, Contains(found.group));
  }
}

TEST(DoctorFindings, KnowsTheDriverThatACudaVersionNeeds) {
  EXPECT_EQ(oldest_driver_for("13.0"), 580);
  EXPECT_EQ(oldest_driver_for("13.2"), 580);
  EXPECT_EQ(oldest_driver_for("12.8"), 525);
  EXPECT_EQ(oldest_driver_for("11.8"), 450);
  EXPECT_EQ(oldest_driver_for("14.0"), std::nullopt);
  EXPECT_EQ(oldest_driver_for(""), std::nullopt);
}

TEST(DoctorFindings, JudgesTheDriverByTheCudaOfLibTorch) {
  const auto with = [](const char* driver, const char* cuda, const char* built) {
    return after([&](Facts& facts) {
      facts.gpus.driver.version = driver;
      facts.gpus.driver.cuda_version = cuda;
      facts.build.libtorch.cuda_version = built;
    });
  };
  EXPECT_THAT(with("550.54.15", "12.4", "13.0"),
              Contains(failure("driver", "too old: LibTorch was built for CUDA 13.0, which needs driver 580 or newer",
                               "install driver 580 or newer, or build with a LibTorch for CUDA 12.x")));
  EXPECT_THAT(with("550.54.15", "12.4", "12.8"), Contains(ok("driver", "by the compatibility of CUDA 12.x")));
  EXPECT_THAT(with("515.65.01", "11.7", "12.8"), Contains(failure("driver", "needs driver 525 or newer", "525")));
  EXPECT_THAT(with("580.65.06", "13.0", "12.8"), Contains(ok("driver", "NVIDIA 580.65.06, supports CUDA 13.0")));
  EXPECT_THAT(with("580.65.06", "13.0", "14.0"), Contains(failure("driver", "needs a newer driver", "install")));
  EXPECT_THAT(with("550.54.15", "13.0", "13.0"), Contains(ok("driver", "550")))
      << "with NVIDIA's compatibility package";
}

TEST(DoctorFindings, NamesAnAbsentDriver) {
  EXPECT_THAT(after([](Facts& facts) { facts.gpus.pci_gpus = 2; }, 0),
              Contains(failure("driver", "2 GPUs of NVIDIA on the PCI bus, but no driver", "580 or newer")));
  EXPECT_THAT(after(
                  [](Facts& facts) {
                    facts.gpus.pci_gpus = 2;
                    facts.build.cuda = false;
                  },
                  0),
              Contains(warning("driver", "no driver", "install")));
  EXPECT_THAT(after([](Facts& facts) { facts.gpus.kernel_module = "580.65.06"; }, 0),
              Contains(failure("driver", "the kernel has NVIDIA's driver 580.65.06", "docker run --gpus all")));
}

TEST(DoctorFindings, NamesADriverThatDoesNotStart) {
  const auto with = [](const char* note, const char* module) {
    return after(
        [&](Facts& facts) {
          facts.gpus.driver = {.state = DriverState::unusable, .note = note};
          facts.gpus.kernel_module = module;
        },
        0);
  };
  EXPECT_THAT(with("the NVIDIA driver does not start: Driver/library version mismatch", "550.54.15"),
              Contains(failure("driver", "mismatch", "the kernel still has the driver 550.54.15: reboot")));
  EXPECT_THAT(with("the NVIDIA driver does not start: Driver Not Loaded", ""),
              Contains(failure("driver", "Not Loaded", "modprobe nvidia")));
}

TEST(DoctorFindings, NamesEveryGpuWithAProblem) {
  const std::vector<Finding> findings = after([](Facts& facts) {
    std::vector<GpuDetails>& gpus = facts.gpus.driver.gpus;
    gpus[0].compute_mode = GpuComputeMode::prohibited;
    gpus[1] = {.number = 1, .error = "GPU is lost"};
    gpus[2].uncorrected_errors = 2;
    gpus[3].power_limit_w = 300;
    gpus[3].nvlinks = 17;
    facts.gpus.processes[2] = {"pid 71 'other' (user x)"};
  });
  EXPECT_THAT(findings, Contains(warning("GPU 0", "its compute mode is prohibited", "nvidia-smi -i 0 -c 0")));
  EXPECT_THAT(findings, Contains(failure("GPU 1", "it does not answer: GPU is lost", "dmesg")));
  EXPECT_THAT(findings, Contains(warning("GPU 2", "2 memory errors that ECC could not correct", "reset")));
  EXPECT_THAT(findings, Contains(warning("GPU 2", "used by pid 71 'other' (user x)", "--devices")));
  EXPECT_THAT(findings, Contains(warning("GPU 3", "limited to 300 W, the default is 700 W", "-pl 700")));
  EXPECT_THAT(findings, Contains(warning("GPU 3", "17 NVLinks active, another GPU of this kind has 18", "nvlink -s")));
  EXPECT_THAT(findings, Contains(ok("GPU 3",
                                    "Test GPU, 80.0 GiB (79.0 GiB free), compute 9.0, ECC, 300 W, 17 NVLinks, "
                                    "NUMA node 1, 00000000:03:00.0, GPU-3")));
}

TEST(DoctorFindings, LooksAtWhichGpusAProcessMayUse) {
  const auto hide = [](std::size_t count) {
    return after([&](Facts& facts) {
      for (std::size_t i = 0; i < count; ++i) {
        facts.gpus.driver.gpus[i] = {.number = static_cast<int>(i), .hidden = true};
      }
    });
  };
  EXPECT_THAT(hide(2), Contains(ok("permission", "GPUs 0-1 belong to others")));
  EXPECT_THAT(hide(4), Contains(failure("permission", "none of 4 GPUs", "--gres=gpu:N")));
  const auto refuse = [](std::vector<DeviceFile> files) {
    return after([&](Facts& facts) { facts.gpus.device_files = files; });
  };
  const std::string denied = "Operation not permitted";
  EXPECT_THAT(refuse({{"/dev/nvidia-uvm", ""}, {"/dev/nvidia0", ""}, {"/dev/nvidia1", denied}, {"/dev/nvidiactl", ""}}),
              Not(Contains(Field(&Finding::subject, "device files"))));
  EXPECT_THAT(refuse({{"/dev/nvidia-uvm", ""}, {"/dev/nvidia0", denied}, {"/dev/nvidiactl", ""}}),
              Contains(failure("device files", "/dev/nvidia0 and all others", "scheduler")));
  EXPECT_THAT(refuse({{"/dev/nvidia-uvm", ""}, {"/dev/nvidia0", ""}, {"/dev/nvidiactl", denied}}),
              Contains(failure("device files", "/dev/nvidiactl (Operation not permitted)", "permissions")));
  EXPECT_THAT(refuse({{"/dev/nvidia0", ""}, {"/dev/nvidiactl", ""}}),
              Contains(warning("device files", "/dev/nvidia-uvm is missing", "nvidia-modprobe")));
}

TEST(DoctorFindings, ReadsTheVariablesOfCuda) {
  const auto see = [](const char* text, std::vector<std::string> uuids) {
    return after([&](Facts& facts) {
      facts.gpus.visible_devices = text;
      facts.gpus.visible_uuids = uuids;
    });
  };
  EXPECT_THAT(see("0,1", {"GPU-0", "GPU-1"}), Contains(ok("CUDA_VISIBLE_DEVICES", "\"0,1\" shows 2 of 4 GPUs")));
  EXPECT_THAT(see("", {}), Contains(warning("CUDA_VISIBLE_DEVICES", "\"\" shows 0 of 4 GPUs", "unset it")));
  EXPECT_THAT(see("0,9,1", {"GPU-0"}), Contains(warning("CUDA_VISIBLE_DEVICES", "ends the list", "numbers or UUIDs")));
  EXPECT_THAT(after([](Facts& facts) {
                facts.gpus.driver.gpus[0].name = "Older GPU";
                facts.gpus.device_order = "FASTEST_FIRST";
              }),
              AllOf(Contains(warning("kinds", "the GPUs differ", "--devices")),
                    Contains(warning("CUDA_DEVICE_ORDER", "FASTEST_FIRST", "PCI_BUS_ID"))));
}

TEST(DoctorFindings, ComparesTheLimitsWithTheRanks) {
  const auto machine = [](const std::function<void(MachineFacts&)>& change, int gpus = 4) {
    return after([&](Facts& facts) { change(facts.machine); }, gpus);
  };
  EXPECT_THAT(machine([](auto& m) { m.cpu.cores = 3; }), Contains(warning("cores", "fewer than 4 ranks", "srun")));
  EXPECT_THAT(machine([](auto& m) { m.available_memory_bytes = kGiB; }),
              Contains(warning("memory", "less than a GiB for each of 4 ranks", "fewer ranks")));
  EXPECT_THAT(machine([](auto& m) { m.shared_memory_bytes = 64 << 20; }),
              Contains(warning("/dev/shm", "64.0 MiB; NCCL", "--shm-size=1g")));
  EXPECT_THAT(machine([](auto& m) { m.shared_memory_bytes = 64 << 20; }, 0), Contains(ok("/dev/shm", "64.0 MiB")));
  EXPECT_THAT(machine([](auto& m) { m.open_files.hard = 64; }),
              Contains(failure("open files", "the hard limit is 64, 4 ranks need up to 88", "ulimit -Hn")));
  EXPECT_THAT(machine([](auto& m) { m.processes.soft = 100; }),
              Contains(warning("processes", "100 more", "ulimit -u")));
  EXPECT_THAT(machine([](auto& m) {
                m.max_tasks = 100;
                m.tasks = 90;
              }),
              Contains(failure("processes", "10 more", "pids.max")));
  EXPECT_THAT(machine([](auto& m) {
                m.processes.soft = 100;
                m.root = true;
              }),
              Not(Contains(Field(&Finding::subject, "processes"))))
      << "the limit does not apply to root";
  EXPECT_THAT(machine([](auto& m) { m.address_space.soft = kGiB; }), Contains(failure("address space", "CUDA", "-v")));
  EXPECT_THAT(machine([](auto& m) { m.address_space.soft = kGiB; }, 0), Contains(warning("address space", "", "-v")));
  EXPECT_THAT(machine([](auto& m) { m.file_size.soft = kGiB; }),
              Contains(warning("file size", "1.0 GiB", "ulimit -f")));
  EXPECT_THAT(machine([](auto& m) {
                m.infiniband = {"mlx5_0 port 1: ACTIVE"};
                m.locked_memory.soft = 65536;
              }),
              Contains(warning("locked memory", "64.0 KiB", "memlock")));
}

TEST(DoctorFindings, LooksAtTheNetwork) {
  const auto network = [](const std::function<void(NetworkFacts&)>& change) {
    return after([&](Facts& facts) { change(facts.network); });
  };
  EXPECT_THAT(network([](auto& n) { n.interfaces.erase(n.interfaces.begin()); }),
              Contains(failure("loopback", "no loopback interface", "ip link set lo up")));
  EXPECT_THAT(network([](auto& n) { n.host = {.name = "gone", .error = "Name or service not known"}; }),
              Contains(warning("host name", "gone cannot be resolved", "/etc/hosts")));
  EXPECT_THAT(network([](auto& n) { n.host = {.name = "a", .addresses = {"10.9.9.9"}}; }),
              Contains(warning("host name", "a is 10.9.9.9, not an address of this machine", "/etc/hosts")));
  EXPECT_THAT(network([](auto& n) { n.gloo_interface = "eth0"; }), Contains(ok("Gloo", "eth0 (GLOO_SOCKET_IFNAME)")));
  EXPECT_THAT(network([](auto& n) { n.gloo_interface = "ib0"; }),
              Contains(failure("GLOO_SOCKET_IFNAME", "ib0: this machine has no such interface", "one of lo, eth0")));
  EXPECT_THAT(network([](auto& n) { n.nccl_interface = "eth"; }), Contains(ok("NCCL", "NCCL_SOCKET_IFNAME=eth")));
  EXPECT_THAT(network([](auto& n) { n.nccl_interface = "ib"; }),
              Contains(failure("NCCL_SOCKET_IFNAME", "fits no interface", "one of lo, eth0")));
  EXPECT_THAT(network([](auto& n) { n.master = ResolvedHost{.name = "node0", .error = "Name or service not known"}; }),
              Contains(failure("MASTER_ADDR", "node0 cannot be resolved", "rank 0")));
  EXPECT_THAT(
      network([](auto& n) {
        n.master = ResolvedHost{.name = "node0", .addresses = {"10.0.0.1"}};
        n.route_address = "10.0.0.5";
        n.port_problem = "MASTER_PORT 29500 is held by pid 3";
        n.port_is_chosen = true;
      }),
      AllOf(Contains(ok("Gloo", "several machines 10.0.0.5 (eth0)")), Contains(ok("port", "on another machine"))));
}

TEST(DoctorFindings, APortThatIsHeldMattersIfItWasChosen) {
  const auto held = [](bool chosen) {
    return after([&](Facts& facts) {
      facts.network.port_problem = "MASTER_PORT 29500 is held by pid 71 'other' (user x)";
      facts.network.port_is_chosen = chosen;
    });
  };
  EXPECT_THAT(held(true), Contains(failure("port", "is held by pid 71 'other' (user x)", "another port")));
  EXPECT_THAT(held(false), Contains(warning("port", "only launches on several machines use it", "--master-port")));
  EXPECT_THAT(after([](Facts& facts) {
                facts.launcher.identity = Identity{.world_size = 4, .launcher = "torchrun", .agent_store = true};
                facts.network.port_problem = "MASTER_PORT 29500 is held by pid 71";
                facts.network.port_is_chosen = true;
              }),
              Contains(ok("port", "served by the launcher")));
}

TEST(DoctorFindings, NcclTakesAnInterfaceByItself) {
  const auto with = [](std::vector<std::string> names, int gpus = 4) {
    return after(
        [&](Facts& facts) {
          facts.network.interfaces = {{.name = "lo", .addresses = {"127.0.0.1"}, .up = true, .loopback = true}};
          for (const std::string& name : names) {
            facts.network.interfaces.push_back({.name = name, .addresses = {"10.0.0.5"}, .up = true});
          }
        },
        gpus);
  };
  const auto several = [](const std::string& which) {
    return Contains(ok("NCCL", "the ranks of one machine use lo, those of several " + which + "; NCCL_SOCKET_IFNAME"));
  };
  EXPECT_THAT(with({"docker0", "eth0"}), several("eth0"));
  EXPECT_THAT(with({"docker0", "eth0", "virbr0", "tailscale0"}), several("eth0, and tailscale0 for data too"));
  EXPECT_THAT(with({"eth0", "ib0"}), several("ib0"));
  EXPECT_THAT(with({"docker0"}), several("docker0"));
  EXPECT_THAT(with({}), several("lo"));
  EXPECT_THAT(with({"eth0"}, 0), Not(several("eth0"))) << "without GPUs nothing uses NCCL";
  EXPECT_THAT(after([](Facts& facts) {
                facts.network.interfaces.push_back({.name = "ib0", .addresses = {"10.1.0.5"}});
                facts.network.interfaces.push_back({.name = "ib1", .up = true});
              }),
              several("eth0"))
      << "one is down, the other one has no address";
  EXPECT_THAT(after([](Facts& facts) { facts.network.nccl_interface = "eth0"; }), Not(several("eth0")));
}

TEST(DoctorFindings, NcclReadsItsVariableAsPrefixes) {
  EXPECT_TRUE(nccl_would_use("eth", "eth0"));
  EXPECT_TRUE(nccl_would_use("ib,eth", "eth0"));
  EXPECT_FALSE(nccl_would_use("=eth", "eth0"));
  EXPECT_TRUE(nccl_would_use("=eth0", "eth0"));
  EXPECT_FALSE(nccl_would_use("^eth", "eth0"));
  EXPECT_TRUE(nccl_would_use("^docker,lo", "eth0"));
  EXPECT_TRUE(nccl_would_use("^=eth", "eth0"));
}

TEST(DoctorFindings, LooksAtLauncherAndVariables) {
  const auto launch = [](const std::function<void(LauncherFacts&)>& change) {
    return after([&](Facts& facts) { change(facts.launcher); });
  };
  EXPECT_THAT(launch([](auto& l) { l.problems = {{.what = "RANK=4: expected less than 4", .hint = "set RANK"}}; }),
              AllOf(Contains(failure("launcher", "RANK=4", "set RANK")), Not(Contains(ok("launcher", "none")))));
  EXPECT_THAT(launch([](auto& l) { l.identity = Identity{.hints = {"2 tasks, but srun is missing: srun ./train"}}; }),
              Contains(warning("launcher", "srun is missing", "one rank is not intended")));
  EXPECT_THAT(launch([](auto& l) {
                l.identity = Identity{.rank = 3, .world_size = 4, .launcher = "Slurm", .variables = {"SLURM_PROCID"}};
                l.job = "12.0";
                l.job_left_s = 90;
              }),
              AllOf(Contains(ok("launcher", "Slurm, rank 3 of 4, from SLURM_PROCID")),
                    Contains(ok("job", "12.0, ends in 01:30"))));
  EXPECT_THAT(
      launch([](auto& l) {
        l.variables = {{"NCCL_P2P_DISABLE", "1"}};
      }),
      AllOf(Contains(ok("variables", "NCCL_P2P_DISABLE=1")), Contains(warning("NCCL_P2P_DISABLE", "", "unset"))));
  EXPECT_THAT(launch([](auto& l) {
                l.variables = {{"NCCL_P2P_DISABLE", "0"}};
              }),
              Not(Contains(Field(&Finding::level, FindingLevel::warning))));
  EXPECT_THAT(launch([](auto& l) {
                l.variables = {{"OMP_NUM_THREADS", "8"}};
              }),
              Contains(warning("OMP_NUM_THREADS", "8 threads in each of 4 ranks, on 16 cores", "set it to 4")));
  EXPECT_THAT(launch([](auto& l) { l.settings = {"LOCKSTEP_CFG_OPTIM_LR"}; }),
              Contains(ok("settings", "LOCKSTEP_CFG_OPTIM_LR")));
}

TEST(DoctorFindings, LooksAtTheRunDirectory) {
  const auto directory = [](const std::function<void(DirectoryFacts&)>& change) {
    return after([&](Facts& facts) { change(*facts.directory); });
  };
  EXPECT_THAT(directory([](auto& d) {
                d.failed = "create a directory";
                d.error = "Permission denied";
              }),
              Contains(failure("writing", "cannot create a directory: Permission denied", "--run_dir")));
  EXPECT_THAT(directory([](auto& d) { d.free_bytes = kGiB; }),
              Contains(warning("space", "1.0 GiB free", "free space")));
  EXPECT_THAT(directory([](auto& d) { d.file_system = "tmpfs"; }), Contains(warning("file system", "memory", "disk")));
  EXPECT_THAT(directory([](auto& d) { d.file_system = "overlay"; }),
              Contains(warning("file system", "deleted with this container", "docker -v")));
  EXPECT_THAT(directory([](auto& d) { d.lock_problem = "two locks on one file were granted at once"; }),
              Contains(failure("lock", "two runs could write to one directory", "NFS")));
  EXPECT_THAT(directory([](auto& d) { d.sync_s = 0.5; }), Contains(warning("fsync", "500.0 ms", "faster disk")));
  EXPECT_THAT(directory([](auto& d) { d.clock_skew_s = -90; }),
              Contains(warning("clock", "90.0 s earlier than the clock of this machine", "NTP")));
}

TEST(DoctorReport, IsOnePageThatFitsTheTerminal) {
  Facts facts = healthy(8);
  facts.gpus.driver.gpus[2] = {.number = 2, .error = "GPU is lost"};
  facts.gpus.processes[3] = {"pid 71 'other' (user x)"};
  std::erase_if(facts.gpus.driver.pairs, [](const GpuPair& pair) { return pair.a == 2 || pair.b == 2; });
  const std::vector<Finding> findings = judge(facts);
  const std::string text = doctor_text(facts, findings, 80);
  std::size_t longest = 0;
  std::size_t begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    longest = std::max(longest, end - begin);
    begin = end + 1;
  }
  EXPECT_LE(longest, 82U) << text;  // the table of 8 GPUs
  EXPECT_THAT(text, HasSubstr("\n  FAIL  GPU 2         it does not answer: GPU is lost\n"));
  EXPECT_THAT(text, HasSubstr("\n                      fix: dmesg shows"));
  EXPECT_THAT(text, HasSubstr("verdict: 1 check failed (GPU 2), 1 warning (GPU 3)\n"));
  EXPECT_TRUE(has_failure(findings));
}

TEST(DoctorReport, HasTheSameAsJson) {
  Facts facts = healthy(2);
  facts.directory->free_bytes = 0;
  const std::vector<Finding> findings = judge(facts);
  const Json json = parse_json(dump_json(doctor_json(facts, findings)));
  EXPECT_EQ(json["failures"], 0);
  EXPECT_EQ(json["warnings"], 1);
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_EQ(json["findings"].size(), findings.size());
  EXPECT_EQ(json["system"]["driver"]["gpus"][1]["memory_bytes"], 80 * kGiB);
  EXPECT_EQ(json["system"]["driver"]["pairs"][0]["path"], "NVLink");
  EXPECT_EQ(json["gpu_uuids"]["1"], "GPU-1");
  EXPECT_EQ(json["network"]["host"]["name"], "secret_host");
  EXPECT_EQ(json["directory"]["file_system"], "ext4");
}

TEST(SystemReport, NamesNoHostUserDirectoryAddressOrUuid) {
  Facts facts = healthy(2);
  facts.gpus.processes[0] = {"pid 71 'secret_program' (user secret_user)"};
  facts.network.master = ResolvedHost{.name = "secret_master", .addresses = {"10.0.0.1"}};
  facts.network.port_problem = "held by 'secret_program'";
  const std::string text = system_text(facts, 80) + dump_json(system_json(facts));
  for (const char* secret : {"secret", "10.0.0", "GPU-0", "/opt", "/data"}) {
    EXPECT_THAT(text, Not(HasSubstr(secret)));
    EXPECT_THAT(dump_json(doctor_json(facts, judge(facts))) + facts.build.libtorch_library.file, HasSubstr(secret));
  }
  EXPECT_THAT(text, HasSubstr("2 x Test GPU (80.0 GiB, compute 9.0)"));
}

TEST(DoctorFacts, FindsTheFileSystemOfADirectory) {
  constexpr std::string_view kMounts =
      "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
      "22 21 0:20 / /data rw - nfs4 server:/export rw\n"
      "23 21 0:21 / /data/scratch rw master:1 - lustre fs rw\n"
      "24 21 0:22 / /with\\040blank rw - xfs /dev/sdb rw\n"
      "25 21 0:23 / /hidden rw - ext4 /dev/sdc rw\n"
      "26 21 0:24 / /hidden rw - tmpfs tmpfs rw\n"
      "damaged\n";
  EXPECT_EQ(file_system_of(kMounts, "/home/x"), "ext4");
  EXPECT_EQ(file_system_of(kMounts, "/"), "ext4");
  EXPECT_EQ(file_system_of(kMounts, "/data"), "nfs4");
  EXPECT_EQ(file_system_of(kMounts, "/database"), "ext4");
  EXPECT_EQ(file_system_of(kMounts, "/data/scratch/runs"), "lustre");
  EXPECT_EQ(file_system_of(kMounts, "/with blank/runs"), "xfs");
  EXPECT_EQ(file_system_of(kMounts, "/hidden/runs"), "tmpfs") << "the later mount hides the earlier one";
  EXPECT_EQ(file_system_of("", "/data"), "");
}

}  // namespace
}  // namespace lockstep
