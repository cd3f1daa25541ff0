// lockstep/config/train_config.h
//
// All settings of a run: plain values with defaults. Set them in code with designated initializers, or by flags,
// environment variables or a file (config_io.h). Every field has a row in src/config/fields.h, from which --help,
// --print-config and docs/configuration.md are made. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <lockstep/base/log.h>
#include <lockstep/config/device_spec.h>
#include <lockstep/config/lr_schedule.h>
#include <lockstep/config/step_count.h>

namespace [[gnu::visibility("default")]] lockstep {

/// On which kind of device a run trains.
enum class ComputeSetup { automatic, cpu, gpu };
/// shm: Gloo, but gradients are added in memory that the ranks share; CPU ranks of one machine only.
enum class Backend { automatic, nccl, gloo, shm };
/// bf16_mixed and fp16_mixed: autocast, parameters stay fp32; the others: parameters and inputs have this dtype.
enum class Precision { fp32, fp64, bf16, fp16, bf16_mixed, fp16_mixed };
/// Precision of fp32 matrix products, as torch.set_float32_matmul_precision.
enum class MatmulPrecision { highest, high, medium };
/// What happens with operations that have no deterministic algorithm: allowed, a warning, refused.
enum class Determinism { off, warn, on };
/// Which shuffled order the samples have.
enum class SampleOrder { keyed, pytorch };
/// The dtype in which gradients are sent and added; stochastic: rounded up or down at random, right on average.
enum class GradCompression { none, fp16, bf16, bf16_stochastic, fp32, fp32_stochastic };
/// Whether a lower or a higher value of a metric is better.
enum class MonitorMode { min, max };
/// What a run does after a save that failed.
enum class SaveErrorPolicy { go_on, stop };
/// What a run does when it finds NaN or infinity.
enum class NonFinitePolicy { stop, warn, skip, rollback };
/// What a run does when it finds a spike.
enum class SpikePolicy { warn, skip, lower_lr, rollback, stop };
/// How a value follows the number of samples per step.
enum class LrScaling { none, linear, sqrt };

/// Threads and buffers of the data loader.
struct DataConfig {
  int workers = 2;                       ///< threads per rank that build batches; 0: the training thread builds them
  int prefetch = 2;                      ///< steps prepared ahead of the training step (with workers)
  bool pin_memory = true;                ///< page-locked host batches, copied on a separate stream (GPU only)
  StepCount steps_per_epoch{};           ///< training: steps per epoch, or a part of the data set; 0: all of it
  std::int64_t min_steps_per_epoch = 0;  ///< training: a smaller data set is passed several times; 0: no minimum
  std::int64_t max_bad_samples = 0;      ///< per rank: samples that may fail to load; each is replaced by its neighbour
  bool check_finite = false;             ///< a sample with NaN or infinity counts as one that fails to load
};

/// Order of the samples.
struct SamplerConfig {
  SampleOrder order =
      SampleOrder::keyed;  ///< keyed: any world size, O(1) seek; pytorch: DistributedSampler's order exactly
  bool shuffle = true;     ///< a new order every epoch
  bool drop_last = false;  ///< drop the last, smaller step of an epoch
};

/// Learning rate, clipping, and what happens with NaN.
struct OptimConfig {
  double lr = 0;  ///< base learning rate; 0: the one of the program's optimizer
  /// Learning rate for another number of samples per step: lr x (global batch / lr_batch_size), or its square root.
  LrScaling lr_scaling = LrScaling::none;
  LrScaling loss_scaling = LrScaling::none;  ///< the same for the loss of which gradients are computed
  std::int64_t lr_batch_size = 1;  ///< with these two: samples per step for which learning rate and loss were chosen
  double max_grad_norm = 0;        ///< maximum of the global gradient norm (clipping); 0: no clipping
  double max_grad_value = 0;       ///< maximum of the absolute value of each gradient element; 0: no clipping
  LrSchedule schedule{};  ///< of all optimizers, "warmup:500+cosine"; not set: those of the program, else constant
  NonFinitePolicy non_finite = NonFinitePolicy::stop;  ///< if a report or a save finds NaN or infinity in a loss, a
                                                       ///< gradient norm or a parameter; skip: a step with such a loss
                                                       ///< or gradients changes nothing
  bool stochastic_rounding = false;  ///< updates of bfloat16 parameters are calculated in fp32 and rounded at random
};

/// A loss, gradient norm or input that is far above those of the steps before.
struct SpikeConfig {
  double z_score = 0;         ///< a spike is so many standard deviations above the mean; 0: spikes are not looked for
  std::int64_t window = 100;  ///< number of steps before, of which mean and deviation are taken
  bool inputs = false;        ///< looks at the root mean square of the inputs too
  SpikePolicy policy = SpikePolicy::warn;  ///< skip: a step with such a value changes nothing; rollback:
                                           ///< weights and optimizer go back to those of the last report
  double lr_factor = 0.5;                  ///< with the policy lower_lr: the learning rates are multiplied by it
};

/// ReduceOnPlateau by settings; see callbacks.h.
struct PlateauConfig {
  std::string metric{};                 ///< reduces learning rates when this metric no longer improves; empty: never
  MonitorMode mode = MonitorMode::min;  ///< whether a lower or a higher value is better
  double factor = 0.1;                  ///< the learning rates are multiplied by it
  int patience = 10;                    ///< measurements without an improvement that are tolerated
  double threshold = 1e-4;              ///< smallest relative change that is an improvement
  int cooldown = 0;                     ///< measurements after a reduction that are not counted
  double min_lr = 0;                    ///< no learning rate becomes smaller
};

/// EarlyStopping by settings; see callbacks.h.
struct EarlyStopConfig {
  std::string metric{};                        ///< ends the training when this metric no longer improves; empty: never
  MonitorMode mode = MonitorMode::min;         ///< whether a lower or a higher value is better
  int patience = 3;                            ///< measurements in a row without an improvement that end the training
  double min_delta = 0;                        ///< a smaller change is no improvement
  bool check_finite = true;                    ///< ends the training if the metric is NaN or infinite
  std::optional<double> stopping_threshold{};  ///< ends the training if the metric is better
  std::optional<double> divergence_threshold{};  ///< ends the training if the metric is worse
};

/// When a run validates.
struct ValidateConfig {
  double every_epochs = 1;        ///< 0.25: four times per epoch; 0: never by epochs
  std::int64_t every_steps = 0;   ///< 0: never by steps
  double every_s = 0;             ///< 0: never by time
  StepCount max_batches{};        ///< steps of the validation set to evaluate, or a part of it; 0: all
  bool at_start = false;          ///< also before the first step of a run
  std::int64_t sanity_steps = 0;  ///< steps of the validation set to try before the training; nothing is reported
};

/// How much of its data Trainer::test uses.
struct TestConfig {
  StepCount max_batches{};  ///< steps of the test set, or a part of them; 0: all
};

/// How much of its data Trainer::predict uses.
struct PredictConfig {
  StepCount max_batches{};  ///< steps of the data, or a part of them; 0: all
};

/// When a run saves, and which checkpoints it keeps.
struct CheckpointConfig {
  bool enabled = true;
  std::int64_t every_epochs = 1;        ///< 0: never by epochs
  std::int64_t every_steps = 0;         ///< 0: never by steps; the end of a run and a stop always save
  double every_s = 0;                   ///< 0: never by time
  bool async = false;                   ///< write in the background from a copy; one save at a time
  int keep_last = 2;                    ///< at least 2: a new one is durable before an old one is deleted
  bool keep_all = false;                ///< delete no checkpoint, whatever keep_last says
  std::string monitor{};                ///< metric by which checkpoints are compared ("val_loss"); empty: none
  MonitorMode mode = MonitorMode::min;  ///< whether a lower or a higher value is better
  int keep_best = 1;                    ///< with monitor: number of best checkpoints to keep besides the last ones
  std::string name{};                   ///< of a link to each checkpoint, "{epoch}-{val_loss}"; empty: none
  /// After a save that failed because of missing space or an I/O error: go_on tolerates two in a row, then stops.
  SaveErrorPolicy on_error = SaveErrorPolicy::go_on;
  bool per_node = false;       ///< every node keeps a copy in its own run directory
  bool allow_partial = false;  ///< also load a checkpoint if only a part of its parameters matches
  bool weights_only = false;   ///< save the model without the state of the optimizers; such a run cannot be resumed
};

/// Ranks: time limits, restarts, and how gradients are reduced.
struct DistConfig {
  double timeout_s = 600;           ///< longest wait for a peer in a collective
  double init_timeout_s = 300;      ///< longest wait until all ranks have connected
  double heartbeat_timeout_s = 10;  ///< several machines: a rank that is silent for so long is lost; 0: never
  double grace_s = 5;               ///< after a failure: until the other ranks are killed; if the program starts them
  bool requeue = false;             ///< under Slurm: queue the job again after a requested stop
  int max_restarts = 0;             ///< if the program starts its ranks: restarts after failures without progress
  double stall_warn_s = 30;         ///< time without progress after which the stalled ranks are named; 0: never
  double stall_timeout_s =
      300;                 ///< time without progress in a step, or while all ranks wait, that ends the run; 0: never
  double bucket_mib = 25;  ///< gradient bucket size
  bool find_unused_parameters =
      false;                      ///< the loss may leave parameters without gradient; costs a graph traversal per step
  bool static_graph = false;      ///< the graph is the same in every step
  bool broadcast_buffers = true;  ///< copy the buffers of rank 0 (batch norm statistics) to all ranks once per step
  GradCompression compression = GradCompression::none;  ///< dtype in which gradients are sent
  bool require_sync_batch_norm = false;                 ///< refuse batch norm that is not SyncBatchNorm
  bool check_replicas = false;   ///< at each report: the ranks have equal parameters, optimizer state and buffers
  bool shard_optimizer = false;  ///< each rank keeps the optimizer state of its share of the parameters only (ZeRO-1)
};

/// Memory.
struct MemoryConfig {
  bool keep_freed = true;  ///< during fit(), glibc's allocator keeps freed memory instead of returning it to the kernel
  bool halve_batch = false;    ///< out of memory: later starts take half the micro-batch
  bool channels_last = false;  ///< 4-dimensional parameters and inputs are stored with the channels last (NHWC)
};

/// Which reports a run writes.
struct ReportConfig {
  std::int64_t every_steps = 20;  ///< console line and metrics row; only reports wait for the device
  double every_s = 0;             ///< also after so many seconds without a report, at the next step; 0: never by time
  bool epoch_means = false;       ///< a row at the end of each epoch with the means of all its steps
  bool progress = true;           ///< progress bar on a terminal
  bool jsonl = true;              ///< metrics.jsonl in the run directory
  bool csv = true;                ///< metrics.csv in the run directory
  bool tensorboard = false;       ///< event files for TensorBoard in the run directory
  bool prometheus = false;        ///< metrics.prom in the run directory: the last values, for Prometheus
  std::string command{};          ///< a shell command that gets each row as a line of JSON; empty: none
  bool step_times = false;        ///< step_times.csv in the run directory: where the time of each rank goes
  std::int64_t record =
      0;  ///< number of steps between digests of samples, loss and weights, for `lockstep compare`; 0: none
  std::string log_dir{};                ///< if the program starts its ranks: one output file each; empty: none
  LogLevel log_level = LogLevel::info;  ///< the least level of log lines that run() shows
};

/// All settings of a run.
struct TrainConfig {
  ComputeSetup compute_setup = ComputeSetup::automatic;  ///< gpu without CUDA is an error, unless allow_fallback
  DeviceSpec devices{};
  int nprocs = 0;                        ///< ranks in total over all nodes; 0: one per device, on CPU one
  Backend backend = Backend::automatic;  ///< not used with one rank
  Precision precision = Precision::fp32;
  /// Of fp32 matrix products; high and medium use TF32 or bf16 on hardware that has them.
  MatmulPrecision matmul_precision = MatmulPrecision::highest;
  Determinism deterministic = Determinism::off;  ///< operations without a deterministic algorithm: allow, warn, refuse
  bool benchmark = false;                        ///< let cuDNN measure its convolution algorithms and use the fastest
  bool detect_anomaly = false;                   ///< find the operation whose backward gives NaN; slow, for debugging
  bool cuda_graphs = false;                      ///< on one GPU, replay forward and backward where shapes repeat
  std::uint64_t seed = 42;                       ///< all random numbers derive from it
  std::int64_t max_epochs = 1;                   ///< 0: no limit
  std::int64_t max_steps = 0;                    ///< 0: no limit; whichever limit is reached first ends the run
  std::int64_t min_epochs = 0;                   ///< the program, such as EarlyStopping, cannot end the run earlier
  std::int64_t min_steps = 0;                    ///< likewise
  std::int64_t fast_dev_run = 0;                 ///< try so many steps of each loop, write no files
  bool barebones = false;                        ///< to measure the steps alone: no reports, checkpoints, validation
  /// Samples per rank and micro-batch; 0: global_batch_size / (ranks x accumulation), rounded up, else 32.
  std::int64_t batch_size = 0;
  std::int64_t accumulation = 0;       ///< micro-batches per step; 0: follows from global_batch_size, else 1
  std::int64_t global_batch_size = 0;  ///< samples per step over all ranks; 0: batch_size x accumulation x ranks
  std::string run_dir{};               ///< "": runs/<run_name>
  std::string run_name{};              ///< "": the program's name
  bool allow_fallback = false;         ///< use the CPU with a warning if a GPU is requested and none is available
  std::string init_weights{};          ///< a new run begins with these weights: of a run, a checkpoint or a file
  std::string resume = "auto";         ///< auto, never, last, best, or a directory: a checkpoint's or a run's
  bool fresh = false;                  ///< start over: rename an old run directory, delete nothing
  double max_time_s = 0;               ///< seconds of training, over all starts of the run; 0: no limit
  DataConfig data{};
  SamplerConfig sampler{};
  OptimConfig optim{};
  SpikeConfig spike{};
  PlateauConfig plateau{};
  EarlyStopConfig early_stop{};
  ValidateConfig validate{};
  TestConfig test{};
  PredictConfig predict{};
  CheckpointConfig checkpoint{};
  DistConfig dist{};
  MemoryConfig memory{};
  ReportConfig report{};
};

/// runs/<run_name>, or run_dir if it is set; without a trailing slash.
std::string run_directory(const TrainConfig& config);

}  // namespace lockstep
