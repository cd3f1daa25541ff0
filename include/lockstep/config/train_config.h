// lockstep/config/train_config.h
//
// Everything a run can be told. Plain values with defaults: write it in code with designated initializers, change it by
// flags, environment or file (config_io.h). Every field has a row in src/config/fields.h, which drives --help,
// --print-config and docs/configuration.md. Torch-free.
#pragma once

#include <cstdint>
#include <string>

#include <lockstep/config/device_spec.h>

namespace [[gnu::visibility("default")]] lockstep {

enum class ComputeSetup { automatic, cpu, gpu };
enum class Backend { automatic, nccl, gloo };
enum class Precision { fp32, bf16_mixed };
enum class ScheduleKind { constant, cosine };
enum class SampleOrder { keyed, pytorch };
enum class GradCompression { none, fp16, bf16 };
enum class MonitorMode { min, max };
enum class SaveErrorPolicy { go_on, stop };
enum class NonFinitePolicy { stop, warn };

struct DataConfig {
  int workers = 2;                   ///< threads per rank that build batches; 0: built in the training thread
  int prefetch = 2;                  ///< steps prepared ahead of the training step (with workers)
  bool pin_memory = true;            ///< page-locked host batches, copied on a side stream (GPU only)
  std::int64_t steps_per_epoch = 0;  ///< training: an epoch is exactly so many steps; 0: the whole data set
  std::int64_t max_bad_samples = 0;  ///< per rank: samples that may fail to load and be replaced by their neighbour
};

struct SamplerConfig {
  SampleOrder order =
      SampleOrder::keyed;  ///< keyed: any rank count, O(1) seek; pytorch: DistributedSampler's order exactly
  bool shuffle = true;     ///< a new order every epoch
  bool drop_last = false;  ///< drop the last, smaller step of an epoch
};

struct OptimConfig {
  double lr = 0;                                   ///< learning rate at scale 1; 0: what the program's optimizer says
  double max_grad_norm = 0;                        ///< clip the global gradient norm to this; 0: no clipping
  ScheduleKind schedule = ScheduleKind::constant;  ///< after the warm-up
  std::int64_t warmup_steps = 0;                   ///< linear from 0 to the learning rate
  std::int64_t decay_steps = 0;  ///< step at which cosine reaches its minimum; 0: the last step of the run
  double min_lr_ratio = 0;       ///< cosine ends at this part of the learning rate
  NonFinitePolicy non_finite = NonFinitePolicy::stop;  ///< at a report or a save: NaN or infinity in loss or parameters
};

struct ValidateConfig {
  std::int64_t every_epochs = 1;  ///< 0: never by epochs
  std::int64_t every_steps = 0;   ///< 0: never by steps
  std::int64_t max_batches = 0;   ///< steps of the validation set to look at; 0: all
};

struct CheckpointConfig {
  bool enabled = true;
  std::int64_t every_epochs = 1;        ///< 0: never by epochs
  std::int64_t every_steps = 0;         ///< 0: never by steps; the end of a run and a stop are always saved
  double every_s = 0;                   ///< 0: never by time
  bool async = false;                   ///< written in the background from a copy; at most one at a time
  int keep_last = 2;                    ///< 2 at least: a new one is durable before an old one is deleted
  std::string monitor{};                ///< metric that says which checkpoints are best ("val_loss"); empty: none
  MonitorMode mode = MonitorMode::min;  ///< what is better
  int keep_best = 1;                    ///< with monitor: the best so many are kept besides the last
  std::string name{};                   ///< of a link beside each checkpoint, "{epoch}-{val_loss}"; empty: none
  /// A save that failed for lack of space or by an I/O error: go_on twice in a row, then stop.
  SaveErrorPolicy on_error = SaveErrorPolicy::go_on;
  bool per_node = false;       ///< every node keeps a copy in its own run directory
  bool allow_partial = false;  ///< load a checkpoint whose parameters match only in part
};

struct DistConfig {
  double timeout_s = 600;               ///< longest wait for a peer in a collective
  double init_timeout_s = 300;          ///< longest wait for all ranks to appear
  double heartbeat_timeout_s = 10;      ///< several machines: silence after which one is lost; 0: never
  double grace_s = 5;                   ///< after a failure: time for the other ranks to end before they are killed
  bool requeue = false;                 ///< under Slurm: a run that was asked to stop is queued again
  int max_restarts = 0;                 ///< own launcher: restarts after a failure, without progress between them
  double stall_warn_s = 30;             ///< without progress, until the ranks that stand still are named; 0: never
  double stall_timeout_s = 300;         ///< without progress inside a step, until the run is ended; 0: never
  double bucket_mib = 25;               ///< gradient bucket size
  bool find_unused_parameters = false;  ///< the loss may leave parameters without gradient; costs a graph walk a step
  bool static_graph = false;            ///< the graph is the same in every step
  bool broadcast_buffers = true;        ///< rank 0's buffers (batch norm statistics) everywhere, once per step
  GradCompression compression = GradCompression::none;  ///< dtype of gradients on the wire
};

struct ReportConfig {
  std::int64_t every_steps = 20;  ///< console line and metrics row; the only places that wait for the device
  bool progress = true;           ///< progress bar on a terminal
  bool jsonl = true;              ///< metrics.jsonl in the run directory
  bool csv = true;                ///< metrics.csv in the run directory
  std::int64_t record = 0;        ///< samples, loss and weights of steps as digests, for `lockstep compare`; 0: no
  std::string log_dir{};          ///< own launcher: a file per rank with what it prints; empty: none
};

struct TrainConfig {
  ComputeSetup compute_setup = ComputeSetup::automatic;  ///< gpu without CUDA is an error, unless allow_fallback
  DeviceSpec devices{};
  int nprocs = 0;                        ///< ranks in total over all nodes; 0: one per device, on CPU one
  Backend backend = Backend::automatic;  ///< ignored at one rank
  Precision precision = Precision::fp32;
  std::uint64_t seed = 42;      ///< everything random derives from it
  std::int64_t max_epochs = 1;  ///< 0: no limit
  std::int64_t max_steps = 0;   ///< 0: no limit; whichever limit is reached first ends the run
  /// Samples per rank and micro-batch; 0: global_batch_size / (ranks x accumulation), rounded up, else 32.
  std::int64_t batch_size = 0;
  std::int64_t accumulation = 0;       ///< micro-batches per step; 0: follows from global_batch_size, else 1
  std::int64_t global_batch_size = 0;  ///< samples per step over all ranks; 0: batch_size x accumulation x ranks
  std::string run_dir{};               ///< ""; runs/<run_name>
  std::string run_name{};              ///< "": the program's name
  bool allow_fallback = false;         ///< gpu asked and none here: go on with cpu, warned
  std::string resume = "auto";         ///< auto, never, last, best, or a directory: a checkpoint's or a run's
  bool fresh = false;                  ///< start over: an old run directory is renamed, nothing is deleted
  double max_time_s = 0;               ///< stop and save before so many seconds have passed, exit 75; 0: no limit
  DataConfig data{};
  SamplerConfig sampler{};
  OptimConfig optim{};
  ValidateConfig validate{};
  CheckpointConfig checkpoint{};
  DistConfig dist{};
  ReportConfig report{};
};

}  // namespace lockstep
