#include "cli/doctor/output.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/mapped.h"
#include "base/terminal.h"
#include "base/text.h"

namespace lockstep {
namespace {

std::string_view label_of(FindingLevel level) {
  return level == FindingLevel::ok ? "OK" : level == FindingLevel::warning ? "WARN" : "FAIL";
}

std::int64_t count(const std::vector<Finding>& findings, FindingLevel level) {
  return std::ranges::count_if(findings, [&](const Finding& found) { return found.level == level; });
}

std::string subjects_of(const std::vector<Finding>& findings, FindingLevel level) {
  std::vector<std::string> subjects;
  for (const Finding& found : findings) {
    if (found.level == level && std::ranges::find(subjects, found.subject) == subjects.end()) {
      subjects.push_back(found.subject);
    }
  }
  return join(subjects, ", ");
}

std::string verdict(const std::vector<Finding>& findings) {
  const std::int64_t failures = count(findings, FindingLevel::failure);
  const std::int64_t warnings = count(findings, FindingLevel::warning);
  const std::string warned = warnings == 0 ? ""
                                           : fmt::format("{} ({})", counted(warnings, "warning"),
                                                         subjects_of(findings, FindingLevel::warning));
  if (failures == 0) {
    return warnings == 0 ? "verdict: everything is fine" : fmt::format("verdict: nothing failed, {}", warned);
  }
  return fmt::format("verdict: {} failed ({}){}", counted(failures, "check"),
                     subjects_of(findings, FindingLevel::failure), warnings == 0 ? "" : ", " + warned);
}

/// The paths between GPUs, in the form of `nvidia-smi topo -m`.
std::string matrix_text(const DriverDetails& driver) {
  std::map<std::pair<int, int>, std::string> paths;
  std::vector<int> numbers;
  for (const GpuDetails& gpu : driver.gpus) {
    if (!gpu.hidden && gpu.error.empty()) {
      numbers.push_back(gpu.number);
    }
  }
  for (const GpuPair& pair : driver.pairs) {
    const std::string path = pair.path.empty() ? "?" : pair.path;
    paths[{pair.a, pair.b}] = path;
    paths[{pair.b, pair.a}] = path;
  }
  std::string text = fmt::format("{:4}", "");
  for (const int column : numbers) {
    text += fmt::format("{:>8}", column);
  }
  for (const int row : numbers) {
    text += fmt::format("\n{:>4}", row);
    for (const int column : numbers) {
      const auto path = paths.find({row, column});
      text += fmt::format("{:>8}", path == paths.end() ? "-" : path->second);
    }
  }
  return text;
}

std::string indented(std::string_view text, std::size_t indent) {
  std::vector<std::string> lines = split(text, '\n');
  for (std::string& line : lines) {
    line.insert(0, indent, ' ');
  }
  return join(lines, "\n");
}

Json to_json(const ResourceLimit& limit) { return {{"soft", or_null(limit.soft)}, {"hard", or_null(limit.hard)}}; }

std::string_view name_of(DriverState state) {
  return state == DriverState::absent ? "absent" : state == DriverState::unusable ? "unusable" : "running";
}

std::string_view name_of(GpuComputeMode mode) {
  return mode == GpuComputeMode::shared ? "shared" : mode == GpuComputeMode::exclusive ? "exclusive" : "prohibited";
}

Json gpu_json(const GpuFacts& facts, std::size_t i) {
  const GpuDetails& gpu = facts.driver.gpus[i];
  Json json = {{"number", gpu.number}};
  if (gpu.hidden) {
    json["hidden"] = true;
    return json;
  }
  if (!gpu.error.empty()) {
    json["error"] = gpu.error;
    return json;
  }
  json["name"] = gpu.name;
  json["memory_bytes"] = gpu.memory_bytes;
  json["free_bytes"] = gpu.free_bytes;
  json["compute_capability"] = gpu.compute_capability;
  json["compute_mode"] = name_of(gpu.compute_mode);
  json["ecc"] = or_null(gpu.ecc);
  json["uncorrected_errors"] = gpu.uncorrected_errors;
  json["mig_instances"] = or_null(gpu.mig_instances);
  json["power_limit_w"] = or_null(gpu.power_limit_w);
  json["default_power_limit_w"] = or_null(gpu.default_power_limit_w);
  json["nvlinks"] = gpu.nvlinks;
  json["pci_bus_id"] = gpu.pci_bus_id;
  json["numa_node"] = or_null(facts.numa_nodes[i]);
  json["processes"] = gpu.processes.size();
  return json;
}

Json driver_json(const GpuFacts& facts) {
  const DriverDetails& driver = facts.driver;
  Json gpus = Json::array();
  for (std::size_t i = 0; i < driver.gpus.size(); ++i) {
    gpus.push_back(gpu_json(facts, i));
  }
  Json pairs = Json::array();
  for (const GpuPair& pair : driver.pairs) {
    pairs.push_back({{"gpus", {pair.a, pair.b}}, {"path", pair.path}, {"peer_access", or_null(pair.peer_access)}});
  }
  Json files = Json::array();
  for (const DeviceFile& file : facts.device_files) {
    files.push_back({{"path", file.path}, {"error", file.error}});
  }
  return {{"state", name_of(driver.state)},
          {"note", driver.note},
          {"version", driver.version},
          {"cuda_version", driver.cuda_version},
          {"kernel_module", facts.kernel_module},
          {"pci_gpus", facts.pci_gpus},
          {"device_files", std::move(files)},
          {"gpus", std::move(gpus)},
          {"pairs", std::move(pairs)}};
}

Json host_json(const ResolvedHost& host) {
  return {{"name", host.name}, {"addresses", host.addresses}, {"error", host.error}, {"here", host.here}};
}

Json network_json(const NetworkFacts& facts) {
  Json interfaces = Json::array();
  for (const NetworkInterface& interface : facts.interfaces) {
    interfaces.push_back({{"name", interface.name},
                          {"up", interface.up},
                          {"loopback", interface.loopback},
                          {"addresses", interface.addresses}});
  }
  return {{"interfaces", std::move(interfaces)},
          {"host", host_json(facts.host)},
          {"master", facts.master ? host_json(*facts.master) : Json()},
          {"route_address", facts.route_address},
          {"port", facts.port},
          {"port_source", facts.port_source},
          {"port_problem", facts.port_problem}};
}

Json directory_json(const DirectoryFacts& facts) {
  return {{"asked", facts.asked.string()},
          {"checked", facts.checked.string()},
          {"file_system", facts.file_system},
          {"free_bytes", facts.free_bytes},
          {"failed", facts.failed},
          {"error", facts.error},
          {"lock_problem", facts.lock_problem},
          {"sync_seconds", facts.sync_s},
          {"clock_skew_seconds", facts.clock_skew_s}};
}

std::string launcher_name(const LauncherFacts& facts) {
  return !facts.problems.empty() ? "contradictory variables" : facts.identity ? facts.identity->launcher : "none";
}

std::vector<std::string> interface_names(const NetworkFacts& facts) {
  return mapped(facts.interfaces, &NetworkInterface::name);
}

/// GPUs of one kind form one entry: "8 x NVIDIA H100 (79.6 GiB, compute 9.0)".
std::string gpus_text(const DriverDetails& driver) {
  std::map<std::string, int> kinds;
  for (const GpuDetails& gpu : driver.gpus) {
    const std::string kind = gpu.hidden           ? "hidden"
                             : !gpu.error.empty() ? "without an answer: " + gpu.error
                                                  : fmt::format("{} ({}, compute {})", gpu.name,
                                                                human_bytes(gpu.memory_bytes), gpu.compute_capability);
    ++kinds[kind];
  }
  const auto texts = mapped(kinds, [](const auto& kind) { return fmt::format("{} x {}", kind.second, kind.first); });
  return texts.empty() ? "none" : join(texts, "; ");
}

std::string driver_text(const DriverDetails& driver) {
  return driver.state == DriverState::running
             ? fmt::format("NVIDIA {}, supports CUDA {}{}", driver.version, driver.cuda_version,
                           driver.note.empty() ? "" : "; " + driver.note)
             : driver.note;
}

std::vector<std::pair<std::string, std::string>> system_rows(const Facts& facts) {
  const BuildFacts& build = facts.build;
  const MachineFacts& machine = facts.machine;
  const auto variables = variable_texts(facts.launcher);
  return {
      {"lockstep", fmt::format("{}, build {}, built with {}", build.version, build.build_id, build.compiler)},
      {"LibTorch", build.libtorch.version.empty()
                       ? "none: only the tool was built"
                       : fmt::format("{}, CUDA {}; used {} CUDA, {} NCCL", build.libtorch.version,
                                     build.libtorch.cuda_version.empty() ? "none" : build.libtorch.cuda_version,
                                     build.cuda ? "with" : "without", build.nccl ? "with" : "without")},
      {"NCCL", library_text(build, build.libraries.nccl)},
      {"cuDNN", library_text(build, build.libraries.cudnn)},
      {"backends", backends_text(facts)},
      {"system", fmt::format("{}, {}{}", machine.kernel, machine.libc, machine.root ? ", root" : "")},
      {"cores", fmt::format("{} of {} usable (affinity {}, quota {})", machine.cpu.cores, machine.cores_present,
                            machine.cpu.affinity_cores,
                            machine.cpu.quota_cores ? fmt::format("{}", *machine.cpu.quota_cores) : "none")},
      {"memory", fmt::format("{} usable of {}, {} available; /dev/shm {}", human_bytes(machine.cpu.memory_bytes),
                             human_bytes(machine.cpu.machine_memory_bytes), human_bytes(machine.available_memory_bytes),
                             machine.shared_memory_bytes ? human_bytes(*machine.shared_memory_bytes) : "missing")},
      {"limits", fmt::format("open files {}, processes {}, locked memory {}, address space {}, file size {}",
                             limit_text(machine.open_files.soft), limit_text(machine.processes.soft),
                             byte_limit_text(machine.locked_memory.soft), byte_limit_text(machine.address_space.soft),
                             byte_limit_text(machine.file_size.soft))},
      {"driver", driver_text(facts.gpus.driver)},
      {"GPUs", gpus_text(facts.gpus.driver)},
      {"network", fmt::format("{}{}", join(interface_names(facts.network), ", "),
                              machine.infiniband.empty() ? "" : "; InfiniBand " + join(machine.infiniband, ", "))},
      {"launcher", launcher_name(facts.launcher)},
      {"variables", variables.empty() ? "none" : join(variables, ", ")},
      {"settings", facts.launcher.settings.empty() ? "none" : join(facts.launcher.settings, ", ")},
  };
}

constexpr std::size_t kFindingIndent = 22;

}  // namespace

std::string finding_text(const Finding& found, std::size_t columns) {
  std::string head = fmt::format("  {:4}  {:12}", label_of(found.level), found.subject);
  head += head.size() < kFindingIndent ? std::string(kFindingIndent - head.size(), ' ')
                                       : "\n" + std::string(kFindingIndent, ' ');
  std::string text = fmt::format("{}{}\n", head, wrap(found.found, kFindingIndent, columns));
  if (!found.fix.empty()) {
    text += fmt::format("{:{}}{}\n", "", kFindingIndent, wrap("fix: " + found.fix, kFindingIndent, columns));
  }
  return text;
}

Json finding_json(const Finding& found) {
  return {{"level", to_lower(label_of(found.level))},
          {"group", found.group},
          {"subject", found.subject},
          {"found", found.found},
          {"fix", found.fix}};
}

bool has_failure(const std::vector<Finding>& findings) { return count(findings, FindingLevel::failure) > 0; }

std::string doctor_text(const Facts& facts, const std::vector<Finding>& findings, int width) {
  const std::size_t columns = text_columns(width);
  std::string text =
      fmt::format("lockstep doctor for {} on {}\n", counted(facts.ranks, "rank"), facts.network.host.name);
  std::string group;
  for (const Finding& found : findings) {
    if (found.group != group) {
      group = found.group;
      text += fmt::format("\n{}\n", group);
    }
    text += finding_text(found, columns);
    if (found.subject == "links") {
      text += indented(matrix_text(facts.gpus.driver), kFindingIndent - 4) + '\n';
    }
  }
  constexpr std::string_view kForIssue =
      "for an issue: lockstep system prints the facts without names of hosts, users and directories";
  return fmt::format("{}\n{}\n{}\n", text, wrap(verdict(findings), 0, columns), wrap(kForIssue, 0, columns));
}

Json doctor_json(const Facts& facts, const std::vector<Finding>& findings) {
  Json list = Json::array();
  for (const Finding& found : findings) {
    list.push_back(finding_json(found));
  }
  Json uuids = Json::object();
  Json processes = Json::object();
  for (std::size_t i = 0; i < facts.gpus.driver.gpus.size(); ++i) {
    const GpuDetails& gpu = facts.gpus.driver.gpus[i];
    uuids[fmt::format("{}", gpu.number)] = gpu.uuid;
    processes[fmt::format("{}", gpu.number)] = facts.gpus.processes[i];
  }
  return {{"format", 1},
          {"failures", count(findings, FindingLevel::failure)},
          {"warnings", count(findings, FindingLevel::warning)},
          {"ranks", facts.ranks},
          {"findings", std::move(list)},
          {"system", system_json(facts)},
          {"gpu_uuids", std::move(uuids)},
          {"gpu_processes", std::move(processes)},
          {"network", network_json(facts.network)},
          {"directory", facts.directory ? directory_json(*facts.directory) : Json()}};
}

std::string system_text(const Facts& facts, int width) {
  constexpr std::size_t kIndent = 11;
  std::string text;
  for (const auto& [name, value] : system_rows(facts)) {
    text += fmt::format("{:{}}{}\n", name, kIndent, wrap(value, kIndent, text_columns(width)));
  }
  return text;
}

Json system_json(const Facts& facts) {
  const BuildFacts& build = facts.build;
  const MachineFacts& machine = facts.machine;
  Json variables = Json::object();
  for (const auto& [name, value] : facts.launcher.variables) {
    variables[name] = value;
  }
  return {{"format", 1},
          {"build",
           {{"version", build.version},
            {"build_id", build.build_id},
            {"compiler", build.compiler},
            {"libtorch", build.libtorch.version},
            {"libtorch_cuda", build.libtorch.cuda_version},
            {"libtorch_found", build.libtorch_library.problem.empty()},
            {"cuda", build.cuda},
            {"nccl", build.nccl},
            {"nccl_version", build.libraries.nccl.version},
            {"cudnn_version", build.libraries.cudnn.version}}},
          {"kernel", machine.kernel},
          {"libc", machine.libc},
          {"root", machine.root},
          {"cores",
           {{"usable", machine.cpu.cores},
            {"present", machine.cores_present},
            {"affinity", machine.cpu.affinity_cores},
            {"quota", or_null(machine.cpu.quota_cores)}}},
          {"memory",
           {{"usable_bytes", machine.cpu.memory_bytes},
            {"present_bytes", machine.cpu.machine_memory_bytes},
            {"available_bytes", machine.available_memory_bytes},
            {"shared_memory_bytes", or_null(machine.shared_memory_bytes)}}},
          {"limits",
           {{"open_files", to_json(machine.open_files)},
            {"processes", to_json(machine.processes)},
            {"locked_memory_bytes", to_json(machine.locked_memory)},
            {"address_space_bytes", to_json(machine.address_space)},
            {"file_size_bytes", to_json(machine.file_size)},
            {"control_group_tasks", {{"used", machine.tasks}, {"most", or_null(machine.max_tasks)}}}}},
          {"driver", driver_json(facts.gpus)},
          {"interfaces", interface_names(facts.network)},
          {"infiniband", machine.infiniband},
          {"backends", available_backends(facts)},
          {"launcher", launcher_name(facts.launcher)},
          {"variables", std::move(variables)},
          {"settings", facts.launcher.settings}};
}

}  // namespace lockstep
