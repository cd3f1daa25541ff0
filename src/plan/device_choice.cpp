#include "plan/device_choice.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/assertion.h"
#include "base/ceil_div.h"
#include "base/mapped.h"
#include "base/text.h"
#include "environment/visible_devices.h"

namespace lockstep {
namespace {

using Kind = DeviceSpec::Kind;
using Indices = std::vector<int>;

bool names_gpus(Kind kind) {
  return kind == Kind::all || kind == Kind::indices || kind == Kind::usable || kind == Kind::most_free;
}

std::string index_list(const Indices& indices) {
  // "2," is GPU 2, "2" would mean two GPUs
  return fmt::format("{}{}", fmt::join(indices, ","), indices.size() == 1 ? "," : "");
}

class DeviceChooser {
 public:
  DeviceChooser(const TrainConfig& config, const Hardware& hardware, const std::optional<Identity>& identity,
                Findings& findings)
      : config_(config),
        hardware_(hardware),
        identity_(identity),
        findings_(findings),
        decided_(identity && !identity->devices.empty()),
        starts_ranks_(starts_ranks(identity)),
        nprocs_(identity && starts_ranks_ ? static_cast<int>(share_of(config.nprocs, identity->nodes, identity->node))
                                          : config.nprocs),
        request_(decided_ ? DeviceSpec(identity->devices) : config.devices),
        visible_(hardware.gpus.size()) {
    std::iota(visible_.begin(), visible_.end(), 0);
    // If the ranks run already, a GPU in exclusive mode may be in use by its own rank.
    std::ranges::copy_if(visible_, std::back_inserter(usable_),
                         [&](int index) { return !starts_ranks_ || gpu(index).usable; });
  }

  std::optional<std::vector<DeviceId>> choose() {
    if (!request_.problems().empty()) {
      return std::nullopt;  // reported by check_config
    }
    const auto use_gpu = choose_compute();
    if (!use_gpu) {
      return std::nullopt;
    }
    const std::size_t before = findings_.problems.size();
    std::vector<DeviceId> devices;
    local_ranks_ = starts_ranks_ ? 0 : launched_local_ranks(*use_gpu);
    if (*use_gpu) {
      Indices indices = starts_ranks_ ? gpus_for_new_ranks() : gpus_for_launched_ranks();
      std::ranges::sort(indices);  // NCCL requires ranks in device order
      devices = mapped(indices, [](int index) { return DeviceId{.gpu = true, .index = index}; });
    } else {
      devices.resize(static_cast<std::size_t>(std::max(1, cpu_ranks())));
    }
    return findings_.problems.size() == before ? std::optional(std::move(devices)) : std::nullopt;
  }

 private:
  const Gpu& gpu(int index) const { return hardware_.gpus[static_cast<std::size_t>(index)]; }
  int visible() const { return static_cast<int>(visible_.size()); }
  std::string flag() const { return fmt::format("--devices {}", request_.text()); }
  std::size_t nodes() const { return identity_ ? static_cast<std::size_t>(identity_->nodes) : 1; }
  std::string nprocs_flag() const {
    return fmt::format("--nprocs {}{}", config_.nprocs, nodes() > 1 ? fmt::format(" on {} nodes", nodes()) : "");
  }

  /// "this machine has 2 GPUs (0-1)"
  std::string what_there_is() const {
    const std::string subject = visible() < hardware_.gpus_present
                                    ? fmt::format("this process sees {} of this machine's {}", visible(),
                                                  counted(hardware_.gpus_present, "GPU"))
                                    : fmt::format("this machine has {}", counted(visible(), "GPU"));
    return visible() == 0 ? subject : fmt::format("{} ({})", subject, format_ranges(visible_));
  }

  /// "use <what>", with a hint if CUDA_VISIBLE_DEVICES hides GPUs.
  std::string use(const std::string& what) const {
    const std::string& variable = hardware_.visible_devices;
    return fmt::format(
        "use {}{}", what,
        variable.empty() || variable == kUnset ? "" : fmt::format(" or check CUDA_VISIBLE_DEVICES=\"{}\"", variable));
  }

