// lockstep/plan/plan.h
//
// Facts and wishes -> one decision, before anything is started. Pure and torch-free: eight GPUs can be planned on a
// laptop.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/config/train_config.h>
#include <lockstep/environment/hardware.h>
#include <lockstep/environment/identity.h>
#include <lockstep/environment/launch_name.h>

namespace [[gnu::visibility("default")]] lockstep {

/// A device as this library counts them: the CPU, or a GPU by its visible index.
struct DeviceId {
  bool gpu = false;
  int index = 0;
  bool operator==(const DeviceId&) const = default;
};
std::string to_string(DeviceId device);  ///< "cpu", "cuda:1"

/// G = global, b = per rank and micro-batch, A = micro-batches per step, W = ranks (docs/data.md "Batch arithmetic").
struct BatchPlan {
  std::int64_t batch_size = 32;
  std::int64_t accumulation = 1;
  std::int64_t global_batch_size = 32;
  bool global_is_given =
      false;                  ///< asked for; else it follows from the others, and a resumed run keeps the checkpoint's
  std::string explanation{};  ///< "64 = 16 per rank x 2 micro-batches x 2 ranks"
};

/// What a DataLoader is built from. A hand-written loop may fill it itself.
struct LoaderPlan {
  BatchPlan batch{};
  SamplerConfig sampler{};
  DataConfig data{};
  std::uint64_t seed = 42;
};

/// The decision. After resolve() nothing reads a TrainConfig but through `plan.config`, which holds effective values:
/// no field is "automatic" or 0-for-derived any more.
struct Plan {
  TrainConfig config{};
  std::optional<TrainConfig> asked{};  ///< what resolve() was given
  int world_size = 1;
  int nodes = 1;
  std::vector<DeviceId> local_devices{DeviceId{}};  ///< one per rank of this node; rank takes [local rank]
  std::vector<std::string> local_device_names{};    ///< "NVIDIA H200", beside local_devices
  std::vector<std::string> local_device_uuids{};    ///< "" for the CPU
  std::vector<std::int64_t> local_device_memory_bytes{};
  LoaderPlan loader{};             ///< training
  LoaderPlan eval_loader{};        ///< validation: not shuffled, nothing dropped or padded
  int threads_per_rank = 1;        ///< compute threads: OMP_NUM_THREADS, else cores divided among the ranks
  bool threads_are_given = false;  ///< by OMP_NUM_THREADS
  int restart = 0;                 ///< attempts before this one, whoever restarted
  /// Of the batch job; training stops before it. run() knows it from the environment.
  std::optional<std::chrono::steady_clock::time_point> job_end{};
  /// The program's own flags, by name: run() knows them. Kept in config.toml and in checkpoints.
  std::vector<std::pair<std::string, std::string>> program_values{};
  std::string program{};     ///< file name of the program that called run(); "": the library is embedded in another one
  LaunchName launch_name{};  ///< run() and Session::connect() know it from the environment
  std::string launch{};      ///< "alone", "this program starts 2 ranks", "torchrun (RANK, ...)"
  std::string host{};
  std::vector<std::string> warnings{};  ///< said once by the main rank
  std::vector<std::string> notes{};

  bool gpu() const noexcept { return local_devices.front().gpu; }
  int local_world_size() const noexcept { return static_cast<int>(local_devices.size()); }
};

/// Decides. `identity` nullopt: nobody launched this process, it may start ranks itself.
/// Throws: ConfigError with every reason why not, each with its fix.
Plan resolve(const TrainConfig& config, const Hardware& hardware, const std::optional<Identity>& identity);

/// The start-up table.
std::string describe(const Plan& plan);

/// G, b, A from the fields that are set. Appends to `problems` what contradicts; negative fields are check_config's to
/// refuse.
BatchPlan plan_batch(const TrainConfig& config, int world_size, std::vector<Problem>& problems);

/// What config.toml keeps: `plan.config`, with the fields that resolve() derived for this machine as they were asked
/// for.
TrainConfig asked_config(const Plan& plan);

/// runs/<run_name> unless run_dir says otherwise; without a slash at the end.
std::string run_directory(const TrainConfig& config);

}  // namespace lockstep
