#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/config/config_io.h>

#include "base/text.h"
#include "config/command_tokens.h"
#include "config/field_value.h"
#include "config/foreign_names.h"
#include "config/invocation.h"
#include "config/setting_form.h"
#include "support/message_of.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using Environment = std::map<std::string, std::string, std::less<>>;

Invocation parse(const std::vector<std::string>& args, const Environment& environment = {},
                 const TrainConfig& defaults = {}, const Flags& flags = {}) {
  return parse_invocation(defaults, args, Variables(environment), flags);
}

/// "what | hint" of every problem.
std::vector<std::string> problems(const std::vector<std::string>& args, const Environment& environment = {},
                                  const TrainConfig& defaults = {}, const Flags& flags = {}) {
  return problems_of([&] { parse(args, environment, defaults, flags); });
}

TEST(ParseInvocation, KeepsTheProgramsDefaults) {
  const Invocation invocation = parse({}, {}, {.max_epochs = 5, .optim = {.lr = 0.1}});
  EXPECT_EQ(invocation.config.max_epochs, 5);
  EXPECT_EQ(invocation.config.optim.lr, 0.1);
  EXPECT_EQ(invocation.origins.at("optim.lr"), "program");
  EXPECT_FALSE(invocation.help || invocation.help_all || invocation.print_config || invocation.dry_run);
}

TEST(ParseInvocation, SetsEveryTypeOfField) {
  const Invocation invocation = parse({"--max-epochs", "3", "--optim.lr=3e-4", "--seed", "18446744073709551615",
                                       "--devices", "0,2", "--backend", "gloo", "--precision=bf16_mixed", "--run_name",
                                       "first try", "--allow_fallback", "--data.workers=0", "--nprocs", "2"});
  const TrainConfig& config = invocation.config;
  EXPECT_EQ(config.max_epochs, 3);
  EXPECT_EQ(config.optim.lr, 3e-4);
  EXPECT_EQ(config.seed, UINT64_MAX);
  EXPECT_EQ(config.devices, DeviceSpec({0, 2}));
  EXPECT_EQ(config.backend, Backend::gloo);
  EXPECT_EQ(config.precision, Precision::bf16_mixed);
  EXPECT_EQ(config.run_name, "first try");
  EXPECT_TRUE(config.allow_fallback);
  EXPECT_EQ(config.data.workers, 0);
  EXPECT_EQ(config.nprocs, 2);
  EXPECT_EQ(invocation.origins.at("optim.lr"), "flag");
}

TEST(ParseInvocation, OfARankTakesTheTextThatItsLauncherHasRead) {
  const TempDir dir;
  const std::string file = (dir.path() / "x.toml").string();
  const std::vector<std::string> args{"--config", file};
  const auto epochs = [&](std::optional<std::string>& text) {
    return parse_invocation({}, args, Variables(), {}, text).config.max_epochs;
  };
  std::optional<std::string> text;
  std::ofstream(file) << "max_epochs = 7\n";
  EXPECT_EQ(epochs(text), 7);
  EXPECT_EQ(text, "max_epochs = 7\n");
  std::ofstream(file) << "max_epochs = 8\n";
  EXPECT_EQ(epochs(text), 7);
  std::optional<std::string> none;
  EXPECT_EQ(epochs(none), 8);
}

// A config.toml of another run contains that run's directory.
TEST(ParseInvocation, RunNameOverridesARunDirFromAWeakerSource) {
  const TempDir dir;
  const auto file = (dir.path() / "config.toml").string();
  std::ofstream(file) << "run_dir = \"runs/a\"\nrun_name = \"a\"\n";
  const auto directory = [&](std::vector<std::string> args, const Environment& environment = {}) {
    args.insert(args.end(), {"--config", file});
    const TrainConfig config = parse(args, environment, {.run_name = "train"}).config;
    return config.run_dir.empty() ? "runs/" + config.run_name : config.run_dir;
  };
  EXPECT_EQ(directory({}), "runs/a");
  EXPECT_EQ(directory({"--run_name", "y"}), "runs/y");
  EXPECT_EQ(directory({"--run_dir", "z"}), "z");
  EXPECT_EQ(directory({"--run_dir", "z", "--run_name", "y"}), "z");
  EXPECT_EQ(directory({}, {{"LOCKSTEP_CFG_RUN_NAME", "y"}}), "runs/y");
  EXPECT_EQ(directory({"--run_dir", "z"}, {{"LOCKSTEP_CFG_RUN_NAME", "y"}}), "z");
}

// How the run began is not how it goes on.
TEST(ParseInvocation, TheConfigOfARunContinuesIt) {
  const TempDir dir;
  const auto file = (dir.path() / "config.toml").string();
  std::ofstream(file) << "run_dir = \"runs/a\"\nresume = \"runs/b\"\n";
  EXPECT_EQ(parse({"--config", file}).config.resume, "runs/b") << "only a file with this name";
  std::ofstream(dir.path() / "run.json") << "{}";
  std::filesystem::create_directories(dir.path() / "checkpoints" / "step-0000000010");
  const TrainConfig config = parse({"--config", file}).config;
  EXPECT_EQ(config.run_dir, dir.path().string());
  EXPECT_EQ(config.resume, "auto");
  EXPECT_EQ(parse({"--config", file, "--resume", "runs/c"}).config.resume, "runs/c");
  EXPECT_EQ(parse({"--config", file, "--run_name", "b"}).config.resume, "runs/b") << "another run begins as this one";
}

TEST(ParseInvocation, TheConfigOfARunWithoutACheckpointBeginsItAsBefore) {
  const TempDir dir;
  const auto file = (dir.path() / "config.toml").string();
  std::ofstream(file) << "resume = \"runs/b\"\n";
  std::ofstream(dir.path() / "run.json") << "{}";
  EXPECT_EQ(parse({"--config", file}).config.resume, "runs/b") << "it failed before its first save";
  const auto checkpoints = dir.path() / "checkpoints";
  std::filesystem::create_directories(checkpoints / "step-0000000010.tmp.0123456789abcdef");
  EXPECT_EQ(parse({"--config", file}).config.resume, "runs/b") << "this save was cut off";
  std::filesystem::create_directory(checkpoints / "step-0000000010");
  EXPECT_EQ(parse({"--config", file}).config.resume, "auto");
  EXPECT_EQ(parse({"--config", file, "--fresh"}).config.resume, "runs/b");
}

TEST(ParseInvocation, TheStrongerSourceSaysWithWhichWeightsARunBegins) {
  const TempDir dir;
  const auto file = (dir.path() / "run.toml").string();
  std::ofstream(file) << "init_weights = \"runs/a\"\n";
  const TrainConfig resumed = parse({"--config", file, "--resume", "runs/b"}).config;
  EXPECT_EQ(resumed.init_weights, "");
  EXPECT_EQ(resumed.resume, "runs/b");
  std::ofstream(file) << "resume = \"runs/a\"\n";
  const TrainConfig begun = parse({"--config", file, "--init_weights", "runs/b"}).config;
  EXPECT_EQ(begun.init_weights, "runs/b");
  EXPECT_EQ(begun.resume, "auto");
  std::ofstream(file) << "resume = \"runs/a\"\ninit_weights = \"runs/b\"\n";
  EXPECT_THAT(problems({"--config", file}),
              ElementsAre(HasSubstr("| remove one of them; a resumed run also continues with the optimizers")));
}