  /// true: GPU, false: CPU, nullopt: rejected.
  std::optional<bool> choose_compute() {
    const bool asks_cpu = config_.compute_setup == ComputeSetup::cpu || request_.kind() == Kind::cpu;
    const bool asks_gpu = config_.compute_setup == ComputeSetup::gpu ||
                          (config_.compute_setup == ComputeSetup::automatic && names_gpus(request_.kind()));
    const bool available = hardware_.cuda_built && !usable_.empty();
    if (asks_cpu && (asks_gpu || names_gpus(request_.kind())) && !decided_) {
      return std::nullopt;  // reported by check_config
    }
    if (asks_cpu) {
      if (available && !decided_) {
        findings_.warnings.push_back(fmt::format("{} here, not used; --compute_setup gpu --devices auto uses {}",
                                                 counted(visible(), "GPU"), visible() == 1 ? "it" : "them"));
      }
      return false;
    }
    if (available) {
      return true;
    }
    const std::string reason = why_no_gpu(hardware_);
    if (asks_gpu && !config_.allow_fallback) {
      const std::string asked = config_.compute_setup == ComputeSetup::gpu ? "--compute_setup gpu" : flag();
      findings_.problem(fmt::format("{}: no GPU can be used: {}", asked, reason), no_gpu_hint());
      return std::nullopt;
    }
    if (asks_gpu) {
      findings_.warnings.push_back(fmt::format("no GPU can be used: {}; using the CPU", reason));
    } else if (hardware_.gpus_present > 0) {
      findings_.warnings.push_back(
          fmt::format("{} here, not used: {}; {}", counted(hardware_.gpus_present, "GPU"), reason, no_gpu_hint()));
    }
    return false;
  }

  std::string no_gpu_hint() const {
    const std::string instead = !names_gpus(request_.kind())                 ? "use --compute_setup cpu"
                                : config_.compute_setup == ComputeSetup::gpu ? "use --compute_setup cpu --devices auto"
                                                                             : "use --devices auto";
    if (!hardware_.cuda_built) {
      return fmt::format("build lockstep with -DLOCKSTEP_WITH_CUDA=ON, or {}", instead);
    }
    if (hardware_.gpus_present == 0) {
      return fmt::format("{}, or --allow_fallback true", instead);
    }
    return hardware_.gpus.empty() ? fmt::format("change CUDA_VISIBLE_DEVICES, or {}", instead)
                                  : fmt::format("wait for a free GPU, or {}", instead);
  }

  // --- ranks that this program starts ---

  Indices gpus_for_new_ranks() {
    Indices chosen;
    switch (request_.kind()) {
      case Kind::automatic:
        return automatic_gpus();
      case Kind::count:
        chosen = first_gpus(request_.count());
        break;
      case Kind::all:
        chosen = visible_;
        break;
      case Kind::indices:
        chosen = existing_gpus();
        break;
      case Kind::usable:
        chosen = usable_gpus();
        break;
      case Kind::most_free:
        chosen = most_free_of(roomy_gpus(), request_.count());
        break;
      case Kind::cpu:
        LOCKSTEP_ASSERT(false, "the CPU was asked for");
        break;
    }
    if (!chosen.empty()) {
      refuse_unusable(chosen);
      check_nprocs(static_cast<int>(chosen.size()));
    }
    return chosen;
  }

  Indices automatic_gpus() {
    const int ranks = nprocs_ == 0 ? static_cast<int>(usable_.size()) : nprocs_;
    if (ranks > static_cast<int>(usable_.size())) {
      findings_.problem(
          fmt::format("{}: found {}, expected one per rank", nprocs_flag(), counted(std::ssize(usable_), "usable GPU")),
          use(fmt::format("--nprocs {} at most", usable_.size() * nodes())) +
              (nodes() > 1 ? ", or remove it: each node then uses all its GPUs" : ""));
      return {};
    }
    Indices chosen = most_free_of(usable_, ranks);
    if (nprocs_ != 0 && ranks < visible()) {
      findings_.notes.push_back(fmt::format("{} of {} GPUs used, those with the most free memory ({})", ranks,
                                            visible(), format_ranges(chosen)));
    }
    return chosen;
  }

  Indices first_gpus(int count) {
    if (count > visible()) {
      findings_.problem(fmt::format("{}: {}", flag(), what_there_is()), use(fmt::format("--devices {}", visible())));
      return {};
    }
    return Indices(visible_.begin(), visible_.begin() + count);
  }

  Indices existing_gpus() {
    Indices chosen = request_.indices();
    std::ranges::sort(chosen);
    const auto absent = std::ranges::lower_bound(chosen, visible());
    if (absent == chosen.end()) {
      return chosen;
    }
    const bool one = chosen.end() - absent == 1;
    const Indices missing(absent, chosen.end());
    const auto suggested = std::min(chosen.size(), visible_.size());
    const Indices suggestion(visible_.begin(), visible_.begin() + static_cast<std::ptrdiff_t>(suggested));
    findings_.problem(fmt::format("{}: GPU{} {} {} not exist, {}", flag(), one ? "" : "s", format_ranges(missing),
                                  one ? "does" : "do", what_there_is()),
                      use(fmt::format("--devices {}", index_list(suggestion))));
    return {};
  }

