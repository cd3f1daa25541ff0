// The field table: one row per field of TrainConfig. Flags, environment variables, files, --help, --print-config,
// `lockstep config`, completion, config_values() and docs/configuration.md are generated from it. Torch-free.
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

/// A spelling of other systems, and the hint for it.
struct ForeignSpelling {
  std::string_view text{};
  std::string_view hint{};
};

/// The spellings of an enum: `kSpellings`, and `kForeign` for those of other systems.
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
                                            spell("gloo", Backend::gloo), spell("shm", Backend::shm)};
  static constexpr ForeignSpelling kForeign[] = {
      {"mpi", "lockstep supports NCCL and Gloo; start with mpirun and use backend gloo or nccl"},
      {"ucc", "lockstep supports NCCL and Gloo; use nccl between GPUs, else gloo"}};
};

template <>
struct EnumText<Precision> {
  static constexpr Spelling kSpellings[] = {spell("fp32", Precision::fp32),
                                            spell("fp64", Precision::fp64),
                                            spell("bf16", Precision::bf16),
                                            spell("fp16", Precision::fp16),
                                            spell("bf16_mixed", Precision::bf16_mixed),
                                            spell("fp16_mixed", Precision::fp16_mixed)};
  static constexpr ForeignSpelling kForeign[] = {
      {"32-true", "use fp32"},
      {"32", "use fp32"},
      {"float32", "use fp32"},
      {"float", "use fp32"},
      {"64-true", "use fp64"},
      {"64", "use fp64"},
      {"float64", "use fp64"},
      {"double", "use fp64"},
      {"bf16-mixed", "use bf16_mixed"},
      {"bf16-true", "use bf16: the weights are bfloat16 too"},
      {"bfloat16", "use bf16_mixed; with bf16 the weights are bfloat16 too"},
      {"16-mixed", "use fp16_mixed"},
      {"16", "use fp16_mixed"},
      {"16-true", "use fp16: the weights are half precision too"},
      {"float16", "use fp16_mixed; with fp16 the weights are half precision too"},
      {"half", "use fp16_mixed; with fp16 the weights are half precision too"},
      {"transformer-engine", "not available; use bf16_mixed"},
      {"transformer-engine-float16", "not available; use fp16_mixed"},
      {"complex32", "use fp16, which makes complex parameters complex32"},
      {"complex64", "use fp32, which leaves complex parameters as they are"},
      {"complex128", "use fp64, which makes complex parameters complex128"}};
};

template <>
struct EnumText<MatmulPrecision> {
  static constexpr Spelling kSpellings[] = {spell("highest", MatmulPrecision::highest),
                                            spell("high", MatmulPrecision::high),
                                            spell("medium", MatmulPrecision::medium)};
  static constexpr ForeignSpelling kForeign[] = {{"tf32", "use high"}, {"ieee", "use highest"}, {"bf16", "use medium"}};
};

template <>
struct EnumText<Determinism> {
  static constexpr Spelling kSpellings[] = {spell("off", Determinism::off), spell("warn", Determinism::warn),
                                            spell("on", Determinism::on)};
  static constexpr ForeignSpelling kForeign[] = {
      {"true", "use on"}, {"false", "use off"}, {"error", "use on"}, {"none", "use off"}};
};

template <>
struct EnumText<LrScaling> {
  static constexpr Spelling kSpellings[] = {spell("none", LrScaling::none), spell("linear", LrScaling::linear),
                                            spell("sqrt", LrScaling::sqrt)};
  static constexpr ForeignSpelling kForeign[] = {
      {"batch", "use sqrt with --optim.lr_batch_size RANKS*ACCUMULATION"},
      {"global_batch", "use sqrt with --optim.lr_batch_size ACCUMULATION"},
      {"gradient_accumulation", "use sqrt with --optim.lr_batch_size RANKS*BATCH_SIZE"},
      {"both", "use sqrt with --optim.lr_batch_size RANKS"},
      {"global_both", "use sqrt"},
      {"true", "use linear"},
      {"false", "use none"}};
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
  static constexpr Spelling kSpellings[] = {
      spell("none", GradCompression::none), spell("fp16", GradCompression::fp16),
      spell("bf16", GradCompression::bf16), spell("bf16_stochastic", GradCompression::bf16_stochastic),
      spell("fp32", GradCompression::fp32), spell("fp32_stochastic", GradCompression::fp32_stochastic)};
  static constexpr ForeignSpelling kForeign[] = {{"powersgd", "not available; use bf16 or fp16"},
                                                 {"float_32", "use fp32"},
                                                 {"float_32_stochastic", "use fp32_stochastic"},
                                                 {"weight_dtype", "use none"},
                                                 {"weight_dtype_stochastic", "use bf16_stochastic"}};
};

