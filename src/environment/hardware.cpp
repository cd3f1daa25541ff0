#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <lockstep/environment/hardware.h>

#include "base/text.h"
#include "environment/build_info.h"
#include "environment/cpu_topology.h"
#include "environment/nvml.h"
#include "environment/process_name.h"
#include "environment/visible_devices.h"

namespace lockstep {
namespace {

constexpr std::string_view kGpuPrefix = "GPU-";
constexpr std::string_view kMigPrefix = "MIG-";

/// CUDA reads an index as strtoul does: leading blanks and a plus are allowed, and anything after the digits is
/// ignored.
std::optional<int> find_by_index(const std::vector<Gpu>& all, std::string_view entry) {
  std::string_view digits = trim(entry);
  digits.remove_prefix(digits.starts_with('+') ? 1 : 0);
  const auto index = parse_int(digits.substr(0, digits.find_first_not_of("0123456789")));
  if (!index || *index >= static_cast<std::int64_t>(all.size())) {
    return std::nullopt;
  }
  return static_cast<int>(*index);
}

/// The only GPU whose UUID begins with `entry`.
std::optional<int> find_by_uuid(const std::vector<Gpu>& all, std::string_view entry) {
  const auto matches = [&](const Gpu& gpu) { return gpu.uuid.starts_with(entry); };
  const auto found = std::ranges::find_if(all, matches);
  if (found == all.end() || std::find_if(std::next(found), all.end(), matches) != all.end()) {
    return std::nullopt;
  }
  return static_cast<int>(found - all.begin());
}

/// The parent of "MIG-GPU-<uuid>/<gi>/<ci>", the name in drivers before R470; "" for "MIG-<uuid>".
std::string_view parent_uuid(std::string_view mig) {
  mig.remove_prefix(kMigPrefix.size());
  return mig.starts_with(kGpuPrefix) ? mig.substr(0, mig.find('/')) : std::string_view{};
}

/// Of the MIG devices of a GPU only the first is known otherwise.
void append_mig_devices(std::vector<Gpu>& all, std::string_view visible_devices) {
  const std::vector<Gpu> gpus = all;
  for (const std::string& entry : split(visible_devices, ',')) {
    if (!entry.starts_with(kMigPrefix)) {
      return;
    }
    const bool is_known = std::ranges::any_of(gpus, [&](const Gpu& gpu) { return gpu.uuid == entry; });
    const std::string_view parent = parent_uuid(entry);
    if (!is_known && (parent.empty() || find_by_uuid(gpus, parent))) {
      all.push_back({.name = "MIG device", .uuid = entry});
    }
  }
}

/// The first number in a value that may be a nested list.
int read_omp_threads(const Variables& variables) {
  const std::string text = variables.get("OMP_NUM_THREADS").value_or("");
  const auto threads = parse_int(trim(std::string_view(text).substr(0, text.find(','))));
  return threads && *threads > 0 && *threads <= std::numeric_limits<int>::max() ? static_cast<int>(*threads) : 0;
}

/// If CUDA shows a process a MIG device, it shows no other device.
std::vector<int> first_mig_device_or_all(const std::vector<Gpu>& all, const std::vector<int>& visible) {
  const auto mig = std::ranges::find_if(
      visible, [&](int position) { return all[static_cast<std::size_t>(position)].uuid.starts_with(kMigPrefix); });
  return mig == visible.end() ? visible : std::vector<int>{*mig};
}

}  // namespace

std::vector<int> visible_gpus(const std::vector<Gpu>& all, const std::string& visible_devices) {
  std::vector<int> visible;
  if (visible_devices == kUnset) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      visible.push_back(static_cast<int>(i));
    }
    return first_mig_device_or_all(all, visible);
  }
  // The first entry decides whether the list contains indices, UUIDs or MIG names.
  const std::string_view prefix = visible_devices.starts_with(kMigPrefix)   ? kMigPrefix
                                  : visible_devices.starts_with(kGpuPrefix) ? kGpuPrefix
                                                                            : "";
  for (const std::string& entry : split(visible_devices, ',')) {
    const auto position = prefix.empty()              ? find_by_index(all, entry)
                          : entry.starts_with(prefix) ? find_by_uuid(all, entry)
                                                      : std::nullopt;
    if (!position) {
      break;
    }
    if (std::ranges::find(visible, *position) != visible.end()) {
      return {};  // a duplicate: CUDA shows no GPU at all
    }
    visible.push_back(*position);
    if (prefix == kMigPrefix) {
      break;
    }
  }
  return first_mig_device_or_all(all, visible);
}

void show_gpus(Hardware& hardware, std::vector<Gpu> all) {
  hardware.gpus_present = static_cast<int>(all.size());
  if (!all.empty()) {
    append_mig_devices(all, hardware.visible_devices);
  }
  for (const int position : visible_gpus(all, hardware.visible_devices)) {
    hardware.gpus.push_back(all[static_cast<std::size_t>(position)]);
  }
  if (static_cast<int>(hardware.gpus.size()) < hardware.gpus_present && hardware.visible_devices != kUnset) {
    hardware.gpu_note = fmt::format("CUDA_VISIBLE_DEVICES=\"{}\" shows {} of {} GPUs", hardware.visible_devices,
                                    hardware.gpus.size(), hardware.gpus_present);
  }
}

Hardware probe_hardware(const Variables& variables) {
  const CpuTopology cpu = probe_cpu_topology();
  NvmlFacts nvml = query_nvml();
  Hardware hardware{.host = host_name(),
                    .visible_devices = printable(variables.get("CUDA_VISIBLE_DEVICES").value_or(kUnset)),
                    .device_order = printable(variables.get(kDeviceOrder).value_or(kPciOrder)),
                    .gpu_note = std::move(nvml.note),
                    .cores = cpu.cores,
                    .omp_threads = read_omp_threads(variables),
                    .memory_bytes = cpu.memory_bytes,
                    .cuda_built = built_with_cuda(),
                    .nccl_built = built_with_nccl()};
  show_gpus(hardware, std::move(nvml.gpus));
  return hardware;
}

Hardware probe_hardware() { return probe_hardware(read_environment()); }

}  // namespace lockstep