  Indices usable_gpus() {
    if (request_.count() > static_cast<int>(usable_.size())) {
      findings_.problem(
          fmt::format("{}: found {}, {}", flag(), counted(std::ssize(usable_), "usable GPU"), what_there_is()),
          use(fmt::format("--devices usable:{}", usable_.size())));
      return {};
    }
    return Indices(usable_.begin(), usable_.begin() + request_.count());
  }

  /// The GPUs with the requested free memory, if there are enough.
  Indices roomy_gpus() {
    Indices roomy;
    std::ranges::copy_if(usable_, std::back_inserter(roomy),
                         [&](int index) { return gpu(index).free_bytes >= request_.min_free_bytes(); });
    if (request_.count() <= static_cast<int>(roomy.size())) {
      return roomy;
    }
    const auto free = mapped(visible_, [&](int index) {
      return fmt::format("GPU {}: {}{}", index, human_bytes(gpu(index).free_bytes),
                         gpu(index).usable ? "" : ", not usable");
    });
    findings_.problem(fmt::format("{}: {} with that much free memory ({})", flag(), counted(std::ssize(roomy), "GPU"),
                                  join(free, "; ")),
                      use("fewer GPUs or a smaller limit"));
    return {};
  }

  /// In ascending order.
  Indices most_free_of(Indices candidates, int count) const {
    const auto kept = std::min(candidates.size(), static_cast<std::size_t>(count));
    std::ranges::stable_sort(candidates, [&](int a, int b) { return gpu(a).free_bytes > gpu(b).free_bytes; });
    candidates.resize(kept);
    std::ranges::sort(candidates);
    return candidates;
  }

  void refuse_unusable(const Indices& chosen) {
    Indices taken;
    std::ranges::copy_if(chosen, std::back_inserter(taken), [&](int i) { return !gpu(i).usable; });
    if (!taken.empty()) {
      findings_.problem(
          fmt::format("{}: GPU {} cannot be used: prohibited or exclusively in use", flag(), format_ranges(taken)),
          usable_.empty() ? "wait for a free GPU, or use --compute_setup cpu"
                          : use(fmt::format("--devices {}", index_list(usable_))));
    }
  }

  void check_nprocs(int devices) {
    if (nprocs_ != 0 && nprocs_ != devices) {
      findings_.problem(
          fmt::format("{} and {}: found {}, expected one per rank", nprocs_flag(), flag(), counted(devices, "device")),
          "remove one of them");
    }
  }

  // --- ranks that another launcher started ---

  /// If the launcher does not say how many ranks this node has, the number of devices decides.
  int launched_local_ranks(bool use_gpu) {
    const int most = identity_->local_world_size;
    if (!identity_->local_size_is_guess) {
      return most;
    }
    const int asked = request_.kind() == Kind::indices ? static_cast<int>(request_.indices().size()) : request_.count();
    const int ranks = std::min(most, asked != 0 ? asked : use_gpu && !shows_one_gpu() ? visible() : most);
    if (identity_->local_rank >= ranks) {
      findings_.problem(fmt::format("LOCAL_RANK={}: found {}, expected one per rank on this node",
                                    identity_->local_rank, counted(ranks, "device")),
                        "start fewer ranks on this node, or set LOCAL_WORLD_SIZE");
    }
    return ranks;
  }

  /// The entry of a list at the position of the local rank; the list is sorted, in the same way on all ranks of the
  /// node.
  Indices gpus_for_launched_ranks() {
    switch (request_.kind()) {
      case Kind::automatic:
        return one_gpu_per_rank();
      case Kind::count:
        check_local_ranks(request_.count());
        return one_gpu_per_rank();
      case Kind::all:
        if (!shows_one_gpu()) {
          check_local_ranks(visible());
        }
        return one_gpu_per_rank();
      case Kind::indices:
        check_local_ranks(static_cast<int>(request_.indices().size()));
        return named_gpus_of();
      case Kind::usable:
      case Kind::most_free:
        findings_.problem(fmt::format("{}: the ranks run already ({}), and each would choose different GPUs", flag(),
                                      identity_->launcher),
                          "use --devices auto, or list the GPUs");
        break;
      case Kind::cpu:
        LOCKSTEP_ASSERT(false, "the CPU was asked for");
        break;
    }
    return {};
  }