TEST(ParseInvocation, BarebonesLeavesOutWhatAWeakerSourceDecidesBy) {
  const TempDir dir;
  const auto file = (dir.path() / "run.toml").string();
  std::ofstream(file) << "[checkpoint]\nmonitor = \"val_loss\"\nmode = \"max\"\n[early_stop]\nmetric = \"loss\"\n";
  TrainConfig defaults;
  defaults.plateau.metric = "loss";
  const Invocation invocation = parse({"--config", file, "--barebones"}, {}, defaults);
  EXPECT_EQ(invocation.config.checkpoint.monitor, "");
  EXPECT_EQ(invocation.config.early_stop.metric, "");
  EXPECT_EQ(invocation.config.plateau.metric, "");
  EXPECT_THAT(invocation.warnings, ElementsAre(HasSubstr("early_stop.metric = \"loss\": has no effect with barebones"),
                                               HasSubstr("checkpoint.monitor = \"val_loss\": has no effect with")));
  EXPECT_THAT(problems({"--barebones", "--plateau.metric", "loss"}),
              ElementsAre(HasSubstr("--barebones with --plateau.metric loss: such a run")));
}

TEST(ParseInvocation, ATrialLeavesOutTheRequeueOfAWeakerSource) {
  const TempDir dir;
  const auto file = (dir.path() / "run.toml").string();
  std::ofstream(file) << "[dist]\nrequeue = true\n";
  for (const std::string mode : {"--fast_dev_run=2", "--barebones"}) {
    const Invocation invocation = parse({"--config", file, mode});
    EXPECT_FALSE(invocation.config.dist.requeue);
    EXPECT_THAT(invocation.warnings, ElementsAre(HasSubstr("dist.requeue = true: has no effect with ")));
    EXPECT_THAT(problems({"--dist.requeue", mode}),
                ElementsAre(HasSubstr("a run without checkpoints cannot continue")));
  }
}

TEST(ParseInvocation, ReadsBoolsInAllSpellings) {
  EXPECT_FALSE(parse({"--no-checkpoint.enabled"}).config.checkpoint.enabled);
  EXPECT_FALSE(parse({"--no_report.progress"}).config.report.progress);
  EXPECT_FALSE(parse({"--checkpoint.enabled", "false"}).config.checkpoint.enabled);
  EXPECT_FALSE(parse({"--checkpoint.enabled=off"}).config.checkpoint.enabled);
  EXPECT_TRUE(parse({"--dist.static_graph", "--nprocs", "1"}).config.dist.static_graph);
  EXPECT_TRUE(parse({"--dist.static-graph", "1"}).config.dist.static_graph);
  EXPECT_TRUE(parse({"--fresh"}).config.fresh);
  EXPECT_THAT(
      problems({"--checkpoint.enabled=maybe"}),
      ElementsAre("--checkpoint.enabled=maybe: expected true or false | checkpoint.enabled: write checkpoints"));
  EXPECT_THAT(problems({"--no-fresh=true"}), ElementsAre("--no-fresh=true: takes no value | use --fresh=true"));
  EXPECT_THAT(problems({"--no-seed"}), ElementsAre(HasSubstr("--no-seed: unknown flag")));
}

TEST(ParseInvocation, TakesANegativeNumberAsAValue) {
  EXPECT_EQ(parse({"--devices", "-1"}).config.devices, DeviceSpec(-1));
  EXPECT_THAT(
      problems({"--nprocs", "-1"}),
      ElementsAre(
          "--nprocs -1: expected a whole number from 0 to 65536 | nprocs: total number of ranks on all nodes; 0: "
          "one per device, on CPU one"));
}

TEST(ParseInvocation, ReadsTheSwitches) {
  EXPECT_TRUE(parse({"--print-config"}).print_config);
  EXPECT_TRUE(parse({"--dry_run"}).dry_run);
  EXPECT_FALSE(parse({"--dry-run=false"}).dry_run);
  const Invocation planned = parse({"--hardware", "node.toml"});
  EXPECT_EQ(planned.hardware_file, "node.toml");
  EXPECT_TRUE(planned.dry_run);
  EXPECT_TRUE(parse({"-h"}).help);
  EXPECT_TRUE(parse({"--batch_szie", "3", "--help"}, {{"LOCKSTEP_CFG_SEED", "x"}}).help) << "whatever else is wrong";
  EXPECT_EQ(parse({"--resume", "last"}).config.resume, "last");
}

TEST(ParseInvocation, ReportsEveryProblem) {
  EXPECT_THAT(
      problems({"--batch_szie", "3", "--optim.lr", "fast", "--keep", "--seed", "-1", "stray"},
               {{"LOCKSTEP_CFG_MAX_STEP", "3"}, {"LOCKSTEP_CFG_DATA_WORKERS", "many"}}),
      ElementsAre(
          "--batch_szie: unknown flag | did you mean --batch_size?",
          "--keep: unknown flag | did you mean --checkpoint.keep_last?",
          "LOCKSTEP_CFG_DATA_WORKERS=many: expected a whole number from 0 to 1024 | data.workers: threads per "
          "rank that build batches (a stream has one); 0: the training thread builds them",
          "LOCKSTEP_CFG_MAX_STEP: unknown setting in the environment | did you mean LOCKSTEP_CFG_MAX_STEPS?",
          "unexpected argument \"stray\" | this program takes flags only; see --help",
          "--optim.lr fast: expected a number of 0 or more | optim.lr: base learning rate; 0: the one of the program's "
          "optimizer",
          "--seed -1: expected a whole number from 0 to 18446744073709551615 | seed: all random numbers derive from "
          "it"));
}

TEST(ParseInvocation, SuggestsTheNearestName) {
  const std::pair<const char*, const char*> cases[] = {
      {"--batch-szie=3", "did you mean --batch_size?"},
      {"--BATCH_SIZE=3", "did you mean --batch_size?"},
      {"--lr=3", "did you mean --optim.lr?"},
      {"--workers=3", "did you mean --data.workers?"},
      {"--monitor=val_loss", "did you mean --checkpoint.monitor?"},
      {"--early_stop.monitor=val_loss", "use --early_stop.metric METRIC"},
      {"--wrokers=3", "did you mean --data.workers?"},
      {"--every_steps=3", "did you mean --validate.every_steps, --checkpoint.every_steps or --report.every_steps?"},
      {"--checkpoint.keep=3", "did you mean --checkpoint.keep_last?"},
      {"--zebra=3", "see --help-all for all flags"},
      {"--epohcs=3", "did you mean epochs? use --max_epochs N"},
      {"--eopch=3", "did you mean epoch? use --max_epochs N"},
      {"--tensorboard_address=a", "see --help-all for all flags"},
      {"--learning_rate_minimum=0", "see --help-all for all flags"},
      {"--early_stop.patienc=3", "did you mean --early_stop.patience?"},
      {"--dryrun", "did you mean --dry_run?"},
      {"--hidden_siz=3", "did you mean --hidden_size?"},
      {"-lr", "did you mean --optim.lr?"},
  };
  std::int64_t hidden_size = 0;
  Flags flags;
  flags.add("hidden-size", &hidden_size, "width of the hidden layer");
  for (const auto& [argument, hint] : cases) {
    EXPECT_THAT(problems({argument}, {}, {}, flags), ElementsAre(HasSubstr(hint))) << argument;
  }
}