template <>
struct EnumText<MonitorMode> {
  static constexpr Spelling kSpellings[] = {spell("min", MonitorMode::min), spell("max", MonitorMode::max)};
  static constexpr ForeignSpelling kForeign[] = {{"auto", "use min for a loss, max for an accuracy"}};
};

template <>
struct EnumText<SpikePolicy> {
  static constexpr Spelling kSpellings[] = {spell("warn", SpikePolicy::warn), spell("skip", SpikePolicy::skip),
                                            spell("lower_lr", SpikePolicy::lower_lr),
                                            spell("rollback", SpikePolicy::rollback), spell("stop", SpikePolicy::stop)};
  static constexpr ForeignSpelling kForeign[] = {{"error", "use stop"}};
};

template <>
struct EnumText<NonFinitePolicy> {
  static constexpr Spelling kSpellings[] = {spell("stop", NonFinitePolicy::stop), spell("warn", NonFinitePolicy::warn),
                                            spell("skip", NonFinitePolicy::skip),
                                            spell("rollback", NonFinitePolicy::rollback)};
  static constexpr ForeignSpelling kForeign[] = {{"error", "use stop"}, {"ignore", "use warn"}};
};

template <>
struct EnumText<SaveErrorPolicy> {
  static constexpr Spelling kSpellings[] = {spell("continue", SaveErrorPolicy::go_on),
                                            spell("stop", SaveErrorPolicy::stop)};
  static constexpr ForeignSpelling kForeign[] = {{"ignore", "use continue"}, {"raise", "use stop"}};
};

template <>
struct EnumText<LogLevel> {
  static constexpr Spelling kSpellings[] = {spell("debug", LogLevel::debug), spell("info", LogLevel::info),
                                            spell("warning", LogLevel::warning), spell("error", LogLevel::error),
                                            spell("off", LogLevel::off)};
  static constexpr ForeignSpelling kForeign[] = {
      {"warn", "use warning"}, {"critical", "use error"}, {"none", "use off"}};
};

/// The properties of a field besides its value.
struct FieldInfo {
  std::string_view name{};  ///< "batch_size", "optim.lr"
  std::string_view help{};
  double minimum = std::numeric_limits<double>::lowest();  ///< numbers only
  double maximum = std::numeric_limits<double>::max();
  bool above_minimum = false;  ///< the minimum itself is invalid
  bool ranks_agree = true;     ///< it must be equal on all ranks
  bool flag_only = false;      ///< only a flag can set it
  bool common = false;         ///< --help shows it; --help-all shows all fields
};