  /// The launcher shows each process only its own GPU, which then has index 0.
  bool shows_one_gpu() const { return visible() == 1; }

  Indices one_gpu_per_rank() {
    const int ranks = local_ranks_;
    if (shows_one_gpu()) {
      return Indices(static_cast<std::size_t>(ranks), 0);
    }
    if (ranks > visible()) {
      findings_.problem(
          fmt::format("{}: found {}, expected one per rank", launched_ranks(), counted(visible(), "visible GPU")),
          use(fmt::format("{} per node", counted(visible(), "rank"))));
      return {};
    }
    if (ranks < visible()) {
      findings_.notes.push_back(fmt::format("{} of {} GPUs used: one per rank on this node", ranks, visible()));
    }
    return Indices(visible_.begin(), visible_.begin() + ranks);
  }

  Indices named_gpus_of() {
    if (local_ranks_ > 1 && shows_one_gpu()) {
      findings_.warnings.push_back(
          fmt::format("{} is not used: CUDA_VISIBLE_DEVICES=\"{}\" already shows this rank a single GPU", flag(),
                      hardware_.visible_devices));
      return one_gpu_per_rank();
    }
    if (!decided_ && visible() < hardware_.gpus_present) {
      findings_.warnings.push_back(
          fmt::format("{} is an index among the {} of {} GPUs that CUDA_VISIBLE_DEVICES=\"{}\" shows", flag(),
                      visible(), hardware_.gpus_present, hardware_.visible_devices));
    }
    return existing_gpus();
  }

  /// "2 ranks of torchrun on this node"
  std::string launched_ranks() const {
    return fmt::format("{} of {} on this node", counted(local_ranks_, "rank"), identity_->launcher);
  }

  void check_local_ranks(int devices) {
    if (devices != local_ranks_) {
      const std::string start =
          identity_->ranks_flag.empty() ? "" : fmt::format(" ({} {})", identity_->ranks_flag, devices);
      findings_.problem(fmt::format("{} and {}: found {}, expected one per rank on this node", flag(), launched_ranks(),
                                    counted(devices, "device")),
                        fmt::format("use --devices auto, or start {} per node{}", counted(devices, "rank"), start));
    }
  }

  // --- CPU ---

  int cpu_ranks() {
    const int asked = requested_cpu_ranks();
    if (!starts_ranks_) {
      if (asked != 0 && !decided_) {
        check_local_ranks(asked);
      }
      return local_ranks_;
    }
    if (asked != 0) {
      check_nprocs(asked);
    }
    return asked != 0 ? asked : nprocs_;
  }

  /// The number of ranks that `devices` requests; 0: it does not say. A list of GPUs gets here only if fallback to the
  /// CPU is allowed.
  int requested_cpu_ranks() const {
    switch (request_.kind()) {
      case Kind::automatic:
      case Kind::cpu:
      case Kind::all:
        return 0;
      case Kind::count:
      case Kind::usable:
      case Kind::most_free:
        return request_.count();
      case Kind::indices:
        return static_cast<int>(request_.indices().size());
    }
    return 0;
  }

  const TrainConfig& config_;
  const Hardware& hardware_;
  const std::optional<Identity>& identity_;
  Findings& findings_;
  const bool decided_;  ///< the supervisor has chosen for all ranks
  const bool starts_ranks_;
  const int nprocs_;     ///< on this node; 0: not set
  int local_ranks_ = 0;  ///< ranks on this node that a launcher started
  const DeviceSpec request_;
  Indices visible_;
  Indices usable_{};
};

}  // namespace

std::optional<std::vector<DeviceId>> choose_devices(const TrainConfig& config, const Hardware& hardware,
                                                    const std::optional<Identity>& identity, Findings& findings) {
  return DeviceChooser(config, hardware, identity, findings).choose();
}

std::string why_no_gpu(const Hardware& hardware) {
  if (!hardware.cuda_built) {
    return "lockstep was built without CUDA";
  }
  if (!hardware.gpus.empty()) {
    return fmt::format("all {} are prohibited or exclusively in use", hardware.gpus.size());
  }
  return hardware.gpu_note.empty() ? "this machine has no GPU" : hardware.gpu_note;
}

std::string devices_text(const std::vector<DeviceId>& devices) {
  Indices indices;
  for (const DeviceId device : devices) {
    if (!device.gpu) {
      return "cpu";
    }
    if (indices.empty() || indices.back() != device.index) {
      indices.push_back(device.index);
    }
  }
  return index_list(indices);
}

}  // namespace lockstep