TEST(ParseInvocation, TranslatesFlagsOfOtherSystems) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"--num-gpus", "2"}, "use --devices N"},
      {{"--gpus=2"}, "use --devices N"},
      {{"--accelerator", "gpu"}, "use --compute_setup"},
      {{"--Max_Iter", "100"}, "use --max_epochs N, or --max_steps N"},
      {{"--learning-rate", "0.1"}, "use --optim.lr"},
      {{"--epochs", "3"}, "use --max_epochs"},
      {{"--num_nodes=2"}, "several machines: lockstep run --nnodes N"},
      {{"--nproc_per_node=2"},
       "use --nprocs N, which counts the ranks of all nodes, or: lockstep run --nproc-per-node N"},
      {{"-np", "2"}, "use --nprocs N"},
      {{"-n", "2"}, "use --nprocs N"},
      {{"--seed_everything", "3"}, "use --seed N"},
      {{"--plugins", "x"}, "the program has what it needs of them: Trainer::use_strategy"},
      {{"--distributed-backend", "nccl"}, "use --backend"},
      {{"--strategy", "ddp"}, "remove it: gradients are always averaged"},
      {{"--trainer.gradient_clip_val=1"}, "use --optim.max_grad_norm"},
      {{"--trainer.max_epochs=1"}, "did you mean --max_epochs?"},
      {{"--config-path", "a.json"}, "use --config FILE"},
      {{"--config-value=epochs=3"}, "write each setting as a flag of its own"},
      {{"--gradient_checkpointing"}, "call lockstep::recompute"},
      {{"--learning_rate_min_factor=0"}, "use --optim.schedule cosine:to=0.1"},
      {{"--tensorboard_port=6006"}, "start TensorBoard yourself"},
      {{"--plot_every=3"}, "remove it: lockstep report RUN"},
      {{"--validation_criterion=f"}, "use --checkpoint.monitor METRIC"},
      {{"--limit_train_batches=0.5"}, "use --data.steps_per_epoch N: a number of steps, or a part such as 10%"},
      {{"--min_train_steps_per_epoch=200"}, "use --data.min_steps_per_epoch N"},
      {{"--debug_mode"}, "use --dist.check_replicas"},
      {{"--save_on_exception"}, "remove it: a failure that all ranks have between the same two steps is saved"},
      {{"--overfit_batches=4"}, "use --data.steps_per_epoch N with --sampler.shuffle false"},
      {{"--limit_test_batches=4"}, "use --test.max_batches N"},
      {{"--limit_predict_batches=0.5"}, "use --predict.max_batches N: a number of steps, or a part such as 10%"},
      {{"--eval.enabled=true"}, "report metrics of the validation"},
      {{"--data_config.provider=x"}, "the program builds its data set"},
      {{"--data.init_args=x"}, "the program makes its objects itself"},
      {{"--trainer_config.trainer_num_devices=2"}, "use --devices N"},
      {{"--device=0"}, "use --devices with the numbers of GPUs: \"0,\" or \"0,2\" as a flag, [0] or [0, 2]"},
  };
  for (const auto& [arguments, hint] : cases) {
    EXPECT_THAT(problems(arguments), ElementsAre(HasSubstr(std::string(": unknown flag | ") + hint))) << arguments[0];
  }
  EXPECT_THAT(problems({}, {{"LOCKSTEP_CFG_STRATEGY", "ddp"}}),
              ElementsAre(HasSubstr("unknown setting in the environment | remove it")));
  EXPECT_THAT(problems({"--fast_dev_run", "true"}), ElementsAre(HasSubstr(" | use 1, a number of steps")));
  EXPECT_THAT(problems({"fit", "--trainer.max_epochs=5"}),
              ElementsAre("--trainer.max_epochs: unknown flag | did you mean --max_epochs?",
                          "unexpected argument \"fit\" | leave it out: the program decides what it does"));
}

TEST(ParseInvocation, PrefersTheProgramsOwnFlagToAnotherSystemsName) {
  std::int64_t gpus = 0;
  Flags flags;
  flags.add("gpus", &gpus, "mine");
  parse({"--gpus", "3"}, {}, {}, flags);
  EXPECT_EQ(gpus, 3);
}

TEST(ParseInvocation, TakesDurationsAsPeopleWriteThem) {
  for (const char* text : {"5400", "90min", "1.5h", "1:30:00", "00:01:30:00"}) {
    EXPECT_EQ(parse({"--max_time_s", text}).config.max_time_s, 5400) << text;
    EXPECT_EQ(parse({}, {{"LOCKSTEP_CFG_MAX_TIME_S", text}}).config.max_time_s, 5400) << text;
  }
  EXPECT_THAT(config_toml(parse({"--max_time_s=1.5h"}).config), HasSubstr("max_time_s = 5400\n"));
  EXPECT_THAT(
      problems({"--dist.timeout_s=soon"}),
      ElementsAre(HasSubstr("--dist.timeout_s=soon: expected a number above 0, or a time such as 90s, 30min, 2h, "
                            "1d or 1:30:00 | dist.timeout_s: longest wait")));
  EXPECT_THAT(problems({"--dist.timeout_s=0min"}),
              ElementsAre(HasSubstr("--dist.timeout_s=0min: expected a number above 0 |")));
  EXPECT_THAT(problems({"--optim.lr=2h"}), ElementsAre(HasSubstr("expected a number of 0 or more |"))) << "no time";
}

TEST(ParseInvocation, TakesAThresholdOrNone) {
  EXPECT_EQ(parse({}).config.early_stop.stopping_threshold, std::nullopt);
  const auto stop = [](const std::string& text) {
    return parse({"--early_stop.metric", "val_loss", "--early_stop.stopping_threshold=" + text})
        .config.early_stop.stopping_threshold;
  };
  EXPECT_EQ(stop("0"), 0);
  EXPECT_EQ(stop("-1.5"), -1.5);
  EXPECT_EQ(stop(""), std::nullopt);
  EXPECT_THAT(problems({"--early_stop.metric", "val_loss", "--early_stop.divergence_threshold", "high"}),
              ElementsAre(HasSubstr("--early_stop.divergence_threshold high: expected a number")));
  EXPECT_THAT(problems({"--early_stop.stopping_threshold", "0.1"}),
              ElementsAre(HasSubstr("has no effect without early_stop.metric")));
  EXPECT_THAT(config_toml(parse({}).config), HasSubstr("stopping_threshold = \"\"\n"));
}

TEST(ParseInvocation, TakesStepsAsANumberOrAPart) {
  for (const auto& [text, steps] :
       {std::pair("0", StepCount()), std::pair("50", StepCount(50)), std::pair("10%", StepCount::percent(10)),
        std::pair("100%", StepCount::percent(100)), std::pair("0.5%", StepCount::percent(0.5))}) {
    EXPECT_EQ(parse({"--data.steps_per_epoch", text}).config.data.steps_per_epoch, steps) << text;
    EXPECT_EQ(parse({}, {{"LOCKSTEP_CFG_VALIDATE_MAX_BATCHES", text}}).config.validate.max_batches, steps) << text;
  }
  const std::string expected = ": expected a whole number of 0 or more, or a part such as 10% | ";
  for (const auto& [text, hint] :
       {std::pair("0.1", "did you mean 10%?"), std::pair("0.29", "did you mean 29%?"),
        std::pair("1.0", "did you mean 100%?"), std::pair("0.1.2", "validate.max_batches: "),
        std::pair("2.5", "validate.max_batches: "), std::pair("%", "validate.max_batches: "),
        std::pair("10 %", "validate.max_batches: "), std::pair("nan%", "validate.max_batches: ")}) {
    EXPECT_THAT(problems({std::string("--validate.max_batches=") + text}),
                ElementsAre(HasSubstr(std::string("--validate.max_batches=") + text + expected + hint)));
  }
  for (const char* text : {"0%", "-10%", "150%"}) {
    EXPECT_THAT(problems({std::string("--data.steps_per_epoch=") + text}),
                ElementsAre(HasSubstr(std::string("--data.steps_per_epoch=") + text +
                                      ": expected a part above 0%, 100% at most | data.steps_per_epoch: steps per")));
  }
  EXPECT_THAT(problems({"--validate.max_batches=-1"}),
              ElementsAre(HasSubstr(
                  "--validate.max_batches=-1: expected a whole number of 0 or more, or a part such as 10% |")));
}

