// THE field table: one row per field of TrainConfig. Flags, environment, files, --help, --print-config, config_values()
// and docs/configuration.md all follow from it. Torch-free.
#pragma once

#include <limits>
#include <string_view>

#include <lockstep/config/train_config.h>

namespace lockstep {

/// One spelling of an enumerator.
struct Spelling {
  std::string_view text{};
  int value = 0;
};

/// A spelling of other systems, and what to write here.
struct ForeignSpelling {
  std::string_view text{};
  std::string_view hint{};
};

/// The spellings of an enum: `kSpellings`, and `kForeign` where other systems have theirs.
template <class Enum>
struct EnumText;

template <class Enum>
constexpr Spelling spell(std::string_view text, Enum value) noexcept {
  return {text, static_cast<int>(value)};
}

template <>
struct EnumText<ComputeSetup> {
  static constexpr Spelling kSpellings[] = {spell("auto", ComputeSetup::automatic), spell("cpu", ComputeSetup::cpu),
                                            spell("gpu", ComputeSetup::gpu)};
  static constexpr ForeignSpelling kForeign[] = {{"cuda", "use gpu"},
                                                 {"mps", "lockstep trains on NVIDIA GPUs (gpu) and on the CPU (cpu)"},
                                                 {"tpu", "lockstep trains on NVIDIA GPUs (gpu) and on the CPU (cpu)"}};
};

template <>
struct EnumText<Backend> {
  static constexpr Spelling kSpellings[] = {spell("auto", Backend::automatic), spell("nccl", Backend::nccl),
                                            spell("gloo", Backend::gloo)};
  static constexpr ForeignSpelling kForeign[] = {
      {"mpi", "lockstep talks NCCL and Gloo; start with mpirun and backend gloo or nccl"},
      {"ucc", "lockstep talks NCCL and Gloo; use nccl between GPUs, gloo otherwise"}};
};

template <>
struct EnumText<Precision> {
  static constexpr Spelling kSpellings[] = {spell("fp32", Precision::fp32), spell("bf16_mixed", Precision::bf16_mixed)};
  static constexpr ForeignSpelling kForeign[] = {
      {"32-true", "use fp32"},
      {"32", "use fp32"},
      {"float32", "use fp32"},
      {"bf16-mixed", "use bf16_mixed"},
      {"16-mixed", "fp16_mixed is not available yet; use bf16_mixed or fp32"},
      {"16-true", "fp16 is not available yet; use bf16_mixed or fp32"},
      {"bf16-true", "bf16 is not available yet; use bf16_mixed or fp32"},
      {"64-true", "fp64 is not available yet; use fp32 or bf16_mixed"},
      {"fp64", "fp64 is not available yet; use fp32 or bf16_mixed"},
      {"fp16", "fp16 is not available yet; use bf16_mixed or fp32"},
      {"bf16", "bf16 is not available yet; use bf16_mixed or fp32"},
      {"fp16_mixed", "fp16_mixed is not available yet; use bf16_mixed or fp32"},
      {"16", "fp16_mixed is not available yet; use bf16_mixed or fp32"},
      {"64", "fp64 is not available yet; use fp32 or bf16_mixed"}};
};

template <>
struct EnumText<ScheduleKind> {
  static constexpr Spelling kSpellings[] = {spell("constant", ScheduleKind::constant),
                                            spell("cosine", ScheduleKind::cosine)};
  static constexpr ForeignSpelling kForeign[] = {{"none", "use constant"}};
};

template <>
struct EnumText<SampleOrder> {
  static constexpr Spelling kSpellings[] = {spell("keyed", SampleOrder::keyed), spell("pytorch", SampleOrder::pytorch)};
  static constexpr ForeignSpelling kForeign[] = {
      {"sequential", "use --no-sampler.shuffle for the data set's own order"},
      {"random", "use keyed (or pytorch) with --sampler.shuffle"}};
};

template <>
struct EnumText<GradCompression> {
  static constexpr Spelling kSpellings[] = {spell("none", GradCompression::none), spell("fp16", GradCompression::fp16),
                                            spell("bf16", GradCompression::bf16)};
  static constexpr ForeignSpelling kForeign[] = {{"powersgd", "not available; use bf16 or fp16"}};
};

template <>
struct EnumText<MonitorMode> {
  static constexpr Spelling kSpellings[] = {spell("min", MonitorMode::min), spell("max", MonitorMode::max)};
  static constexpr ForeignSpelling kForeign[] = {{"auto", "use min for a loss, max for an accuracy"}};
};

template <>
struct EnumText<NonFinitePolicy> {
  static constexpr Spelling kSpellings[] = {spell("stop", NonFinitePolicy::stop), spell("warn", NonFinitePolicy::warn)};
  static constexpr ForeignSpelling kForeign[] = {{"error", "use stop"}, {"ignore", "use warn"}};
};

template <>
struct EnumText<SaveErrorPolicy> {
  static constexpr Spelling kSpellings[] = {spell("continue", SaveErrorPolicy::go_on),
                                            spell("stop", SaveErrorPolicy::stop)};
  static constexpr ForeignSpelling kForeign[] = {{"ignore", "use continue"}, {"raise", "use stop"}};
};

/// What is said about a field besides its value.
struct FieldInfo {
  std::string_view name{};  ///< "batch_size", "optim.lr"
  std::string_view help{};
  double minimum = std::numeric_limits<double>::lowest();  ///< numbers only
  double maximum = std::numeric_limits<double>::max();
  bool above_minimum = false;  ///< the minimum itself is refused
  bool ranks_agree = true;     ///< and a resumed run warns when it changed
  bool flag_only = false;      ///< neither file nor environment may set it
};

/// Calls visit(info, member) for every field in declaration order; `Config` is TrainConfig or const TrainConfig.
template <class Config, class Visit>
void visit_fields(Config& c, Visit&& visit) {
  using Info = FieldInfo;
  visit(Info{.name = "compute_setup",
             .help = "where to train; gpu without a usable GPU is an error unless allow_fallback"},
        c.compute_setup);
  visit(Info{.name = "devices",
             .help = "auto, cpu, a number of devices, -1 for all GPUs, indices such as 0,2 or 0-3 or 2, (GPU 2), "
                     "usable:N, free:N, free:N@8GiB",
             .ranks_agree = false},
        c.devices);
  visit(Info{.name = "nprocs",
             .help = "ranks in total over all nodes; 0: one per device, on CPU one",
             .minimum = 0,
             .maximum = 65536},
        c.nprocs);
  visit(Info{.name = "backend", .help = "how ranks talk: nccl between GPUs, gloo otherwise; ignored at one rank"},
        c.backend);
  visit(Info{.name = "precision", .help = "number format of the forward pass; weights stay fp32"}, c.precision);
  visit(Info{.name = "seed", .help = "everything random derives from it"}, c.seed);
  visit(Info{.name = "max_epochs", .help = "end after this many epochs; 0: no limit", .minimum = 0}, c.max_epochs);
  visit(Info{.name = "max_steps",
             .help = "end after this many optimizer steps; 0: no limit; the limit reached first ends the run",
             .minimum = 0},
        c.max_steps);
  visit(Info{.name = "batch_size",
             .help = "samples per rank and micro-batch; 0: global_batch_size / (ranks x accumulation), else 32",
             .minimum = 0,
             .maximum = 1e9},
        c.batch_size);
  visit(Info{.name = "accumulation",
             .help = "micro-batches per step; 0: follows from global_batch_size, else 1",
             .minimum = 0,
             .maximum = 1e5},
        c.accumulation);
  visit(Info{.name = "global_batch_size",
             .help = "samples per step over all ranks; 0: batch_size x accumulation x ranks",
             .minimum = 0,
             .maximum = 1e12},
        c.global_batch_size);
  visit(Info{.name = "run_dir",
             .help = "directory of the run: checkpoints, metrics, logs; empty: runs/<run_name>",
             .ranks_agree = false},
        c.run_dir);
  visit(Info{.name = "run_name", .help = "name of the run; empty: the program's name", .ranks_agree = false},
        c.run_name);
  visit(Info{.name = "allow_fallback",
             .help = "where gpu was asked for and none is usable: go on with the CPU, warned",
             .ranks_agree = false},
        c.allow_fallback);
  visit(Info{.name = "resume",
             .help = "auto (the newest checkpoint, if there is one), never, last, best, or a directory: a checkpoint's "
                     "or another run's",
             .ranks_agree = false},
        c.resume);
  visit(Info{.name = "fresh",
             .help = "start over: an old run directory is renamed to <run_name>.1, nothing is deleted",
             .ranks_agree = false,
             .flag_only = true},
        c.fresh);
  visit(Info{.name = "max_time_s",
             .help = "stop and save before so many seconds have passed, and exit with 75; 0: no limit",
             .minimum = 0,
             .maximum = 1e9},
        c.max_time_s);

  visit(Info{.name = "data.workers",
             .help = "threads per rank that build batches; 0: built in the training thread",
             .minimum = 0,
             .maximum = 1024,
             .ranks_agree = false},
        c.data.workers);
  visit(Info{.name = "data.prefetch",
             .help = "steps prepared ahead of the training step, with workers",
             .minimum = 0,
             .maximum = 1024,
             .ranks_agree = false},
        c.data.prefetch);
  visit(Info{.name = "data.pin_memory",
             .help = "page-locked host batches, copied to the GPU on a side stream",
             .ranks_agree = false},
        c.data.pin_memory);
  visit(Info{.name = "data.steps_per_epoch",
             .help = "an epoch of training is exactly so many steps, over a part of the data or several times over it; "
                     "0: the data set once",
             .minimum = 0},
        c.data.steps_per_epoch);
  visit(
      Info{.name = "data.max_bad_samples",
           .help = "samples per rank that may fail to load: each is named and replaced by its neighbour; 0: the first "
                   "one ends the run",
           .minimum = 0},
      c.data.max_bad_samples);

  visit(
      Info{.name = "sampler.order",
           .help =
               "keyed: any number of ranks, may change on resume; pytorch: the order of PyTorch's DistributedSampler"},
      c.sampler.order);
  visit(Info{.name = "sampler.shuffle", .help = "a new order every epoch"}, c.sampler.shuffle);
  visit(Info{.name = "sampler.drop_last", .help = "drop the last, smaller step of an epoch"}, c.sampler.drop_last);

  visit(Info{.name = "optim.lr", .help = "learning rate; 0: what the program's optimizer says", .minimum = 0},
        c.optim.lr);
  visit(
      Info{
          .name = "optim.max_grad_norm", .help = "clip the global gradient norm to this; 0: no clipping", .minimum = 0},
      c.optim.max_grad_norm);
  visit(Info{.name = "optim.schedule", .help = "learning rate after the warm-up"}, c.optim.schedule);
  visit(Info{.name = "optim.warmup_steps", .help = "steps of linear growth from 0 to the learning rate", .minimum = 0},
        c.optim.warmup_steps);
  visit(Info{.name = "optim.decay_steps",
             .help = "step at which cosine reaches its minimum; 0: the last step of the run",
             .minimum = 0},
        c.optim.decay_steps);
  visit(Info{.name = "optim.min_lr_ratio",
             .help = "cosine ends at this part of the learning rate",
             .minimum = 0,
             .maximum = 1},
        c.optim.min_lr_ratio);
  visit(Info{.name = "optim.non_finite",
             .help = "when a loss, a gradient norm or a parameter is NaN or infinite: stop (exit 65), or warn"},
        c.optim.non_finite);

  visit(
      Info{
          .name = "validate.every_epochs", .help = "validate after this many epochs; 0: never by epochs", .minimum = 0},
      c.validate.every_epochs);
  visit(Info{.name = "validate.every_steps", .help = "validate after this many steps; 0: never by steps", .minimum = 0},
        c.validate.every_steps);
  visit(Info{.name = "validate.max_batches", .help = "steps of the validation set to look at; 0: all", .minimum = 0},
        c.validate.max_batches);

  visit(Info{.name = "checkpoint.enabled", .help = "write checkpoints"}, c.checkpoint.enabled);
  visit(
      Info{.name = "checkpoint.every_epochs", .help = "save after this many epochs; 0: never by epochs", .minimum = 0},
      c.checkpoint.every_epochs);
  visit(Info{.name = "checkpoint.every_steps",
             .help = "save after this many steps; 0: never by steps; the end of a run and a stop are always saved",
             .minimum = 0},
        c.checkpoint.every_steps);
  visit(Info{.name = "checkpoint.every_s",
             .help = "save after this many seconds, at the next step; 0: never by time",
             .minimum = 0,
             .maximum = 1e9},
        c.checkpoint.every_s);
  visit(Info{.name = "checkpoint.async",
             .help = "write checkpoints in the background, from a copy of the state on the host"},
        c.checkpoint.async);
  visit(Info{.name = "checkpoint.keep_last",
             .help = "newest checkpoints to keep; 2 at least: a new one is durable before an old one is deleted",
             .minimum = 2},
        c.checkpoint.keep_last);
  visit(Info{.name = "checkpoint.monitor",
             .help = "metric that says which checkpoints are best, for example val_loss; empty: none"},
        c.checkpoint.monitor);
  visit(Info{.name = "checkpoint.mode", .help = "whether a small or a large monitored metric is better"},
        c.checkpoint.mode);
  visit(Info{.name = "checkpoint.keep_best",
             .help = "with checkpoint.monitor: best checkpoints to keep besides the newest",
             .minimum = 0},
        c.checkpoint.keep_best);
  visit(Info{.name = "checkpoint.name",
             .help = "name of a link beside each checkpoint, from {step}, {epoch} and metrics: "
                     "epoch{epoch}-{val_loss}; empty: none"},
        c.checkpoint.name);
  visit(
      Info{.name = "checkpoint.on_error",
           .help = "when a checkpoint cannot be written: continue (the third failure in a row stops the run), or stop"},
      c.checkpoint.on_error);
  visit(Info{.name = "checkpoint.per_node", .help = "every node keeps the checkpoints in a run directory of its own"},
        c.checkpoint.per_node);
  visit(Info{.name = "checkpoint.allow_partial", .help = "load a checkpoint whose parameters match only in part"},
        c.checkpoint.allow_partial);

  visit(Info{.name = "dist.timeout_s",
             .help = "longest wait for a peer in a collective, in seconds",
             .minimum = 0,
             .maximum = 1e7,
             .above_minimum = true},
        c.dist.timeout_s);
  visit(Info{.name = "dist.init_timeout_s",
             .help = "longest wait for all ranks to appear, in seconds",
             .minimum = 0,
             .maximum = 1e7,
             .above_minimum = true},
        c.dist.init_timeout_s);
  visit(Info{.name = "dist.heartbeat_timeout_s",
             .help = "on several machines: silence in seconds after which one counts as lost; 0: never",
             .minimum = 0,
             .maximum = 1e7},
        c.dist.heartbeat_timeout_s);
  visit(Info{.name = "dist.grace_s",
             .help = "after a failure: seconds for the other ranks to end before they are killed",
             .minimum = 0,
             .maximum = 1e7,
             .ranks_agree = false},
        c.dist.grace_s);
  visit(Info{.name = "dist.requeue",
             .help = "under Slurm: a run that stopped on SIGTERM, SIGUSR1 or its time limit is queued again (scontrol "
                     "requeue)",
             .ranks_agree = false},
        c.dist.requeue);
  visit(Info{.name = "dist.max_restarts",
             .help = "own launcher: start all ranks again after a failure, so many times without progress between them",
             .minimum = 0,
             .ranks_agree = false},
        c.dist.max_restarts);
  visit(Info{.name = "dist.stall_warn_s",
             .help = "seconds without progress until the ranks that stand still are named; 0: never",
             .minimum = 0,
             .maximum = 1e7,
             .ranks_agree = false},
        c.dist.stall_warn_s);
  visit(Info{.name = "dist.stall_timeout_s",
             .help = "seconds without progress inside a step until the run is ended with code 124; 0: never",
             .minimum = 0,
             .maximum = 1e7,
             .ranks_agree = false},
        c.dist.stall_timeout_s);
  visit(Info{.name = "dist.bucket_mib",
             .help = "gradient bucket size in MiB",
             .minimum = 0,
             .maximum = 65536,
             .above_minimum = true},
        c.dist.bucket_mib);
  visit(Info{.name = "dist.find_unused_parameters",
             .help = "the loss may leave parameters without gradient; costs a graph walk a step"},
        c.dist.find_unused_parameters);
  visit(Info{.name = "dist.static_graph", .help = "the graph is the same in every step"}, c.dist.static_graph);
  visit(Info{.name = "dist.broadcast_buffers",
             .help = "rank 0's buffers (batch norm statistics) everywhere, once per step"},
        c.dist.broadcast_buffers);
  visit(Info{.name = "dist.compression", .help = "number format of gradients between the ranks; none: their own"},
        c.dist.compression);

  visit(
      Info{.name = "report.every_steps",
           .help =
               "steps between console lines and metrics rows, the only places that wait for the device; 0: at the end",
           .minimum = 0},
      c.report.every_steps);
  visit(Info{.name = "report.progress", .help = "progress bar on a terminal", .ranks_agree = false}, c.report.progress);
  visit(Info{.name = "report.jsonl", .help = "write metrics.jsonl in the run directory", .ranks_agree = false},
        c.report.jsonl);
  visit(Info{.name = "report.csv", .help = "write metrics.csv in the run directory", .ranks_agree = false},
        c.report.csv);
  visit(Info{.name = "report.record",
             .help = "steps between records of samples, loss and weights as digests (records-<rank>.bin, for lockstep "
                     "compare); 0: none",
             .minimum = 0},
        c.report.record);
  visit(
      Info{.name = "report.log_dir",
           .help = "own launcher: keep what each rank prints in <log_dir>/<run id>/attempt_<n>/rank_<r>.log; empty: no",
           .ranks_agree = false},
      c.report.log_dir);
}

}  // namespace lockstep
