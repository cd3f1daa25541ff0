#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <lockstep/config/config_io.h>
#include <lockstep/plan/plan.h>

#include "base/problems.h"
#include "base/text.h"
#include "config/field_value.h"
#include "config/without_files.h"
#include "environment/visible_devices.h"
#include "plan/batch_limit.h"
#include "plan/batch_plan.h"
#include "plan/device_choice.h"
#include "plan/resolve_checked.h"

namespace lockstep {
namespace {

void check_shared_memory(const Plan& plan, Findings& findings) {
  if (plan.gpu()) {
    findings.problem("--backend shm: it is for ranks on the CPU, found ranks on GPUs", "use --backend nccl (or auto)");
  } else if (plan.nodes > 1) {
    findings.problem(fmt::format("--backend shm: it is for ranks of one machine, found {} machines", plan.nodes),
                     "use --backend gloo (or auto)");
  }
}

Backend resolve_backend(const TrainConfig& config, const Hardware& hardware, const Plan& plan, Findings& findings) {
  const bool wants_nccl = config.backend == Backend::nccl;
  if (plan.world_size == 1) {
    if (config.backend != Backend::automatic) {
      findings.notes.push_back(fmt::format("one rank: --backend {} is not used", to_text(config.backend)));
    }
    return plan.gpu() && hardware.nccl_built ? Backend::nccl : Backend::gloo;
  }
  if (config.backend == Backend::shm) {
    check_shared_memory(plan, findings);
    return Backend::shm;
  }
  if (!plan.gpu()) {
    const bool asked_cpu = config.compute_setup == ComputeSetup::cpu || config.devices.kind() == DeviceSpec::Kind::cpu;
    if (wants_nccl && !asked_cpu) {  // else reported by check_config
      findings.problem("--backend nccl: needs a GPU per rank, found ranks on the CPU", "use --backend gloo");
    }
    // A plan does not try the memory: see Note [Shared memory of auto].
    return config.backend == Backend::automatic && plan.nodes == 1 ? Backend::shm : Backend::gloo;
  }
  if (config.backend == Backend::gloo) {
    findings.notes.push_back("gloo with GPUs: gradients are staged through the host; nccl is faster");
    return Backend::gloo;
  }
  if (!hardware.nccl_built) {
    findings.problem(fmt::format("--backend {}: {} on GPUs need NCCL, but lockstep was built without it",
                                 wants_nccl ? "nccl" : "auto", counted(plan.world_size, "rank")),
                     "use --backend gloo (staged through the host), or build lockstep with NCCL");
  }
  return Backend::nccl;
}

/// There is one GPU, and the launcher does not say that each rank of this node has its own.
void check_shared_gpu(const Plan& plan, const Hardware& hardware, Findings& findings) {
  const bool one_for_all =
      plan.gpu() && plan.local_world_size() > 1 && plan.local_devices.back().id == DeviceId{true, 0};
  if (!one_for_all || hardware.visible_devices != kUnset) {
    return;
  }
  const std::string what = fmt::format("{} on this node share one GPU", counted(plan.local_world_size(), "rank"));
  if (plan.config.backend == Backend::nccl) {
    findings.problem(fmt::format("{}, but NCCL needs one per rank", what),
                     "start one rank per GPU, or use --backend gloo");
  } else {
    findings.warnings.push_back(what);
  }
}

/// Indices in CUDA_VISIBLE_DEVICES count GPUs in CUDA's order, which is not known if this variable changes it. A rank
/// finds the GPUs of its plan by their UUIDs.
void check_device_order(const Plan& plan, const Hardware& hardware, Findings& findings) {
  const auto differs = [&](const Gpu& gpu) { return gpu.name != hardware.gpus.front().name; };
  const bool counts = hardware.visible_devices != kUnset && !hardware.visible_devices.starts_with("GPU-") &&
                      !hardware.visible_devices.starts_with("MIG-");
  if (plan.gpu() && hardware.device_order != kPciOrder && counts && std::ranges::any_of(hardware.gpus, differs)) {
    findings.warnings.push_back(
        fmt::format("{}={} with CUDA_VISIBLE_DEVICES=\"{}\" on a machine with different GPUs: lockstep counts them in "
                    "PCI order, so "
                    "CUDA may use others than the table shows; unset {} or list UUIDs",
                    kDeviceOrder, hardware.device_order, hardware.visible_devices, kDeviceOrder));
  }
}

/// A GPU that is lost would otherwise only make the run smaller.
void warn_about_silent_gpus(const Plan& plan, const Hardware& hardware, Findings& findings) {
  if (plan.gpu() && hardware.visible_devices == kUnset && !hardware.gpu_note.empty()) {
    findings.warnings.push_back(hardware.gpu_note);
  }
}

void note_tensor_cores(const Plan& plan, const Hardware& hardware, Findings& findings) {
  constexpr double kWithTf32 = 8;  // compute capability; tensor cores of earlier GPUs multiply only fp16
  const TrainConfig& config = plan.config;
  const auto is_fast = [&](const Gpu& gpu) {
    return gpu.uuid == plan.local_devices.front().uuid && parse_double(gpu.compute_capability).value_or(0) >= kWithTf32;
  };
  if (plan.gpu() && config.precision == Precision::fp32 && config.matmul_precision == MatmulPrecision::highest &&
      std::ranges::any_of(hardware.gpus, is_fast)) {
    findings.notes.push_back(
        "this GPU has tensor cores that fp32 does not use: set --matmul_precision high, or --precision bf16_mixed");
  }
}

constexpr const char* kAlone = "single";

/// "RANK, WORLD_SIZE, LOCAL_RANK, ..."
std::string shown_variables(const Identity& identity) {
  constexpr std::size_t kShown = 3;
  std::vector<std::string> names = identity.variables;
  if (names.size() > kShown) {
    names.resize(kShown);
    names.emplace_back("...");
  }
  return join(names, ", ");
}

std::string launch_text(const Plan& plan, const std::optional<Identity>& identity) {
  if (!identity || identity->launcher == kAlone) {
    return plan.world_size == 1 ? "alone" : fmt::format("this program starts {}", counted(plan.world_size, "rank"));
  }
  const std::string nodes = plan.nodes > 1 ? " on " + counted(plan.nodes, "node") : "";
  const std::string ranks = identity->starts_ranks && plan.local_world_size() > 1
                                ? fmt::format("one process per node{}, this program starts {} there", nodes,
                                              counted(plan.local_world_size(), "rank"))
                                : counted(plan.world_size, "rank") + nodes;
  return fmt::format("{}, {} ({})", identity->launcher, ranks, shown_variables(*identity));
}

/// --nprocs is the number of ranks of all nodes.
void check_nprocs(int nprocs, const Identity& identity, Findings& findings) {
  if (nprocs == 0) {
    return;
  }
  if (!identity.starts_ranks && nprocs != identity.world_size) {
    findings.problem(fmt::format("--nprocs {}: the ranks run already; {} started {} ({})", nprocs, identity.launcher,
                                 identity.world_size, join(identity.variables, ", ")),
                     "remove --nprocs, or start that many ranks");
  }
  if (identity.starts_ranks && nprocs < identity.nodes) {
    findings.problem(fmt::format("--nprocs {}: found {} ({}), expected a rank on each", nprocs,
                                 counted(identity.nodes, "node"), shown_variables(identity)),
                     fmt::format("use --nprocs {} or more, or fewer nodes", identity.nodes));
  }
}

void set_devices(Plan& plan, const Hardware& hardware, const std::vector<DeviceId>& devices) {
  plan.local_devices.clear();
  for (const DeviceId device : devices) {
    const Gpu gpu = device.gpu ? hardware.gpus[static_cast<std::size_t>(device.index)]
                               : Gpu{.name = "CPU", .memory_bytes = hardware.memory_bytes};
    plan.local_devices.push_back({.id = device, .name = gpu.name, .uuid = gpu.uuid, .memory_bytes = gpu.memory_bytes});
  }
  plan.config.compute_setup = plan.gpu() ? ComputeSetup::gpu : ComputeSetup::cpu;
  plan.config.devices = devices_text(devices);
}

/// The number of ranks for the messages if the devices are rejected; 0: not known.
int expected_world_size(const TrainConfig& config, const std::optional<Identity>& identity,
                        const std::optional<std::vector<DeviceId>>& devices) {
  if (!starts_ranks(identity)) {
    return identity->world_size;
  }
  if (identity && !identity->ranks_per_node.empty()) {
    return std::accumulate(identity->ranks_per_node.begin(), identity->ranks_per_node.end(), 0);
  }
  const int nodes = identity ? identity->nodes : 1;
  if (nodes > 1 && config.nprocs > 0) {
    return config.nprocs;
  }
  return devices ? nodes * static_cast<int>(devices->size()) : std::max(0, config.nprocs);
}

}  // namespace

std::string to_string(DeviceId device) { return device.gpu ? fmt::format("cuda:{}", device.index) : "cpu"; }

TrainConfig asked_config(const Plan& plan) {
  TrainConfig config = plan.config;
  if (!plan.asked) {
    return config;
  }
  const TrainConfig& asked = *plan.asked;
  config.compute_setup = asked.compute_setup;
  config.devices = asked.devices;
  config.nprocs = asked.nprocs;
  config.backend = asked.backend;
  config.batch_size = asked.batch_size;
  config.accumulation = asked.accumulation;
  config.global_batch_size = asked.global_batch_size;
  if (config.run_dir == run_directory(asked)) {  // else the program set its own directory
    config.run_dir = asked.run_dir;
    config.run_name = asked.run_name;
  }
  return config;
}

namespace {

// It works, so that a program can be tried without a GPU.
void warn_about_half_on_cpu(const Plan& plan, Findings& findings) {
  const Precision precision = plan.config.precision;
  if (!plan.gpu() && (precision == Precision::fp16 || precision == Precision::fp16_mixed)) {
    findings.warnings.push_back(
        fmt::format("--precision {} on the CPU is slow; use --precision {}", to_text(precision),
                    to_text(precision == Precision::fp16 ? Precision::bf16 : Precision::bf16_mixed)));
  }
}

// c10d's reducer counts the backwards of its first iteration; a micro-batch that it does not send confuses it.
void check_static_graph(const Plan& plan, Findings& findings) {
  const TrainConfig& config = plan.config;
  if (!config.dist.static_graph || plan.world_size < 2 || (config.accumulation < 2 && !config.memory.halve_batch)) {
    return;
  }
  findings.problems.push_back(
      {fmt::format("--dist.static_graph with {}: a static graph needs a step of one micro-batch",
                   config.accumulation > 1 ? fmt::format("--accumulation {}", config.accumulation)
                                           : std::string("--memory.halve_batch")),
       "remove --dist.static_graph"});
}

// These settings are for the process that starts the ranks.
void warn_about_other_launchers(const Plan& plan, const std::optional<Identity>& identity, Findings& findings) {
  if (starts_ranks(identity) || !identity->devices.empty()) {  // this program started them, or will
    return;
  }
  const TrainConfig& config = plan.config;
  const bool by_tool = identity->is_supervised();
  const auto warn = [&](bool is_set, std::string_view setting, std::string_view flag_of_tool) {
    if (is_set) {
      findings.warnings.push_back(fmt::format(
          "--{} has no effect: {} started the ranks, and it is for programs that start their ranks themselves{}",
          setting, by_tool ? "lockstep run" : identity->launcher,
          by_tool && !flag_of_tool.empty() ? fmt::format("; use lockstep run {}", flag_of_tool) : std::string()));
    }
  };
  warn(config.dist.max_restarts > 0, "dist.max_restarts", "--max-restarts");
  warn(config.dist.grace_s != DistConfig{}.grace_s, "dist.grace_s", "--grace");
  warn(!config.report.log_dir.empty(), "report.log_dir", "--log-dir");
}

void warn_about_nothing_to_remember(const TrainConfig& config, Findings& findings) {
  if (config.memory.halve_batch && !remembers_batch_limit(config)) {
    findings.warnings.push_back(
        "--memory.halve_batch remembers nothing: this run writes no files, so no later start knows what did not fit; "
        "use a smaller --batch_size if memory runs out");
  }
}

// The limits of a trial. Nothing is written, so the real run starts without a trace of it.
TrainConfig with_fast_dev_run(TrainConfig config) {
  const std::int64_t steps = config.fast_dev_run;
  if (steps > 0) {
    config.max_epochs = config.min_epochs = config.min_steps = 0;
    config.max_steps = steps;
    config.validate = {.every_epochs = 0, .every_steps = steps, .max_batches = steps};
    config.test.max_batches = config.predict.max_batches = steps;
    config.report.every_steps = 1;
    write_no_files(config);
  }
  return config;
}

}  // namespace

Plan resolve(const TrainConfig& asked, const Hardware& hardware, const std::optional<Identity>& identity,
             LaunchFacts facts) {
  return resolve_checked(asked, check_config(asked), hardware, identity, std::move(facts));
}

Plan resolve_checked(const TrainConfig& asked, std::vector<Problem> problems, const Hardware& hardware,
                     const std::optional<Identity>& identity, LaunchFacts facts) {
  const TrainConfig config = with_barebones(with_fast_dev_run(asked));
  Findings findings{.problems = std::move(problems)};
  if (identity) {
    check_nprocs(config.nprocs, *identity, findings);
    findings.warnings = identity->hints;
  }
  Plan plan{.config = config, .asked = asked, .nodes = identity ? identity->nodes : 1, .host = hardware.host};
  plan.restart = identity ? identity->restart : 0;
  if (!identity || identity->launcher != "Slurm") {  // whose count of restarts contains them
    plan.restart += facts.launch_name.requeues;
  }
  auto devices = choose_devices(config, hardware, identity, findings);
  plan.world_size = expected_world_size(config, identity, devices);
  if (plan.world_size > 0) {
    set_batch(plan, plan_batch(config, plan.world_size, findings.problems));
    check_static_graph(plan, findings);
  }
  if (devices) {
    set_devices(plan, hardware, *devices);
    plan.config.backend = resolve_backend(config, hardware, plan, findings);
    check_shared_gpu(plan, hardware, findings);
    check_device_order(plan, hardware, findings);
    warn_about_silent_gpus(plan, hardware, findings);
    note_tensor_cores(plan, hardware, findings);
    warn_about_half_on_cpu(plan, findings);
  }
  warn_about_other_launchers(plan, identity, findings);
  warn_about_nothing_to_remember(config, findings);
  throw_if_any(std::move(findings.problems));
  if (plan.config.global_batch_size < plan.world_size) {
    findings.warnings.push_back(fmt::format("--global_batch_size {} over {}: some ranks have no samples",
                                            plan.config.global_batch_size, counted(plan.world_size, "rank")));
  }
  plan.config.nprocs = plan.world_size;
  plan.config.run_dir = run_directory(config);
  if (plan.config.run_name.empty()) {
    plan.config.run_name = "run";
  }
  plan.threads_are_given = hardware.omp_threads > 0;
  plan.threads_per_rank =
      plan.threads_are_given ? hardware.omp_threads : std::max(1, hardware.cores / plan.local_world_size());
  plan.launch = launch_text(plan, identity);
  plan.facts = std::move(facts);
  plan.warnings = std::move(findings.warnings);
  plan.notes = std::move(findings.notes);
  return plan;
}

}  // namespace lockstep