TEST(ForeignNames, KnowTheFlagsOfOtherLaunchers) {
  // Flags of OneTrainer's fork, of Lightning's Trainer and its callbacks, of perceptrain, of accelerate launch, of
  // Accelerator and of torchrun. A flag with the name of a setting needs no hint.
  constexpr std::string_view kFlags[] = {
      "config-path num-gpus spawn port distributed-backend distributed-data-loading backend master_addr master_port "
      "detect_nvlink data_strategy cache_strategy find_unused_parameters gradient_as_bucket_view bucket_cap_mb "
      "static_graph lr_scaling enable_multi_gpu use_torchrun",
      "accelerator strategy devices num_nodes precision logger callbacks fast_dev_run max_epochs min_epochs max_steps "
      "min_steps max_time limit_train_batches limit_val_batches limit_test_batches limit_predict_batches "
      "overfit_batches "
      "val_check_interval check_val_every_n_epoch num_sanity_val_steps log_every_n_steps enable_checkpointing "
      "enable_progress_bar enable_model_summary accumulate_grad_batches gradient_clip_val gradient_clip_algorithm "
      "deterministic benchmark inference_mode use_distributed_sampler profiler detect_anomaly barebones plugins "
      "sync_batchnorm reload_dataloaders_every_n_epochs default_root_dir enable_autolog_hparams model_registry "
      "suggest_integrations ModelCheckpoint EarlyStopping Timer LearningRateMonitor DeviceStatsMonitor "
      "ThroughputMonitor GradientAccumulationScheduler StochasticWeightAveraging EMAWeightAveraging BatchSizeFinder "
      "LearningRateFinder OnExceptionCheckpoint SpikeDetection ModelPruning BackboneFinetuning BasePredictionWriter "
      "LambdaCallback ModelSummary CombinedLoader",
      "max_iter print_every write_every checkpoint_every plot_every live_plot_every callbacks log_model root_folder "
      "create_subfolder_per_run log_folder checkpoint_best_only val_every val_epsilon validation_criterion "
      "trainstop_criterion batch_size verbose tracking_tool hyperparams plotting_functions nprocs compute_setup "
      "backend "
      "log_setup dtype all_reduce_metrics",
      "config_file num_processes num_machines machine_rank main_process_ip main_process_port mixed_precision multi_gpu "
      "gpu_ids same_network rdzv_backend rdzv_conf max_restarts monitor_interval no_python main_training_function "
      "num_cpu_threads_per_process enable_cpu_affinity use_deepspeed use_fsdp use_megatron_lm dynamo_backend "
      "downcast_bf16 cpu tpu use_xpu dynamo_mode",
      "device_placement split_batches gradient_accumulation_steps dataloader_config deepspeed_plugin fsdp_plugin "
      "megatron_lm_plugin torch_tp_plugin parallelism_config rng_types log_with project_dir project_config "
      "step_scheduler_with_optimizer kwargs_handlers dynamo_plugin even_batches dispatch_batches use_seedable_sampler "
      "use_stateful_dataloader non_blocking data_seed logging_dir total_limit automatic_checkpoint_naming "
      "save_on_each_node gradient_accumulation_plugin",
      "nproc_per_node nnodes node_rank standalone rdzv_endpoint rdzv_id start_method role run_path log_dir redirects "
      "tee local_addr local_ranks_filter logs_specs numa_binding"};
  for (const std::string_view flags : kFlags) {
    for (const std::string& flag : split(flags, ' ')) {
      bool is_key = false;
      for (const auto& [name, value] : config_values({})) {
        is_key = is_key || name == flag || name.ends_with("." + flag);
      }
      EXPECT_TRUE(is_key || find_foreign_name(flag) != nullptr) << flag;
      // Of those that are no settings themselves, the parser gives the hint.
      if (!is_key) {
        EXPECT_THAT(problems({"--" + flag + "=1"}),
                    ElementsAre(HasSubstr(": unknown flag | " + std::string(find_foreign_name(flag)->hint))));
      }
    }
  }
  EXPECT_EQ(find_foreign_name("zebra"), nullptr);  // the control
}

TEST(ForeignNames, KnowEarlierNamesInTheirSection) {
  EXPECT_THAT(problems({"--memory.keep"}), ElementsAre(HasSubstr("use --memory.keep_freed, its new name")));
  EXPECT_THAT(problems({"--checkpoint.keep", "3"}), ElementsAre(HasSubstr("keep_last")));
}

TEST(ForeignNames, ReferToExistingSettings) {
  std::set<std::string> known{"config"};
  for (const auto& [name, value] : config_values({})) {
    known.insert(name);
  }
  for (const ForeignName& row : foreign_names()) {
    for (const std::string& name : split(row.names, ' ')) {
      EXPECT_FALSE(known.contains(name)) << name << " is a setting";
      EXPECT_EQ(find_foreign_name(name), &row) << name << " is in two rows";
    }
    EXPECT_TRUE(row.field.empty() || known.contains(std::string(row.field))) << row.field;
    EXPECT_TRUE(row.field.empty() || row.hint.find(row.field) != std::string_view::npos) << row.hint;
    for (const std::string& word : split(row.hint, ' ')) {
      if (word.starts_with("--") && word != "--" && row.hint.find("lockstep run") == std::string_view::npos) {
        std::string flag = word.substr(2, word.find_first_not_of("abcdefghijklmnopqrstuvwxyz_.-", 2) - 2);
        flag = flag.starts_with("no-") ? flag.substr(3) : flag;
        EXPECT_TRUE(known.contains(flag)) << row.hint;
      }
    }
  }
}

TEST(ParseInvocation, ReadsTheValuesOfAnEnumInAnyCase) {
  EXPECT_EQ(parse({"--compute_setup", "CPU"}).config.compute_setup, ComputeSetup::cpu);
  EXPECT_EQ(parse({"--compute_setup=Gpu"}).config.compute_setup, ComputeSetup::gpu);
  EXPECT_EQ(parse({"--backend=NCCL"}).config.backend, Backend::nccl);
  EXPECT_EQ(parse({"--precision=BF16_mixed"}).config.precision, Precision::bf16_mixed);
  EXPECT_EQ(parse({}, {{"LOCKSTEP_CFG_OPTIM_SCHEDULE", "Cosine"}}).config.optim.schedule.text(), "cosine");
  EXPECT_EQ(parse({"--devices=AUTO"}).config.devices, DeviceSpec("auto"));
  EXPECT_EQ(parse({"--devices=Free:2@8gib"}).config.devices, DeviceSpec("free:2@8GiB"));
  EXPECT_EQ(parse({"--devices", "CUDA:1,"}).config.devices, DeviceSpec({1}));
}