/// Calls visit(info, member) for every field in declaration order; `Config` is TrainConfig or const TrainConfig.
template <class Config, class Visit>
void visit_fields(Config& c, Visit&& visit) {
  using Info = FieldInfo;
  visit(Info{.name = "compute_setup",
             .help = "where to train; gpu without a usable GPU is an error unless allow_fallback"},
        c.compute_setup);
  visit(Info{.name = "devices",
             .help = "auto, cpu, a number of devices, -1 for all GPUs, indices such as 0,2 or 0-3 or 2, for GPU 2, "
                     "usable:N, free:N, free:N@8GiB",
             .ranks_agree = false,
             .common = true},
        c.devices);
  visit(Info{.name = "nprocs",
             .help = "total number of ranks on all nodes; 0: one per device, on CPU one",
             .minimum = 0,
             .maximum = 65536,
             .common = true},
        c.nprocs);
  visit(Info{.name = "backend",
             .help =
                 "communication backend; auto: nccl between GPUs, shm between CPU ranks of one machine that can share "
                 "memory, else gloo; shm: gloo with gradients in shared memory; not used with one rank"},
        c.backend);
  visit(Info{.name = "precision",
             .help = "number format; bf16_mixed and fp16_mixed only in the forward pass, with fp32 weights (fp16_mixed "
                     "with a dynamic loss scale); the others also for weights and inputs",
             .common = true},
        c.precision);
  visit(Info{.name = "matmul_precision",
             .help = "of fp32 matrix products: highest, high (TF32), medium (bf16), on hardware that has them"},
        c.matmul_precision);
  visit(Info{.name = "deterministic",
             .help = "operations without a deterministic algorithm: off allows, warn reports, on refuses them"},
        c.deterministic);
  visit(Info{.name = "benchmark", .help = "cuDNN measures its convolution algorithms and uses the fastest"},
        c.benchmark);
  visit(Info{.name = "detect_anomaly", .help = "find the operation whose backward gives NaN; slow, for debugging"},
        c.detect_anomaly);
  visit(Info{.name = "cuda_graphs",
             .help = "on one GPU, replay forward and backward as a CUDA graph where shapes repeat; the same results"},
        c.cuda_graphs);
  visit(Info{.name = "seed", .help = "all random numbers derive from it"}, c.seed);
  visit(Info{.name = "max_epochs", .help = "end after this many epochs; 0: no limit", .minimum = 0, .common = true},
        c.max_epochs);
  visit(Info{.name = "max_steps",
             .help = "end after this many optimizer steps; 0: no limit; the limit reached first ends the run",
             .minimum = 0,
             .common = true},
        c.max_steps);
  visit(Info{.name = "min_epochs",
             .help =
                 "the program itself, such as early stopping, cannot end the run before this many epochs; a signal can",
             .minimum = 0},
        c.min_epochs);
  visit(Info{.name = "min_steps",
             .help =
                 "the program itself, such as early stopping, cannot end the run before this many steps; a signal can",
             .minimum = 0},
        c.min_steps);
  visit(Info{.name = "fast_dev_run",
             .help = "try the program: so many steps of training, validation, test and prediction, no files; 0: off",
             .minimum = 0,
             .maximum = 1e6},
        c.fast_dev_run);
  visit(Info{.name = "barebones",
             .help = "measure the steps alone: no reports, progress bar, files, checkpoints and validation"},
        c.barebones);
  visit(Info{.name = "batch_size",
             .help = "samples per rank and micro-batch; 0: global_batch_size / (ranks x accumulation), else 32",
             .minimum = 0,
             .maximum = 1e9,
             .common = true},
        c.batch_size);
  visit(Info{.name = "accumulation",
             .help = "micro-batches per step; 0: derived from global_batch_size, else 1",
             .minimum = 0,
             .maximum = 1e5},
        c.accumulation);
  visit(Info{.name = "global_batch_size",
             .help = "samples per step over all ranks; 0: batch_size x accumulation x ranks",
             .minimum = 0,
             .maximum = 1e12,
             .common = true},
        c.global_batch_size);
  visit(Info{.name = "run_dir",
             .help = "directory of the run: checkpoints, metrics, logs; runs/{n} or runs/{time}: another one for each "
                     "start; empty: runs/<run_name>",
             .ranks_agree = false},
        c.run_dir);
  visit(Info{.name = "run_name",
             .help = "name of the run; empty: the program's name",
             .ranks_agree = false,
             .common = true},
        c.run_name);
  visit(Info{.name = "allow_fallback",
             .help = "use the CPU with a warning if a GPU is requested and none is usable",
             .ranks_agree = false},
        c.allow_fallback);
  visit(Info{.name = "init_weights",
             .help = "a new run begins with these weights: the directory of a run or of a checkpoint, or a file of "
                     "safetensors or torch.save; a run that resumes does not read them"},
        c.init_weights);
  visit(
      Info{.name = "resume",
           .help = "auto (the newest checkpoint, if there is one), never, last, best, or the directory of a checkpoint "
                   "or of another run",
           .ranks_agree = false,
           .common = true},
      c.resume);
  visit(Info{.name = "fresh",
             .help = "start over: renames an old run directory to <run_name>.1, deletes nothing",
             .ranks_agree = false,
             .flag_only = true,
             .common = true},
        c.fresh);
  visit(Info{.name = "max_time_s",
             .help = "end after this many seconds of training, over all starts of the run; 0: no limit",
             .minimum = 0,
             .maximum = 1e9},
        c.max_time_s);

  visit(Info{.name = "data.workers",
             .help = "threads per rank that build batches (a stream has one); 0: the training thread builds them",
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
             .help = "page-locked host batches, copied to the GPU on a separate stream",
             .ranks_agree = false},
        c.data.pin_memory);
  visit(Info{.name = "data.steps_per_epoch",
             .help = "steps per epoch of training, over a part of the data or several times over it, or a part of its "
                     "steps such as 10%; 0: once over the data set",
             .minimum = 0,
             .maximum = 1e9},
        c.data.steps_per_epoch);
  visit(Info{.name = "data.min_steps_per_epoch",
             .help = "fewest steps of an epoch of training; smaller data is passed several times; 0: no minimum",
             .minimum = 0,
             .maximum = 1e9},
        c.data.min_steps_per_epoch);
  visit(
      Info{.name = "data.max_bad_samples",
           .help = "samples per rank that may fail to load; each is logged and replaced by its neighbour; 0: the first "
                   "failure ends the run",
           .minimum = 0},
      c.data.max_bad_samples);
  visit(
      Info{.name = "data.check_finite",
           .help = "look for NaN and infinity in all tensors of the samples; such a sample counts as one that fails to "
                   "load"},
      c.data.check_finite);

  visit(Info{.name = "sampler.order",
             .help = "keyed: any number of ranks, which may change on resume; pytorch: the order of PyTorch's "
                     "DistributedSampler"},
        c.sampler.order);
  visit(Info{.name = "sampler.shuffle", .help = "a new order every epoch"}, c.sampler.shuffle);
  visit(Info{.name = "sampler.drop_last", .help = "drop the last, smaller step of an epoch"}, c.sampler.drop_last);

  visit(Info{.name = "optim.lr",
             .help = "base learning rate; 0: the one of the program's optimizer",
             .minimum = 0,
             .common = true},
        c.optim.lr);
  visit(Info{.name = "optim.lr_scaling",
             .help = "linear: multiply learning rates by global batch / lr_batch_size; sqrt: by its square root"},
        c.optim.lr_scaling);
  visit(Info{.name = "optim.loss_scaling",
             .help = "multiply the loss by the same factor before the backward; reports show the loss without it"},
        c.optim.loss_scaling);
  visit(Info{.name = "optim.lr_batch_size",
             .help = "with optim.lr_scaling and optim.loss_scaling: samples per step for which learning rate and loss "
                     "were chosen",
             .minimum = 1},
        c.optim.lr_batch_size);
  visit(Info{.name = "optim.max_grad_norm",
             .help = "maximum of the global gradient norm (clipping); 0: no clipping",
             .minimum = 0},
        c.optim.max_grad_norm);
  visit(Info{.name = "optim.max_grad_value",
             .help = "maximum of the absolute value of each gradient element (clipping); 0: no clipping",
             .minimum = 0},
        c.optim.max_grad_value);
  visit(Info{.name = "optim.schedule",
             .help = "schedule of the learning rates of all optimizers, such as cosine, warmup:500+cosine:to=0.1 or "
                     "step:30ep,factor=0.1; empty: those of the program, else constant",
             .common = true},
        c.optim.schedule);
  visit(Info{.name = "optim.non_finite",
             .help =
                 "when a loss, a gradient norm or a parameter is NaN or infinite: stop (exit 65), warn, skip the steps "
                 "with such a loss or gradients, or rollback to the weights of the last report"},
        c.optim.non_finite);
  visit(Info{.name = "optim.stochastic_rounding",
             .help = "with precision bf16: calculate updates in fp32 and round parameters and optimizer states at "
                     "random, so that small updates count on average"},
        c.optim.stochastic_rounding);

  visit(Info{.name = "spike.z_score",
             .help = "look for losses and gradient norms that are so many standard deviations above the mean of the "
                     "steps before; 0: no",
             .minimum = 0},
        c.spike.z_score);
  visit(Info{.name = "spike.window",
             .help = "number of steps of which mean and deviation are taken",
             .minimum = 2,
             .maximum = 100000},
        c.spike.window);
  visit(Info{.name = "spike.inputs",
             .help = "also look at the inputs: the root mean square of the floating-point and complex numbers in input "
                     "and fields of the batches"},
        c.spike.inputs);
  visit(Info{.name = "spike.policy",
             .help = "warn, skip the update of such a step, lower_lr, rollback to the weights of the last report and "
                     "leave out the samples since then, or stop (exit 65)"},
        c.spike.policy);
  visit(Info{.name = "spike.lr_factor",
             .help = "with spike.policy lower_lr: the learning rates are multiplied by it",
             .minimum = 0,
             .maximum = 1,
             .above_minimum = true},
        c.spike.lr_factor);

  visit(Info{.name = "plateau.metric",
             .help = "reduce the learning rates when this metric no longer improves, for example val_loss; empty: no"},
        c.plateau.metric);
  visit(Info{.name = "plateau.mode", .help = "whether a lower or a higher value of the metric is better"},
        c.plateau.mode);
  visit(Info{.name = "plateau.factor", .help = "the learning rates are multiplied by it", .minimum = 0, .maximum = 1},
        c.plateau.factor);
  visit(
      Info{.name = "plateau.patience", .help = "measurements without an improvement that are tolerated", .minimum = 0},
      c.plateau.patience);
  visit(Info{.name = "plateau.threshold", .help = "smallest relative change that is an improvement", .minimum = 0},
        c.plateau.threshold);
  visit(Info{.name = "plateau.cooldown", .help = "measurements after a reduction that are not counted", .minimum = 0},
        c.plateau.cooldown);
  visit(Info{.name = "plateau.min_lr", .help = "the learning rates never go below it", .minimum = 0}, c.plateau.min_lr);

  visit(Info{.name = "early_stop.metric",
             .help = "end the training when this metric no longer improves, for example val_loss; empty: no"},
        c.early_stop.metric);
  visit(Info{.name = "early_stop.mode", .help = "whether a lower or a higher value of the metric is better"},
        c.early_stop.mode);
  visit(Info{.name = "early_stop.patience",
             .help = "measurements in a row without an improvement that end the training",
             .minimum = 1},
        c.early_stop.patience);
  visit(Info{.name = "early_stop.min_delta", .help = "an improvement by less than this does not count", .minimum = 0},
        c.early_stop.min_delta);
  visit(Info{.name = "early_stop.check_finite", .help = "end the training if the metric is NaN or infinite"},
        c.early_stop.check_finite);
  visit(Info{.name = "early_stop.stopping_threshold",
             .help = "end the training if the metric is better than this; empty: no"},
        c.early_stop.stopping_threshold);
  visit(Info{.name = "early_stop.divergence_threshold",
             .help = "end the training if the metric is worse than this; empty: no"},
        c.early_stop.divergence_threshold);

  visit(Info{.name = "validate.every_epochs",
             .help = "validate after this many epochs; 0.25: four times per epoch; 0: never by epochs",
             .minimum = 0},
        c.validate.every_epochs);
  visit(Info{.name = "validate.every_steps", .help = "validate after this many steps; 0: never by steps", .minimum = 0},
        c.validate.every_steps);
  visit(Info{.name = "validate.every_s", .help = "validate after this many seconds; 0: never by time", .minimum = 0},
        c.validate.every_s);
  visit(Info{.name = "validate.max_batches",
             .help = "steps of the validation set to evaluate, or a part of them such as 10%; 0: all",
             .minimum = 0},
        c.validate.max_batches);
  visit(Info{.name = "validate.at_start", .help = "validate before the first step of a run too"}, c.validate.at_start);
  visit(Info{.name = "validate.sanity_steps",
             .help = "steps of the validation set to try before the training, without a report",
             .minimum = 0},
        c.validate.sanity_steps);

  visit(Info{.name = "test.max_batches",
             .help = "steps of the data of Trainer::test, or a part of them such as 10%; 0: all",
             .minimum = 0},
        c.test.max_batches);

  visit(Info{.name = "predict.max_batches",
             .help = "steps of the data of Trainer::predict, or a part of them such as 10%; 0: all",
             .minimum = 0},
        c.predict.max_batches);

  visit(Info{.name = "checkpoint.enabled", .help = "write checkpoints"}, c.checkpoint.enabled);
  visit(
      Info{.name = "checkpoint.every_epochs", .help = "save after this many epochs; 0: never by epochs", .minimum = 0},
      c.checkpoint.every_epochs);
  visit(Info{.name = "checkpoint.every_steps",
             .help = "save after this many steps; 0: never by steps; the end of a run and a stop always save",
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
             .help =
                 "number of newest checkpoints to keep; at least 2: a new one is durable before an old one is deleted",
             .minimum = 2},
        c.checkpoint.keep_last);
  visit(Info{.name = "checkpoint.keep_all", .help = "delete no checkpoint, whatever keep_last says"},
        c.checkpoint.keep_all);
  visit(Info{.name = "checkpoint.monitor",
             .help = "metric by which checkpoints are compared, for example val_loss; empty: none"},
        c.checkpoint.monitor);
  visit(Info{.name = "checkpoint.mode", .help = "whether a lower or a higher value of the metric is better"},
        c.checkpoint.mode);
  visit(Info{.name = "checkpoint.keep_best",
             .help = "with checkpoint.monitor: number of best checkpoints to keep besides the newest",
             .minimum = 0},
        c.checkpoint.keep_best);
  visit(Info{.name = "checkpoint.name",
             .help = "name of a link to each checkpoint, made of {step}, {epoch} and metrics: "
                     "epoch{epoch}-{val_loss}; empty: none"},
        c.checkpoint.name);
  visit(Info{.name = "checkpoint.on_error",
             .help = "if a checkpoint cannot be written: continue (the third failure in a row stops the run), or stop"},
        c.checkpoint.on_error);
  visit(Info{.name = "checkpoint.per_node", .help = "every node keeps the checkpoints in its own run directory"},
        c.checkpoint.per_node);
  visit(Info{.name = "checkpoint.allow_partial",
             .help = "also load a checkpoint if only a part of its parameters matches"},
        c.checkpoint.allow_partial);
  visit(Info{.name = "checkpoint.weights_only",
             .help = "save the model without the state of the optimizers; such a run cannot be resumed"},
        c.checkpoint.weights_only);

  visit(Info{.name = "dist.timeout_s",
             .help = "longest wait for a peer in a collective, in seconds",
             .minimum = 0,
             .maximum = 1e7,
             .above_minimum = true},
        c.dist.timeout_s);
  visit(Info{.name = "dist.init_timeout_s",
             .help = "longest wait until all ranks have connected, in seconds",
             .minimum = 0,
             .maximum = 1e7,
             .above_minimum = true},
        c.dist.init_timeout_s);
  visit(Info{.name = "dist.heartbeat_timeout_s",
             .help = "on several machines: seconds of silence after which a rank is lost; 0: never",
             .minimum = 0,
             .maximum = 1e7},
        c.dist.heartbeat_timeout_s);
  visit(
      Info{.name = "dist.grace_s",
           .help =
               "after a failure: seconds until the other ranks are killed; only if the program starts its ranks itself "
               "(lockstep run has --grace)",
           .minimum = 0,
           .maximum = 1e7,
           .ranks_agree = false},
      c.dist.grace_s);
  visit(Info{.name = "dist.requeue",
             .help = "under Slurm: queue the job again after a stop by SIGTERM, SIGUSR1 or its time limit (scontrol "
                     "requeue)",
             .ranks_agree = false},
        c.dist.requeue);
  visit(Info{.name = "dist.max_restarts",
             .help = "restart all ranks after a failure, at most this many times without progress; only if the program "
                     "starts its ranks itself (lockstep run has --max-restarts)",
             .minimum = 0,
             .ranks_agree = false},
        c.dist.max_restarts);
  visit(Info{.name = "dist.stall_warn_s",
             .help = "seconds without progress after which the stalled ranks are named; 0: never",
             .minimum = 0,
             .maximum = 1e7,
             .ranks_agree = false},
        c.dist.stall_warn_s);
  visit(Info{.name = "dist.stall_timeout_s",
             .help = "seconds without progress in a step, or while all ranks wait, after which the run ends with code "
                     "124; 0: never",
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
             .help = "the loss may leave parameters without gradient; costs a graph traversal per step"},
        c.dist.find_unused_parameters);
  visit(Info{.name = "dist.static_graph", .help = "the graph is the same in every step"}, c.dist.static_graph);
  visit(Info{.name = "dist.broadcast_buffers",
             .help = "copy the buffers of rank 0 (batch norm statistics) to all ranks once per step"},
        c.dist.broadcast_buffers);
  visit(
      Info{.name = "dist.compression",
           .help = "dtype in which gradients are sent and averaged; none: their own dtype; bf16_stochastic: rounded at "
                   "random before they are sent; fp32_stochastic: afterwards, to bf16 parameters"},
      c.dist.compression);
  visit(Info{.name = "dist.require_sync_batch_norm", .help = "refuse batch norm that is not SyncBatchNorm"},
        c.dist.require_sync_batch_norm);
  visit(
      Info{.name = "dist.check_replicas",
           .help = "check at each report that parameters, optimizer state and, without dist.broadcast_buffers, buffers "
                   "are equal on all ranks, and name the rank that differs; saves check the parameters anyway"},
      c.dist.check_replicas);
  visit(Info{.name = "dist.shard_optimizer",
             .help = "each rank keeps the optimizer state of its share of the parameters only (ZeRO stage 1)"},
        c.dist.shard_optimizer);

  visit(Info{.name = "memory.keep_freed",
             .help = "while it trains, the process keeps freed memory instead of returning it to the kernel "
                     "(allocator of glibc); the steps need it again",
             .ranks_agree = false},
        c.memory.keep_freed);
  visit(Info{.name = "memory.halve_batch",
             .help = "if a rank runs out of memory, each later start of the run takes half the batch_size and more "
                     "accumulation; global_batch_size stays; a program that starts its ranks, and lockstep run, start "
                     "again at once on one machine"},
        c.memory.halve_batch);
  visit(Info{.name = "memory.channels_last",
             .help = "store 4-dimensional parameters and inputs with the channels last (NHWC), which convolutions in "
                     "half precision need to be fast"},
        c.memory.channels_last);

  visit(Info{.name = "report.every_steps",
             .help = "steps between reports (console line and metrics row), which wait for the device; 0: at the end",
             .minimum = 0},
        c.report.every_steps);
  visit(Info{.name = "report.every_s",
             .help = "also report when so many seconds have passed without a report, at the next step; 0: no",
             .minimum = 0,
             .maximum = 1e9},
        c.report.every_s);
  visit(Info{.name = "report.epoch_means", .help = "report the means of all steps of an epoch at its end too"},
        c.report.epoch_means);
  visit(Info{.name = "report.progress", .help = "progress bar on a terminal", .ranks_agree = false}, c.report.progress);
  visit(Info{.name = "report.jsonl", .help = "write metrics.jsonl in the run directory", .ranks_agree = false},
        c.report.jsonl);
  visit(Info{.name = "report.csv", .help = "write metrics.csv in the run directory", .ranks_agree = false},
        c.report.csv);
  visit(Info{.name = "report.tensorboard",
             .help = "write event files for TensorBoard in the run directory",
             .ranks_agree = false},
        c.report.tensorboard);
  visit(Info{.name = "report.prometheus",
             .help = "write metrics.prom in the run directory: the last values in the text format of Prometheus",
             .ranks_agree = false},
        c.report.prometheus);
  visit(Info{.name = "report.command",
             .help = "a shell command that gets each row of metrics as a line of JSON on its standard input; empty: "
                     "none",
             .ranks_agree = false},
        c.report.command);
  visit(Info{.name = "report.step_times",
             .help = "write step_times.csv in the run directory: where the time of each rank goes, a row per rank and "
                     "report"},
        c.report.step_times);
  visit(Info{.name = "report.record",
             .help = "steps between digests of samples, loss and weights (records-<rank>.bin, for lockstep "
                     "compare); 0: none",
             .minimum = 0},
        c.report.record);
  visit(
      Info{.name = "report.log_dir",
           .help = "write the output of each rank to <log_dir>/<run id>/attempt_<n>/rank_<r>.log; only if the program "
                   "starts its ranks itself (lockstep run has --log-dir); empty: no",
           .ranks_agree = false},
      c.report.log_dir);
  visit(Info{.name = "report.log_level",
             .help = "run() shows log lines of this level and above; off: only the error with which the program ends",
             .ranks_agree = false},
        c.report.log_level);
}

}  // namespace lockstep
