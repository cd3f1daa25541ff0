// lockstep/plan/plan.h
//
// Configuration and hardware facts -> one plan, before any process starts. Pure and torch-free: a laptop can plan for
// eight GPUs.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/config/program_value.h>
#include <lockstep/config/train_config.h>
#include <lockstep/environment/hardware.h>
#include <lockstep/environment/identity.h>
#include <lockstep/environment/launch_name.h>

namespace [[gnu::visibility("default")]] lockstep {

/// A device as lockstep counts them: the CPU, or a GPU by its visible index.
struct DeviceId {
  bool gpu = false;
  int index = 0;
  bool operator==(const DeviceId&) const = default;
};
std::string to_string(DeviceId device);  ///< "cpu", "cuda:1"

/// A device of this node that a rank uses.
struct LocalDevice {
  DeviceId id{};
  std::string name{};  ///< "NVIDIA H200"
  std::string uuid{};  ///< "" for the CPU
  std::int64_t memory_bytes = 0;
};

/// G = global, b = per rank and micro-batch, A = micro-batches per step, W = ranks (docs/data.md "Batch arithmetic").
struct BatchPlan {
  std::int64_t batch_size = 32;
  std::int64_t accumulation = 1;
  std::int64_t global_batch_size = 32;
  bool global_is_given =
      false;  ///< set by the user; else derived from the others, and a resumed run keeps the checkpoint's value
  std::string explanation{};  ///< "64 = 16 per rank x 2 micro-batches x 2 ranks"
};

/// Settings of a DataLoader. A hand-written loop may fill it itself.
struct LoaderPlan {
  BatchPlan batch{};
  SamplerConfig sampler{};
  DataConfig data{};
  std::uint64_t seed = 42;
};

/// What run() and Session::connect() know about this launch besides the configuration. No decision depends on it.
struct LaunchFacts {
  LaunchName launch_name{};
  std::string program{};  ///< file name of the program that called run(); "": lockstep is embedded in another program
  std::vector<ProgramValue> program_values{};  ///< stored in config.toml and in checkpoints
  bool started_by_program = false;  ///< another process of this program has started this one, and reports failures
  std::optional<std::chrono::steady_clock::time_point> job_end{};  ///< of the batch job; training stops before it
};

/// The decision. After resolve() all code reads the configuration from `plan.config`, which holds effective values: no
/// field is "automatic" or "0: derived" any more.
struct Plan {
  TrainConfig config{};
  std::optional<TrainConfig> asked{};  ///< the configuration that resolve() was given
  int world_size = 1;
  int nodes = 1;
  std::vector<LocalDevice> local_devices{LocalDevice{}};  ///< one per rank of this node, by local rank
  LoaderPlan loader{};                                    ///< for training
  LoaderPlan eval_loader{};                               ///< for validation: no shuffling, dropping or padding
  int threads_per_rank = 1;        ///< compute threads: OMP_NUM_THREADS, else the cores divided by the ranks
  bool threads_are_given = false;  ///< OMP_NUM_THREADS is set
  int restart = 0;                 ///< number of earlier attempts, by any launcher
  LaunchFacts facts{};
  std::string launch{};  ///< "alone", "this program starts 2 ranks", "torchrun (RANK, ...)"
  std::string host{};
  std::vector<std::string> warnings{};  ///< the main rank logs each once
  std::vector<std::string> notes{};

  bool gpu() const noexcept { return local_devices.front().id.gpu; }
  int local_world_size() const noexcept { return static_cast<int>(local_devices.size()); }
};

/// Makes the plan. `identity` nullopt: no launcher started this process, so it may start ranks itself. Throws:
/// ConfigError with all reasons why there is no plan, each with a fix.
Plan resolve(const TrainConfig& config, const Hardware& hardware, const std::optional<Identity>& identity,
             LaunchFacts facts = {});

/// The start-up table.
std::string describe(const Plan& plan);

/// G, b and A from the fields that are set. Appends contradictions to `problems`; check_config() rejects negative
/// fields.
BatchPlan plan_batch(const TrainConfig& config, int world_size, std::vector<Problem>& problems);

/// The configuration for config.toml: `plan.config`, but fields that resolve() derived for this machine keep the
/// requested value.
TrainConfig asked_config(const Plan& plan);

}  // namespace lockstep