TEST(ParseInvocation, AsksForAMissingValue) {
  EXPECT_THAT(problems({"--seed", "random"}),
              ElementsAre(HasSubstr("| use a number of your own, such as --seed $RANDOM")));
  EXPECT_THAT(problems({"--seed"}), ElementsAre("--seed: expected a value | use --seed=VALUE"));
  EXPECT_THAT(problems({"--seed", "--fresh"}),
              ElementsAre("--seed: expected a value, found --fresh | use --seed=VALUE"));
  EXPECT_EQ(parse({"--run_name=--odd"}).config.run_name, "--odd");
}

TEST(ParseInvocation, ListsTheValuesOfAnEnum) {
  const std::pair<const char*, const char*> cases[] = {
      {"--precision=bf16-mixed", "expected fp32, fp64, bf16, fp16, bf16_mixed or fp16_mixed | use bf16_mixed"},
      {"--precision=32-true", "| use fp32"},
      {"--precision=16-mixed", "| use fp16_mixed"},
      {"--precision=16-true", "| use fp16: the weights are half precision too"},
      {"--precision=bf16-true", "| use bf16: the weights are bfloat16 too"},
      {"--precision=64-true", "| use fp64"},
      {"--precision=fp23", "| did you mean fp32?"},
      {"--matmul_precision=tf32", "expected highest, high or medium | use high"},
      {"--deterministic=true", "expected off, warn or on | use on"},
      {"--optim.lr_scaling=global_both", "expected none, linear or sqrt | use sqrt"},
      {"--backend=mpi",
       "expected auto, nccl, gloo or shm | lockstep supports NCCL and Gloo; start with mpirun and use backend gloo or "
       "nccl"},
      {"--backend=glo", "expected auto, nccl, gloo or shm | did you mean gloo?"},
      {"--compute_setup=gpx", "expected auto, cpu or gpu | did you mean gpu?"},
      {"--compute_setup=cuda", "expected auto, cpu or gpu | use gpu"},
      {"--optim.schedule=cosin", "cosin: unknown curve | did you mean cosine?"},
  };
  for (const auto& [argument, expected] : cases) {
    EXPECT_THAT(problems({argument}), ElementsAre(HasSubstr(expected))) << argument;
  }
}

TEST(ParseInvocation, ShowsOnlyTheBeginOfALongValue) {
  const std::string value(5000, 'a');
  const std::string shown = std::string(200, 'a') + "...";
  const TempDir dir;
  const auto file = (dir.path() / "c.toml").string();
  std::ofstream(file) << "[optim]\nlr = \"" << value << "\"\n";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"--optim.schedule", value}, "--optim.schedule " + shown + ": unknown curve"},
      {{"--optim.schedule=warmup:5+" + value}, shown + ": unknown curve"},
      {{"--optim.schedule=cosine:to=" + value}, "to=" + shown + ", expected a number"},
      {{"--optim.schedule=cosine:" + value + "=1"}, "unknown setting " + shown},
      {{"--run_name=" + value}, "--run_name=" + shown + ": has 5000 bytes, the limit is 200"},
      {{"--devices", value}, "--devices " + shown + ": found \"" + shown + "\", expected GPU indices"},
      {{value}, "unexpected argument \"" + shown + "\""},
      {{"--config", file}, "optim.lr = \"" + std::string(199, 'a') + "...: expected a number"},
  };
  for (const auto& [words, expected] : cases) {
    const auto found = problems(words);
    ASSERT_EQ(found.size(), 1U) << expected;
    EXPECT_THAT(found[0], HasSubstr(expected));
    EXPECT_LT(found[0].size(), 1000U) << expected;
  }
  EXPECT_THAT(problems({}, {{"LOCKSTEP_CFG_OPTIM_LR", value}}), ElementsAre(HasSubstr("_OPTIM_LR=" + shown + ": ")));
}

// Every setting that takes a word of a list, however it is given.
TEST(ParseInvocation, ListsWhatEverySwitchAndEnumAccepts) {
  int checked = 0;
  const TrainConfig config;
  visit_fields(config, [&]<class T>(const FieldInfo& info, const T&) {
    if constexpr (std::is_same_v<T, bool> || std::is_enum_v<T>) {
      ++checked;
      std::string expected = "expected true or false";
      if constexpr (std::is_enum_v<T>) {
        std::vector<std::string> words;
        for (const Spelling& spelling : EnumText<T>::kSpellings) {
          words.emplace_back(spelling.text);
        }
        expected = "expected " + join_or(words);
      }
      const std::string flag = fmt::format("--{}", info.name);
      EXPECT_THAT(problems({flag + "=maybe"}), ElementsAre(HasSubstr(flag + "=maybe: " + expected)));
      // A switch alone is true, which may need another setting.
      EXPECT_THAT(problems({flag, "maybe"}), testing::Contains(HasSubstr(flag + " maybe: " + expected)));
      const std::string variable = variable_name("LOCKSTEP_CFG_", info.name);
      EXPECT_THAT(problems({}, {{variable, "maybe"}}),
                  ElementsAre(HasSubstr(info.flag_only ? "can only be a flag" : variable + "=maybe: " + expected)));
    }
  });
  EXPECT_GT(checked, 40);
}

TEST(ParseInvocation, LeavesAWordBehindASwitchToTheProgram) {
  std::string output;
  Flags flags;
  flags.positional("output", &output, "o");
  parse({"--report.progress", "maybe"}, {}, {}, flags);
  EXPECT_EQ(output, "maybe");
  EXPECT_THAT(problems({"--report.progress", "--seed", "3", "one", "stray"}, {}, {}, flags),
              ElementsAre(HasSubstr("unexpected argument \"stray\"")));
  EXPECT_THAT(problems({"one", "--report.progress", "maybe"}, {}, {}, flags),
              ElementsAre("--report.progress maybe: expected true or false | use --report.progress alone for true"));
}

TEST(ParseInvocation, AFlagCountsOverAPositionalArgument) {
  Flags flags;
  flags.positional("max_epochs").positional("checkpoint.every_steps");
  for (const std::vector<std::string>& words : {std::vector<std::string>{"7", "10", "--max_epochs", "8"},
                                                {"--max_epochs", "8", "7", "10"},
                                                {"7", "--max_epochs=9", "--max-epochs", "8", "10"}}) {
    const TrainConfig config = parse(words, {}, {}, flags).config;
    EXPECT_EQ(config.max_epochs, 8);
    EXPECT_EQ(config.checkpoint.every_steps, 10);
  }
  EXPECT_EQ(parse({"7", "10"}, {}, {}, flags).config.max_epochs, 7) << "the control";
  EXPECT_THAT(problems({"abc", "--max_epochs", "8"}, {}, {}, flags), ElementsAre(HasSubstr("max_epochs abc")));
}

TEST(ParseInvocation, RefusesANumberThatMayBeOfASwitch) {
  Flags flags;
  flags.positional("max_epochs").positional("checkpoint.every_steps");
  EXPECT_THAT(
      problems({"--fresh", "1", "10"}, {}, {}, flags),
      ElementsAre("--fresh 1: 1 may be its value or a positional argument | write --fresh=1 if it is the value, "
                  "else the positional arguments first"));
  const TrainConfig config = parse({"1", "10", "--fresh"}, {}, {}, flags).config;
  EXPECT_TRUE(config.fresh);
  EXPECT_EQ(config.max_epochs, 1);
  EXPECT_EQ(config.checkpoint.every_steps, 10);
  EXPECT_EQ(parse({"--fresh=1", "3", "10"}, {}, {}, flags).config.max_epochs, 3);
  EXPECT_TRUE(parse({"--fresh", "true", "3", "10"}, {}, {}, flags).config.fresh);
  EXPECT_TRUE(parse({"--fresh", "1"}).config.fresh) << "a program without positional arguments";
}

