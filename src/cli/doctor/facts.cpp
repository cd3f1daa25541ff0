#include "cli/doctor/facts.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include <lockstep/config/config_io.h>
#include <lockstep/environment/launch_name.h>

#include "base/duration.h"
#include "base/mapped.h"
#include "base/problems.h"
#include "base/text.h"
#include "config/flags.h"
#include "config/setting_form.h"
#include "environment/job_end.h"

namespace lockstep {
namespace {

/// Variables that change how a run works. None of them holds a secret, a host name or a path.
constexpr std::array<std::string_view, 34> kKnownVariables = {
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_LAUNCH_BLOCKING",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
    "NCCL_IB_DISABLE",
    "NCCL_IB_HCA",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_SHM_DISABLE",
    "NCCL_NET",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_DEBUG",
    "NCCL_CUMEM_ENABLE",
    "NCCL_LAUNCH_MODE",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCH_CPP_LOG_LEVEL",
    "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "TORCH_NCCL_ENABLE_MONITORING",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC",
    "TORCH_SHOW_CPP_STACKTRACES",
    "NVIDIA_TF32_OVERRIDE",
};

/// "GPU-(uuid),MIG-(uuid)"; the numbers of a list without UUIDs stay.
std::string without_uuids(std::string_view visible_devices) {
  std::vector<std::string> entries = split(visible_devices, ',');
  for (std::string& entry : entries) {
    if (const std::size_t kind = std::min(entry.find("GPU-"), entry.find("MIG-")); kind != std::string::npos) {
      entry.replace(kind + 4, std::string::npos, "(uuid)");
    }
  }
  return join(entries, ",");
}

int ranks_of(const FactsRequest& request, const Facts& facts) {
  const auto& identity = facts.launcher.identity;
  if (request.ranks > 0) {
    return request.ranks;
  }
  return identity && !identity->starts_ranks && identity->launcher != "single"
             ? identity->local_world_size
             : std::max(1, static_cast<int>(facts.gpus.visible_uuids.size()));
}

/// Why NCCL cannot be used; "": it can.
std::string lack_of_nccl(const Facts& facts) {
  return !facts.build.nccl                                 ? "this build is without it"
         : !facts.build.libraries.nccl.problem.empty()     ? "its library is unusable"
         : facts.gpus.driver.state != DriverState::running ? "no driver"
         : facts.gpus.visible_uuids.empty()                ? "no GPU"
                                                           : "";
}

}  // namespace

std::vector<std::string> available_backends(const Facts& facts) {
  std::vector<std::string> names;
  if (!facts.build.libtorch.version.empty()) {
    names = {"gloo", "shm"};
    if (lack_of_nccl(facts).empty()) {
      names.emplace_back("nccl");
    }
  }
  return names;
}

std::string backends_text(const Facts& facts) {
  const std::vector<std::string> names = available_backends(facts);
  const std::string lack = lack_of_nccl(facts);
  return names.empty() ? "none: only the tool was built" : join(names, ", ") + (lack.empty() ? "" : "; nccl: " + lack);
}

std::string library_text(const BuildFacts& build, const LibraryFacts& library) {
  if (!build.cuda) {
    return "none: this build uses no CUDA";
  }
  if (!library.version.empty()) {
    return library.version;
  }
  return library.problem.empty() ? "a part of LibTorch, which does not give its version" : "unusable";
}

std::string file_system_text(const DirectoryFacts& directory) {
  return directory.file_system.empty() ? "a file system of unknown kind" : directory.file_system;
}

std::string limit_text(const std::optional<std::int64_t>& limit) {
  return limit ? fmt::format("{}", *limit) : "unlimited";
}

std::string byte_limit_text(const std::optional<std::int64_t>& bytes) {
  return bytes ? human_bytes(*bytes) : "unlimited";
}

std::vector<std::string> variable_texts(const LauncherFacts& facts) {
  return mapped(facts.variables, [](const auto& variable) { return variable.first + "=" + variable.second; });
}

LauncherFacts collect_launcher_facts(const Variables& variables) {
  LauncherFacts facts{};  // wrong variables are a fact as well
  note_problems(facts.problems, [&] { facts.identity = detect_identity(variables); });
  note_problems(facts.problems, [&] { facts.job = launch_name(variables, facts.identity).job; });
  note_problems(facts.problems, [&] {
    if (const auto end = job_end(variables)) {
      facts.job_left_s = seconds_until(*end);
    }
  });
  for (const std::string_view name : kKnownVariables) {
    if (const auto value = variables.get(name)) {
      facts.variables.emplace_back(name, printable(name == "CUDA_VISIBLE_DEVICES" ? without_uuids(*value) : *value));
    }
  }
  for (const auto& [name, value] : variables.all()) {
    if (name.starts_with(kSettingVariables)) {
      facts.settings.push_back(printable(name));
    }
  }
  note_problems(facts.setting_problems, [&] { parse_invocation({}, {}, variables, FlagsAccess::for_tool()); });
  return facts;
}

Facts collect_facts(const FactsRequest& request, const Variables& variables) {
  Facts facts{.build = collect_build_facts(),
              .machine = collect_machine_facts(),
              .gpus = collect_gpu_facts(variables),
              .launcher = collect_launcher_facts(variables)};
  if (request.run_dir) {
    facts.network = collect_network_facts(variables, facts.launcher, request.port);
    facts.directory = collect_directory_facts(real_file_system(), *request.run_dir);
  } else {
    facts.network.interfaces = collect_interfaces();
  }
  facts.ranks = ranks_of(request, facts);
  return facts;
}

}  // namespace lockstep
