#include "cli/doctor/findings.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/file_lock.h"
#include "base/text.h"
#include "cli/doctor/judgement.h"
#include "launch/descriptor_limit.h"

namespace lockstep {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

/// "580.65.06" -> 580, "13.0" -> 13; 0: no number.
int major_of(std::string_view version) {
  return static_cast<int>(parse_int(version.substr(0, version.find('.'))).value_or(0));
}

/// Whether version `a` ("12.8") is not older than `b` ("12.4").
bool at_least(std::string_view a, std::string_view b) {
  const auto minor_of = [](std::string_view version) {
    return parse_int(version.substr(std::min(version.find('.') + 1, version.size()))).value_or(0);
  };
  return std::pair(static_cast<std::int64_t>(major_of(a)), minor_of(a)) >=
         std::pair(static_cast<std::int64_t>(major_of(b)), minor_of(b));
}

// ---- versions

std::string libtorch_text(const BuildFacts& build) {
  if (build.libtorch.version.empty()) {
    return "none: only the tool was built (preset core)";
  }
  return fmt::format(
      "{}{}, {}", build.libtorch.version,
      build.libtorch.cuda_version.empty() ? "" : " for CUDA " + build.libtorch.cuda_version,
      build.cuda ? build.nccl ? "used with CUDA and NCCL" : "used with CUDA, without NCCL" : "used without CUDA");
}

void judge_driver_version(const Facts& facts, Judgement& judgement) {
  const DriverDetails& driver = facts.gpus.driver;
  if (driver.state != DriverState::running) {
    return;  // judged with the GPUs
  }
  const std::string& built = facts.build.libtorch.cuda_version;
  const std::string text =
      fmt::format("NVIDIA {}, supports CUDA {}", driver.version.empty() ? "of unknown version" : driver.version,
                  driver.cuda_version.empty() ? "of unknown version" : driver.cuda_version);
  if (built.empty() || driver.version.empty() || driver.cuda_version.empty() || at_least(driver.cuda_version, built)) {
    judgement.ok("driver", text);
    return;
  }
  const auto oldest = oldest_driver_for(built);
  if (oldest && major_of(driver.version) >= *oldest) {
    judgement.ok("driver", fmt::format("{}; runs LibTorch's CUDA {} by the compatibility of CUDA {}.x", text, built,
                                       major_of(built)));
    return;
  }
  const std::string needed = oldest ? fmt::format("driver {} or newer", *oldest) : fmt::format("a newer driver");
  judgement.fail(
      "driver", fmt::format("{}, too old: LibTorch was built for CUDA {}, which needs {}", text, built, needed),
      fmt::format("install {}, or build with a LibTorch for CUDA {}.x", needed, major_of(driver.cuda_version)));
}

void judge_cuda_library(const Facts& facts, std::string_view name, const LibraryFacts& library, Judgement& judgement) {
  if (!library.problem.empty()) {
    const bool is_needed = facts.gpus.driver.state == DriverState::running;
    judgement.add(
        is_needed ? FindingLevel::failure : FindingLevel::warning, std::string(name),
        library.file.empty() ? library.problem : fmt::format("{}: {}", library.file, library.problem),
        "ranks on GPUs need it: install LibTorch or lockstep again, or take other copies out of LD_LIBRARY_PATH");
  } else {
    judgement.ok(std::string(name),
                 library_text(facts.build, library) + (library.file.empty() ? "" : fmt::format(" ({})", library.file)));
  }
}

void judge_versions(const Facts& facts, Judgement judgement) {
  const BuildFacts& build = facts.build;
  judgement.ok("lockstep", fmt::format("{}, built with {}", build.version, build.compiler));
  const LibraryFacts& libtorch = build.libtorch_library;
  if (libtorch.problem.empty()) {
    judgement.ok("LibTorch", libtorch_text(build) + (libtorch.file.empty() ? "" : fmt::format(" ({})", libtorch.file)));
  } else {
    judgement.warn("LibTorch", fmt::format("{} is needed: {}", build.libtorch.version, libtorch.problem),
                   std::string(kInstallLibTorch));
  }
  judge_cuda_library(facts, "NCCL", build.libraries.nccl, judgement);
  judge_cuda_library(facts, "cuDNN", build.libraries.cudnn, judgement);
  judgement.ok("backends", backends_text(facts));
  judgement.ok("system", fmt::format("{}, {}", facts.machine.kernel, facts.machine.libc));
  judge_driver_version(facts, judgement);
}

// ---- machine

void judge_cores(const Facts& facts, Judgement& judgement) {
  const CpuTopology& cpu = facts.machine.cpu;
  std::string text = fmt::format("{} of {} usable", cpu.cores, facts.machine.cores_present);
  if (cpu.affinity_cores < facts.machine.cores_present) {
    text += fmt::format(", {} in the affinity mask", cpu.affinity_cores);
  }
  if (cpu.quota_cores) {
    text += fmt::format(", {} in the quota of the control group", *cpu.quota_cores);
  }
  if (cpu.cores < facts.ranks) {
    judgement.warn("cores", fmt::format("{}, fewer than {}", text, counted(facts.ranks, "rank")),
                   "use fewer ranks, or give the job more cores (srun --cpus-per-task, docker --cpus)");
  } else {
    judgement.ok("cores", std::move(text));
  }
}

void judge_memory(const Facts& facts, Judgement& judgement) {
  const MachineFacts& machine = facts.machine;
  std::string text = fmt::format("{}, {} available", human_bytes(machine.cpu.memory_bytes),
                                 human_bytes(machine.available_memory_bytes));
  if (machine.cpu.memory_bytes < machine.cpu.machine_memory_bytes) {
    text += fmt::format("; the machine has {}, the rest is limited by the control group",
                        human_bytes(machine.cpu.machine_memory_bytes));
  }
  if (machine.available_memory_bytes < kGiB * facts.ranks) {
    judgement.warn("memory", fmt::format("{}: less than a GiB for each of {}", text, counted(facts.ranks, "rank")),
                   "end other programs, use fewer ranks, or give the job more memory (--mem, docker --memory)");
  } else {
    judgement.ok("memory", std::move(text));
  }
}

void judge_shared_memory(const Facts& facts, Judgement& judgement) {
  const auto& size = facts.machine.shared_memory_bytes;
  const std::string text = size ? human_bytes(*size) : "missing, or not writable";
  if (facts.ranks > 1 && !facts.gpus.driver.gpus.empty() && size.value_or(0) < kGiB) {
    judgement.warn("/dev/shm", fmt::format("{}; NCCL connects ranks of one machine over it", text),
                   "give the container 1 GiB or more: docker run --shm-size=1g, or --ipc=host");
  } else {
    judgement.ok("/dev/shm", text);
  }
}

void judge_open_files(const Facts& facts, Judgement& judgement) {
  const MachineFacts& machine = facts.machine;
  const auto& identity = facts.launcher.identity;
  const int world_size = std::max(facts.ranks, identity ? identity->world_size : 1);
  const std::int64_t files = needed_descriptors(facts.ranks, world_size);
  if (machine.open_files.hard && *machine.open_files.hard < files) {
    judgement.fail("open files",
                   fmt::format("the hard limit is {}, {} need up to {}", *machine.open_files.hard,
                               counted(facts.ranks, "rank"), files),
                   "raise it: ulimit -Hn, LimitNOFILE=, docker --ulimit nofile=");
  }
}

void judge_tasks(const Facts& facts, Judgement& judgement) {
  const MachineFacts& machine = facts.machine;
  // A CPU rank of example 02 has 7 threads; more compute threads, workers of the loader and CUDA add to them.
  constexpr std::int64_t kFewestTasks = 8;
  constexpr std::int64_t kUsualTasks = 32;
  std::optional<std::int64_t> tasks = machine.root ? std::nullopt : machine.processes.soft;
  if (machine.max_tasks) {
    tasks = std::min(*machine.max_tasks - machine.tasks, tasks.value_or(*machine.max_tasks));
  }
  if (tasks && *tasks < kUsualTasks * facts.ranks) {
    judgement.add(*tasks < kFewestTasks * facts.ranks ? FindingLevel::failure : FindingLevel::warning, "processes",
                  fmt::format("{} more processes and threads are allowed; a rank needs at least 7, and {} are planned",
                              *tasks, counted(facts.ranks, "rank")),
                  "raise ulimit -u, or pids.max of the container (docker --pids-limit)");
  }
}

void judge_locked_memory(const MachineFacts& machine, Judgement& judgement) {
  if (!machine.infiniband.empty() && machine.locked_memory.soft) {
    judgement.warn("locked memory",
                   fmt::format("limited to {}; InfiniBand needs memory that stays in place",
                               human_bytes(*machine.locked_memory.soft)),
                   "ulimit -l unlimited, LimitMEMLOCK=infinity, docker --ulimit memlock=-1");
  }
}

void judge_address_space(const Facts& facts, Judgement& judgement) {
  const MachineFacts& machine = facts.machine;
  if (machine.address_space.soft) {
    const std::string text = fmt::format("limited to {}", human_bytes(*machine.address_space.soft));
    if (facts.gpus.driver.gpus.empty()) {
      judgement.warn("address space", text + "; LibTorch maps several GiB that it does not use",
                     "ulimit -v unlimited; limit the memory with a control group instead");
    } else {
      judgement.fail("address space", text + "; CUDA reserves addresses for the memory of the machine and of all GPUs",
                     "ulimit -v unlimited; limit the memory with a control group instead");
    }
  }
}

void judge_limits(const Facts& facts, Judgement& judgement) {
  const MachineFacts& machine = facts.machine;
  judgement.ok("limits",
               fmt::format("open files {} (at most {}), processes {}, tasks of the control group {}, locked memory {}, "
                           "address space {}, file size {}",
                           limit_text(machine.open_files.soft), limit_text(machine.open_files.hard),
                           limit_text(machine.processes.soft), limit_text(machine.max_tasks),
                           byte_limit_text(machine.locked_memory.soft), byte_limit_text(machine.address_space.soft),
                           byte_limit_text(machine.file_size.soft)));
  judge_open_files(facts, judgement);
  judge_tasks(facts, judgement);
  judge_locked_memory(machine, judgement);
  judge_address_space(facts, judgement);
  if (machine.file_size.soft) {
    judgement.warn(
        "file size",
        fmt::format("limited to {}: a larger checkpoint cannot be saved", human_bytes(*machine.file_size.soft)),
        "ulimit -f unlimited");
  }
}

void judge_machine(const Facts& facts, Judgement judgement) {
  judge_cores(facts, judgement);
  judge_memory(facts, judgement);
  judge_shared_memory(facts, judgement);
  judge_limits(facts, judgement);
  judgement.ok("user", facts.machine.root ? "root" : "not root");
}

// ---- launch

struct SlowVariable {
  std::string_view name;
  std::string_view value;
  std::string_view effect;
};

constexpr SlowVariable kSlowVariables[] = {
    {"CUDA_LAUNCH_BLOCKING", "1", "the host waits for every kernel"},
    {"NCCL_P2P_DISABLE", "1", "GPUs of one machine do not copy directly"},
    {"NCCL_SHM_DISABLE", "1", "ranks of one machine connect over the network"},
    {"NCCL_IB_DISABLE", "1", "machines connect over TCP instead of InfiniBand"},
    {"NVIDIA_TF32_OVERRIDE", "0", "TF32 is off, whatever --matmul_precision says"},
    {"PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "every tensor allocates memory of the GPU"},
    {"TORCH_DISTRIBUTED_DEBUG", "DETAIL", "every collective is checked on all ranks"},
};

std::optional<std::string> value_of(const LauncherFacts& facts, std::string_view name) {
  for (const auto& [known, value] : facts.variables) {
    if (known == name) {
      return value;
    }
  }
  return std::nullopt;
}

void judge_variables(const Facts& facts, Judgement& judgement) {
  const LauncherFacts& launcher = facts.launcher;
  if (!launcher.variables.empty()) {
    judgement.ok("variables", join(variable_texts(launcher), ", "));
  }
  for (const SlowVariable& slow : kSlowVariables) {
    if (value_of(launcher, slow.name) == slow.value) {
      judgement.warn(std::string(slow.name), fmt::format("{}: {}, which is slow", slow.value, slow.effect),
                     "unset it, if you do not look for a fault with it");
    }
  }
  const auto threads = parse_int(value_of(launcher, "OMP_NUM_THREADS").value_or(""));
  if (threads && *threads * facts.ranks > facts.machine.cpu.cores && *threads > 1) {
    judgement.warn("OMP_NUM_THREADS",
                   fmt::format("{} threads in each of {}, on {}", *threads, counted(facts.ranks, "rank"),
                               counted(facts.machine.cpu.cores, "core")),
                   fmt::format("unset it, or set it to {}", std::max(1, facts.machine.cpu.cores / facts.ranks)));
  }
  for (const Problem& problem : launcher.setting_problems) {
    judgement.fail("settings", problem.what, problem.hint.empty() ? "correct or unset it" : problem.hint);
  }
  if (!launcher.settings.empty() && launcher.setting_problems.empty()) {
    judgement.ok("settings", fmt::format("changed by {}", join(launcher.settings, ", ")));
  }
}

void judge_launch(const Facts& facts, Judgement judgement) {
  const LauncherFacts& launcher = facts.launcher;
  for (const Problem& problem : launcher.problems) {
    judgement.fail(
        "launcher", problem.what,
        problem.hint.empty() ? "correct the variable, or unset all variables of that launcher" : problem.hint);
  }
  if (const auto& identity = launcher.identity; identity && identity->launcher != "single") {
    judgement.ok("launcher", identity->starts_ranks
                                 ? fmt::format("{}, node {} of {}: this process would start the ranks of its node",
                                               identity->launcher, identity->node, identity->nodes)
                                 : fmt::format("{}, rank {} of {}, from {}", identity->launcher, identity->rank,
                                               identity->world_size, join(identity->variables, ", ")));
  } else if (launcher.problems.empty()) {
    judgement.ok("launcher", "none: a program starts its ranks itself");
  }
  if (launcher.identity) {
    for (const std::string& hint : launcher.identity->hints) {
      judgement.warn("launcher", hint,
                     launcher.identity->launcher == "lockstep"
                         ? "start it as this line says"
                         : "start the program as this line says, if one rank is not intended");
    }
  }
  if (!launcher.job.empty()) {
    judgement.ok(
        "job",
        launcher.job + (launcher.job_left_s ? ", ends in " + human_duration(std::max(0.0, *launcher.job_left_s)) : ""));
  }
  judge_variables(facts, judgement);
}

// ---- run directory

void judge_directory(const DirectoryFacts& facts, Judgement judgement) {
  std::string place = printable(facts.checked.string());
  if (facts.asked != facts.checked && facts.asked != ".") {
    place = fmt::format("{}, checked in {}", printable(facts.asked.string()), place);
  }
  const std::string kind = file_system_text(facts);
  constexpr const char* kAnother = "use a directory that this user may write, on a disk with space: --run_dir";
  if (!facts.failed.empty()) {
    judgement.fail("writing", fmt::format("{} ({}): cannot {}: {}", place, kind, facts.failed, facts.error), kAnother);
    return;
  }
  judgement.ok("writing", fmt::format("{} ({}), {} free, renames files", place, kind, human_bytes(facts.free_bytes)));
  if (facts.free_bytes < 5 * kGiB) {
    judgement.warn(
        "space", fmt::format("{} free", human_bytes(facts.free_bytes)),
        "a save needs the size of a checkpoint, beside the checkpoints that are kept: free space, or --run_dir");
  }
  if (facts.file_system == "tmpfs" || facts.file_system == "ramfs") {
    judgement.warn("file system", fmt::format("{} is memory: checkpoints use it up, and a reboot deletes them", kind),
                   "use a directory on a disk: --run_dir");
  } else if (facts.file_system == "overlay") {
    judgement.warn("file system", "overlay: checkpoints are deleted with this container",
                   "use a directory that is mounted into the container (docker -v): --run_dir");
  }
  if (!facts.lock_problem.empty()) {
    judgement.fail("lock", fmt::format("{}; two runs could write to one directory", facts.lock_problem), kNoLocksHint);
  } else {
    judgement.ok("lock", "works: a second run in the directory is refused");
  }
  constexpr double kSlowSync = 0.25;
  const std::string sync = fmt::format("{:.1f} ms", 1000 * facts.sync_s);
  if (facts.sync_s > kSlowSync) {
    judgement.warn("fsync", fmt::format("{}; a save needs several", sync),
                   "use a faster disk, or save less often (--checkpoint.every_steps)");
  } else {
    judgement.ok("fsync", sync);
  }
  if (std::abs(facts.clock_skew_s) > 1) {
    judgement.warn("clock",
                   fmt::format("new files are {:.1f} s {} than the clock of this machine", std::abs(facts.clock_skew_s),
                               facts.clock_skew_s > 0 ? "later" : "earlier"),
                   "set the clocks of this machine and of the file server by NTP");
  } else {
    judgement.ok("clock", "new files have the time of this machine");
  }
}

}  // namespace

std::optional<int> oldest_driver_for(std::string_view cuda_version) {
  // NVIDIA's table of minor version compatibility.
  switch (major_of(cuda_version)) {
    case 13:
      return 580;
    case 12:
      return 525;
    case 11:
      return 450;
    default:
      return std::nullopt;
  }
}

std::vector<Finding> judge(const Facts& facts) {
  std::vector<Finding> findings;
  judge_versions(facts, Judgement(findings, kFindingGroups[0]));
  judge_machine(facts, Judgement(findings, kFindingGroups[1]));
  judge_gpus(facts, Judgement(findings, kFindingGroups[2]));
  judge_network(facts, Judgement(findings, kFindingGroups[3]));
  judge_launch(facts, Judgement(findings, kFindingGroups[4]));
  if (facts.directory) {
    judge_directory(*facts.directory, Judgement(findings, kFindingGroups[5]));
  }
  return findings;
}

}  // namespace lockstep