TEST(ParseInvocation, RefusesAnEmptyNameOfAFile) {
  EXPECT_THAT(problems({"--config", ""}), ElementsAre("--config \"\": expected a file | leave --config out"));
  EXPECT_THAT(problems({"--hardware="}), ElementsAre("--hardware=\"\": expected a file | leave --hardware out"));
}

// A variable of a script that is not set would begin or continue another run, or begin with other weights.
TEST(ParseInvocation, RefusesEmptyNamesOfRunsAndWeights) {
  const std::pair<const char*, const char*> cases[] = {
      {"run_name", "expected a name | leave it out for the name of the program"},
      {"run_dir", "expected a directory | leave it out for runs/<run_name>"},
      {"init_weights", "expected a directory or a file | leave it out to begin without other weights"},
      {"resume", "expected auto, never, last, best or a directory | "},
  };
  const TrainConfig defaults{.run_name = "train"};
  for (const auto& [name, message] : cases) {
    const std::string flag = fmt::format("--{}", name);
    const std::string variable = variable_name("LOCKSTEP_CFG_", name);
    const auto is = [&text = message](const std::string& label) {
      return ElementsAre(testing::StartsWith(fmt::format("{}\"\": {}", label, text)));
    };
    EXPECT_THAT(problems({flag, ""}, {}, defaults), is(flag + " "));
    EXPECT_THAT(problems({flag + "="}, {}, defaults), is(flag + "="));
    EXPECT_THAT(problems({}, {{variable, ""}}, defaults), is(variable + "="));
  }
  const TempDir dir;
  const auto file = (dir.path() / "config.toml").string();
  std::ofstream(file) << "run_name = \"\"\nrun_dir = \"\"\ninit_weights = \"\"\n";  // as lockstep config prints them
  const TrainConfig config = parse({"--config", file}, {}, defaults).config;
  EXPECT_EQ(config.run_name, "train");
  EXPECT_EQ(config.run_dir, "");
}

TEST(ParseInvocation, ShowsThatAValueIsEmpty) {
  Flags flags;
  flags.positional("max_epochs");
  EXPECT_THAT(problems({"--optim.lr", ""}), ElementsAre(HasSubstr("--optim.lr \"\": expected a number")));
  EXPECT_THAT(problems({"--optim.lr="}), ElementsAre(HasSubstr("--optim.lr=\"\": expected a number")));
  EXPECT_THAT(problems({""}, {}, {}, flags), ElementsAre(HasSubstr("max_epochs \"\": expected a whole number")));
  EXPECT_THAT(problems({}, {{"LOCKSTEP_CFG_BATCH_SIZE", ""}}),
              ElementsAre(HasSubstr("LOCKSTEP_CFG_BATCH_SIZE=\"\": expected a whole number")));
  EXPECT_THAT(problems({"--devices", ""}), ElementsAre(HasSubstr("--devices \"\": this requests no device")));
  EXPECT_THAT(problems({}, {}, {.devices = ""}),
              ElementsAre(HasSubstr("devices \"\" (the program's default): this requests no device")));
}

TEST(ParseInvocation, SendsFlagsThatAreNoSettingsToTheCommandLine) {
  const TempDir dir;
  const auto file = (dir.path() / "a.toml").string();
  for (const char* name : {"config", "hardware", "dry-run", "print_config"}) {
    const std::string hint = fmt::format(": unknown setting | use --{} on the command line",
                                         name == std::string("print_config") ? "print-config" : name);
    std::ofstream(file) << name << " = \"x\"\n";
    EXPECT_THAT(problems({"--config", file}), ElementsAre(HasSubstr(hint)));
  }
  EXPECT_THAT(
      problems({}, {{"LOCKSTEP_CFG_CONFIG", "x.toml"}}),
      ElementsAre("LOCKSTEP_CFG_CONFIG: unknown setting in the environment | use --config on the command line"));
}

TEST(ParseInvocation, GivesHintsInTheFormOfTheSetting) {
  EXPECT_THAT(problems({"--plateau.metric", "loss"}, {{"LOCKSTEP_CFG_REPORT_EVERY_STEPS", "0"}}),
              ElementsAre(HasSubstr("| report in between, for example --report.every_steps 20")));
  EXPECT_THAT(problems({}, {{"LOCKSTEP_CFG_PLATEAU_METRIC", "loss"}, {"LOCKSTEP_CFG_REPORT_EVERY_STEPS", "0"}}),
              ElementsAre(HasSubstr("| report in between, for example LOCKSTEP_CFG_REPORT_EVERY_STEPS=20")));
}

TEST(HintInForm, WritesFlagsAsSettings) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"use --data.workers 4", "use [data] workers = 4", "use \"data\": {\"workers\": 4}"},
      {"use --nprocs N: ranks", "use nprocs = N: ranks", "use \"nprocs\": N: ranks"},
      {"use --backend gloo (or auto)", "use backend = \"gloo\" (or auto)", "use \"backend\": \"gloo\" (or auto)"},
      {"use --checkpoint.monitor METRIC with --checkpoint.mode and",
       "use [checkpoint] monitor = \"METRIC\" with [checkpoint] mode and",
       "use \"checkpoint\": {\"monitor\": \"METRIC\"} with \"checkpoint\": {\"mode\": ...} and"},
      {"use --sampler.drop_last", "use [sampler] drop_last = true", "use \"sampler\": {\"drop_last\": true}"},
      {"use --no-sampler.shuffle for it", "use [sampler] shuffle = false for it",
       "use \"sampler\": {\"shuffle\": false} for it"},
      {"--devices with a list, or --devices 2", "devices with a list, or devices = 2",
       "\"devices\": ... with a list, or \"devices\": 2"},
      {"use --optim.schedule cosine:to=0.1: a part", "use [optim] schedule = \"cosine:to=0.1\": a part",
       "use \"optim\": {\"schedule\": \"cosine:to=0.1\"}: a part"},
      {"leave out --fresh; see --help-all, lockstep run --nnodes N -- PROGRAM",
       "leave out --fresh; see --help-all, lockstep run --nnodes N -- PROGRAM",
       "leave out --fresh; see --help-all, lockstep run --nnodes N -- PROGRAM"},
  };
  for (const auto& [flag, toml, json] : cases) {
    EXPECT_EQ(hint_in_form(SettingForm::flag, flag), flag);
    EXPECT_EQ(hint_in_form(SettingForm::toml, flag), toml);
    EXPECT_EQ(hint_in_form(SettingForm::json, flag), json);
  }
  EXPECT_EQ(hint_in_form(SettingForm::variable, "use --data.workers 4 with --checkpoint.mode"),
            "use LOCKSTEP_CFG_DATA_WORKERS=4 with LOCKSTEP_CFG_CHECKPOINT_MODE");
  for (const ForeignName& row : foreign_names()) {
    const std::string hint = hint_in_form(SettingForm::toml, row.hint);
    for (const auto& [name, value] : config_values({})) {
      EXPECT_TRUE(name == "fresh" || hint.find(fmt::format("--{} ", name)) == std::string::npos) << hint;
    }
  }
}

TEST(ParseInvocation, TheFlagWinsOverEnvironmentOverFileOverProgram) {
  const TempDir directory;
  const auto file = directory.path() / "run.toml";
  std::ofstream(file) << "seed = 1\nmax_steps = 1\nbatch_size = 1\n";
  const TrainConfig defaults{.seed = 0, .max_steps = 0, .batch_size = 8, .accumulation = 2};
  const Invocation invocation =
      parse({"--seed", "3", "--config", file.string()},
            {{"LOCKSTEP_CFG_SEED", "2"}, {"LOCKSTEP_CFG_MAX_STEPS", "2"}, {"HOME", "/root"}}, defaults);
  EXPECT_EQ(invocation.config.seed, 3U);
  EXPECT_EQ(invocation.config.max_steps, 2);
  EXPECT_EQ(invocation.config.batch_size, 1);
  EXPECT_EQ(invocation.config.accumulation, 2);
  EXPECT_EQ(invocation.origins.at("seed"), "flag");
  EXPECT_EQ(invocation.origins.at("max_steps"), "environment LOCKSTEP_CFG_MAX_STEPS");
  EXPECT_EQ(invocation.origins.at("batch_size"), "file " + file.string());
  EXPECT_EQ(invocation.origins.at("accumulation"), "program");
}

TEST(ParseInvocation, NamesTheOriginOfAnInvalidValue) {
  EXPECT_THAT(
      problems({"--batch_size=-3"}),
      ElementsAre(
          "--batch_size=-3: expected a whole number of 0 or more | batch_size: samples per rank and micro-batch; "
          "0: global_batch_size / (ranks x accumulation), else 32"));
  EXPECT_THAT(problems({"--batch-size", "-3"}),
              ElementsAre(HasSubstr("--batch-size -3: expected a whole number of 0 or more")));
  EXPECT_THAT(problems({}, {{"LOCKSTEP_CFG_BATCH_SIZE", "-1"}}),
              ElementsAre(HasSubstr("LOCKSTEP_CFG_BATCH_SIZE=-1: expected a whole number of 0 or more")));
  EXPECT_THAT(problems({}, {}, {.batch_size = -1}),
              ElementsAre(HasSubstr("batch_size -1 (the program's default): expected a whole number of 0 or more")));
  EXPECT_THAT(problems({}, {{"LOCKSTEP_CFG_DEVICES", "0,0"}}),
              ElementsAre(HasSubstr("LOCKSTEP_CFG_DEVICES=0,0: GPU 0 appears twice")));
  for (const std::string& text : problems({"--devices=\x1b[2Jx", "--\x1b[2J", "\x1b[2J"})) {
    EXPECT_EQ(text.find('\x1b'), std::string::npos) << "no escape reaches the terminal";
  }
}

TEST(ParseInvocation, LetsOnlyAFlagStartOver) {
  EXPECT_THAT(problems({}, {{"LOCKSTEP_CFG_FRESH", "1"}}),
              ElementsAre("LOCKSTEP_CFG_FRESH=1: can only be a flag | use --fresh on the command line"));
}

TEST(ParseInvocation, FillsTheProgramsOwnFlags) {
  std::string data = "data";
  std::int64_t hidden = 64;
  double dropout = 0.1;
  bool quiet = false;
  std::int64_t epochs = 1;
  std::string output;
  Flags flags;
  flags.add("data", &data, "d")
      .add("hidden-size", &hidden, "h")
      .add("dropout", &dropout, "p")
      .add("quiet", &quiet, "q");
  flags.positional("epochs", &epochs, "e").positional("output", &output, "o");

  const Invocation invocation =
      parse({"--data=/d", "5", "--hidden_size", "8", "--quiet", "out", "--dropout", "-0.5"}, {}, {}, flags);
  EXPECT_EQ(data, "/d");
  EXPECT_EQ(hidden, 8);
  EXPECT_EQ(dropout, -0.5);
  EXPECT_TRUE(quiet) << "and the word after it is not its value";
  EXPECT_EQ(epochs, 5);
  EXPECT_EQ(output, "out");
  EXPECT_EQ(invocation.origins.at("hidden_size"), "flag");

  parse({"--quiet", "false", "--", "-7", "--odd"}, {}, {}, flags);
  EXPECT_FALSE(quiet);
  EXPECT_EQ(epochs, -7);
  EXPECT_EQ(output, "--odd");
  parse({"--quiet"}, {}, {}, flags);
  parse({"--no-quiet"}, {}, {}, flags);
  EXPECT_FALSE(quiet);
}

TEST(ParseInvocation, RefusesPathsThatDoNotExist) {
  const TempDir directory;
  const std::string here = directory.path().string();
  const std::string missing = here + "/missing";
  std::string data = here;
  std::string weights;
  std::string output = missing;
  Flags flags;
  flags.add("data", &data, "folder of the data", TextKind::existing_path).add("output", &output, "a new file");
  flags.positional("weights", &weights, "file to begin with", TextKind::existing_path);
  EXPECT_THAT(problems({}, {}, {}, flags), ElementsAre()) << "an empty default names no file";
  EXPECT_THAT(problems({"--data", missing, missing, "--seed", "x"}, {}, {}, flags),
              ElementsAre(HasSubstr("--seed x: "),
                          fmt::format("--data {}: no such file or directory | data: folder of the data", missing),
                          fmt::format("weights {}: no such file or directory | weights: file to begin with", missing)))
      << "with all other problems";
  const Environment given{{"LOCKSTEP_CFG_PROGRAM_DATA", missing}};
  EXPECT_THAT(problems({}, given, {}, flags),
              ElementsAre(HasSubstr("LOCKSTEP_CFG_PROGRAM_DATA=" + missing + ": no such file or directory")));
  EXPECT_THAT(problems({"--data", here}, given, {}, flags), ElementsAre()) << "the flag counts";
  EXPECT_THAT(problems({"--data", missing, "--hardware", "dgx.json"}, {}, {}, flags), ElementsAre())
      << "the plan of another machine";
  EXPECT_THAT(problems({"--data", missing, "--print-config"}, {}, {}, flags), ElementsAre()) << "only shown";
  data = missing;
  EXPECT_THAT(problems({}, {}, {}, flags),
              ElementsAre(HasSubstr("data " + missing + " (the program's default): no such file or directory")));
  EXPECT_THAT(problems({"--data", ""}, {}, {}, flags), ElementsAre());
}

TEST(ParseInvocation, RefusesFlagsWithoutEffect) {
  EXPECT_THAT(
      problems({"--early_stop.patience", "5", "--plateau.factor=0.5", "--checkpoint.keep_best", "2"},
               {{"LOCKSTEP_CFG_SPIKE_POLICY", "skip"}}),
      ElementsAre(
          "LOCKSTEP_CFG_SPIKE_POLICY=skip: has no effect without spike.z_score | set how many standard deviations are "
          "a spike, for example LOCKSTEP_CFG_SPIKE_Z_SCORE=6",
          HasSubstr("--plateau.factor=0.5: has no effect without plateau.metric | name the metric"),
          HasSubstr("--early_stop.patience 5: has no effect without early_stop.metric | name the metric"),
          HasSubstr("--checkpoint.keep_best 2: has no effect without checkpoint.monitor | name the metric")));
  EXPECT_THAT(problems({"--spike.z_score=6", "--spike.lr_factor=0.1"}),
              ElementsAre(HasSubstr("--spike.lr_factor=0.1: has no effect without spike.policy")));
  EXPECT_THAT(problems({"--optim.lr_batch_size", "64"}),
              ElementsAre("--optim.lr_batch_size 64: has no effect without optim.lr_scaling | say what it scales, for "
                          "example --optim.lr_scaling sqrt"));
  for (const char* scaling : {"--optim.lr_scaling=sqrt", "--optim.loss_scaling=sqrt"}) {
    EXPECT_THAT(problems({"--optim.lr_batch_size", "64", scaling}), ElementsAre());
  }
  EXPECT_THAT(problems({"--checkpoint.enabled", "false", "--checkpoint.every_steps", "10", "--checkpoint.keep_best=2",
                        "--checkpoint.allow_partial"}),
              testing::UnorderedElementsAre(
                  "--checkpoint.every_steps 10: has no effect without checkpoint.enabled | leave it out, or save with "
                  "--checkpoint.enabled true",
                  HasSubstr("--checkpoint.keep_best=2: has no effect without checkpoint.enabled")))
      << "init_weights may load a part";
  EXPECT_THAT(problems({"--early_stop.patience", "3"}), ElementsAre()) << "this is the default";
  EXPECT_THAT(problems({"--early_stop.patience", "5", "--early_stop.metric", "val_loss"}), ElementsAre());
}

TEST(ParseInvocation, RefusesFlagsThatBarebonesLeavesOut) {
  EXPECT_THAT(
      problems({"--barebones", "--report.every_steps", "5", "--validate.at_start"}),
      testing::UnorderedElementsAre(
          "--report.every_steps 5: has no effect with barebones | remove one of them; such a run neither reports, "
          "validates nor saves",
          HasSubstr("--validate.at_start: has no effect with barebones")));
  EXPECT_THAT(problems({"--barebones", "--checkpoint.every_steps", "5", "--checkpoint.async",
                        "--checkpoint.keep_best=2", "--checkpoint.enabled"},
                       {}, {.checkpoint = {.enabled = false}}),
              testing::UnorderedElementsAre(HasSubstr("--checkpoint.every_steps 5: has no effect with barebones"),
                                            HasSubstr("--checkpoint.async: has no effect with barebones"),
                                            HasSubstr("--checkpoint.keep_best=2: has no effect with barebones"),
                                            HasSubstr("--checkpoint.enabled: has no effect with barebones")));
  EXPECT_THAT(problems({"--barebones", "--checkpoint.monitor", "val_loss"}),
              ElementsAre(HasSubstr("--barebones with --checkpoint.monitor val_loss: such a run")));
  EXPECT_THAT(problems({"--barebones", "--checkpoint.enabled", "false", "--checkpoint.allow_partial"}), ElementsAre())
      << "no file is written, but init_weights may load a part";
  EXPECT_THAT(
      problems({"--barebones", "--report.csv", "false", "--report.every_steps=0", "--report.log_level", "error"}),
      ElementsAre())
      << "these say what it does";
  const TempDir directory;
  const auto file = (directory.path() / "run.toml").string();
  std::ofstream(file) << "[report]\nevery_steps = 5\n[checkpoint]\nevery_steps = 5\n";
  EXPECT_THAT(parse({"--config", file, "--barebones"}).warnings, ElementsAre()) << "the file is for other runs too";
}

TEST(ParseInvocation, WarnsOfSettingsOfAFileWithoutEffect) {
  const TempDir directory;
  const auto file = (directory.path() / "run.toml").string();
  std::ofstream(file) << "[early_stop]\npatience = 5\n[plateau]\nmetric = \"loss\"\nfactor = 0.5\n";
  EXPECT_THAT(parse({"--config", file}).warnings,
              ElementsAre(HasSubstr("run.toml:2: early_stop.patience = 5: has no effect without early_stop.metric; ")));
  EXPECT_THAT(parse({"--config", file, "--plateau.metric", ""}).warnings, testing::SizeIs(1))
      << "a flag has switched the other one off";
  EXPECT_THAT(parse({"--config", file}, {}, {.early_stop = {.patience = 5}}).warnings, ElementsAre())
      << "the program's default";
}

TEST(ParseInvocation, ChangesNoProgramValueAfterAnError) {
  std::int64_t hidden = 64;
  std::int64_t epochs = 1;
  Flags flags;
  flags.add("hidden", &hidden, "width of the hidden layer").positional("epochs", &epochs, "how long");
  EXPECT_THAT(problems({"--hidden", "8", "--seed", "x"}, {}, {}, flags), testing::SizeIs(1));
  EXPECT_EQ(hidden, 64);
  EXPECT_THAT(problems({"--hidden", "wide", "abc", "def"}, {}, {}, flags),
              ElementsAre("epochs abc: expected a whole number | epochs: how long",
                          "unexpected argument \"def\" | this program takes one argument at most; see --help",
                          "--hidden wide: expected a whole number | hidden: width of the hidden layer"));
}

TEST(ParseInvocation, RejectsAProgramFlagWithTheNameOfAField) {
  std::int64_t mine = 0;
  Flags flags;
  flags.add("batch-size", &mine, "mine");
  EXPECT_THAT(
      problems({}, {}, {}, flags),
      ElementsAre(
          "--batch_size: the program declares a flag with the name of a lockstep flag | rename the program's flag"));
}

TEST(ParseInvocation, RejectsAProgramFlagWithDashesInFront) {
  double step = 0;
  std::string input;
  Flags flags;
  flags.add("--time-step", &step, "t").add("-i", &input, "i");
  EXPECT_THAT(problems({}, {}, {}, flags),
              ElementsAre("Flags::add(\"__time_step\"): expected a name without - or _ in front | use \"time_step\"",
                          "Flags::add(\"_i\"): expected a name without - or _ in front | use \"i\""));
}

TEST(ParseInvocation, RejectsAPositionalArgumentWithTheNameOfAnotherOne) {
  std::string first;
  std::string second;
  Flags flags;
  flags.add("text", &first, "f").positional("text", &second, "s");
  EXPECT_THAT(
      problems({"word"}, {}, {}, flags),
      ElementsAre("text: the program declares a positional argument with the name of another flag or argument | "
                  "rename the positional argument"));
}

TEST(ParseInvocation, RejectsAPositionalArgumentThatIsNoField) {
  for (const auto& [name, hint] :
       {std::pair("epochs", "use --max_epochs N"), std::pair("optim.l", "did you mean optim.lr?")}) {
    Flags flags;
    flags.positional(name);
    EXPECT_THAT(problems({"7"}, {}, {}, flags),
                ElementsAre(fmt::format("Flags::positional(\"{}\"): unknown setting | {}", name, hint)));
  }
}

TEST(ProgramFlags, SayWhichOfThemMayChange) {
  std::string out = "p1";
  std::int64_t hidden = 64;
  std::int64_t rounds = 1;
  Flags flags;
  flags.add("out-dir", &out, "o").add("hidden", &hidden, "h").positional("rounds", &rounds, "r");
  flags.may_change("out_dir").may_change("rounds");
  const std::vector<ProgramValue> values = program_values(flags);
  ASSERT_EQ(values.size(), 3U);
  EXPECT_TRUE(values[0].may_change);
  EXPECT_FALSE(values[1].may_change);
  EXPECT_TRUE(values[2].may_change);
  EXPECT_THAT(message_of<ConfigError>([&] { flags.may_change("outdir"); }),
              HasSubstr("found no flag outdir of the program"));
}

}  // namespace
}  // namespace lockstep
