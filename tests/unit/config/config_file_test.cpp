#include "config/config_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/config/config_io.h>

#include "base/text.h"
#include "config/flags.h"
#include "support/message_of.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

class ConfigFile : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    const auto path = directory_.path() / name;
    std::ofstream(path) << text;
    return path.string();
  }

  TrainConfig read(const std::string& name, const std::string& text) {
    return parse_invocation({}, std::vector<std::string>{"--config", write(name, text)}, {}).config;
  }

  /// Problems as "what | hint", the directory's name left out.
  std::vector<std::string> problems(const std::string& name, const std::string& text) {
    return problems_in(write(name, text));
  }

  std::vector<std::string> problems_in(const std::string& file) {
    auto found = problems_of([&] { parse_invocation({}, std::vector<std::string>{"--config", file}, {}); });
    const std::string prefix = directory_.path().string() + "/";
    for (std::string& line : found) {
      for (auto at = line.find(prefix); at != std::string::npos; at = line.find(prefix)) {
        line.erase(at, prefix.size());
      }
    }
    return found;
  }

  TempDir directory_;
};

TEST_F(ConfigFile, ReadsToml) {
  const TrainConfig config = read("run.toml", R"(
run-name = "first"
devices = [0, 2]
seed = "18446744073709551615"
precision = "bf16_mixed"
optim.lr = 1

[checkpoint]
enabled = false
keep_last = 5

[dist]
timeout_s = 1e2
)");
  EXPECT_EQ(config.run_name, "first");
  EXPECT_EQ(config.devices, DeviceSpec({0, 2}));
  EXPECT_EQ(config.seed, UINT64_MAX);
  EXPECT_EQ(config.precision, Precision::bf16_mixed);
  EXPECT_EQ(config.optim.lr, 1.0);
  EXPECT_FALSE(config.checkpoint.enabled);
  EXPECT_EQ(config.checkpoint.keep_last, 5);
  EXPECT_EQ(config.dist.timeout_s, 100.0);
}

TEST_F(ConfigFile, ReadsJson) {
  const TrainConfig config = read("run.json", R"({"devices": 2, "seed": 18446744073709551615, "optim": {"lr": 0.5},
      "checkpoint": {"enabled": false}, "backend": "gloo"})");
  EXPECT_EQ(config.devices, DeviceSpec(2));
  EXPECT_EQ(config.seed, UINT64_MAX);
  EXPECT_EQ(config.optim.lr, 0.5);
  EXPECT_FALSE(config.checkpoint.enabled);
  EXPECT_EQ(config.backend, Backend::gloo);
  EXPECT_EQ(read("list.json", R"({"devices": [3, 1]})").devices, DeviceSpec({3, 1}));
}

TEST_F(ConfigFile, ReportsAllMistakesWithTheirLines) {
  EXPECT_THAT(
      problems("run.toml", "batch_szie = 3\nmax_epochs = \"5\"\n\n[optim]\nlr = -1\n[checkpoint]\nkeep_last = 2.5\n"),
      ElementsAre(
          "run.toml:1: batch_szie: unknown setting | did you mean batch_size?",
          "run.toml:2: max_epochs = \"5\": expected a whole number of 0 or more | write it without quotes",
          "run.toml:7: checkpoint.keep_last = 2.5: expected a whole number of 2 or more | checkpoint.keep_last: number "
          "of newest checkpoints to keep; at least 2: a new one is durable before an old one is deleted",
          "run.toml:5: optim.lr = -1: expected a number of 0 or more | optim.lr: base learning rate; 0: the one of the "
          "program's optimizer"));
}

TEST_F(ConfigFile, RejectsWrongTypes) {
  const std::pair<const char*, const char*> cases[] = {
      {"sampler.shuffle = 1", "sampler.shuffle = 1: expected true or false"},
      {"sampler.shuffle = \"true\"", "sampler.shuffle = \"true\": expected true or false | write it without quotes"},
      {"sampler.shuffle = \"on\"", "sampler.shuffle = \"on\": expected true or false | sampler.shuffle: "},
      {"devices = \"[0, 1]\"", "devices = \"[0, 1]\": expected a list of GPU indices | write it without quotes"},
      {"run_name = 3", "run_name = 3: expected a text in quotes"},
      {"run_name = ['a']", "run_name = a list that does not only contain whole numbers: expected a text in quotes"},
      {"batch_size = 1.0", "batch_size = 1.0: expected a whole number of 0 or more"},
      {"batch_size = true", "batch_size = true: expected a whole number"},
      {"batch_size = 1979-05-27", "batch_size = a date or time: expected a whole number"},
      {"nprocs = 99999999999", "nprocs = 99999999999: expected a whole number from 0 to 65536"},
      {"optim.lr = \"fast\"", "optim.lr = \"fast\": expected a number of 0 or more | optim.lr: "},
      {"optim.lr = \"0.1\"", "optim.lr = \"0.1\": expected a number of 0 or more | write it without quotes"},
      {"optim.lr = nan", "optim.lr = nan: expected a number of 0 or more"},
      {"precision = 32", "precision = 32: expected fp32, fp64, bf16, fp16, bf16_mixed or fp16_mixed"},
      {"precision = \"bf16-mixed\"",
       "precision = \"bf16-mixed\": expected fp32, fp64, bf16, fp16, bf16_mixed or fp16_mixed | use bf16_mixed"},
      {"devices = 1.0", "devices = 1.0: expected a number of devices, a list of GPU indices"},
      {"devices = true", "devices = true: expected a number of devices"},
      {"devices = [\"0\"]", "devices = a list that does not only contain whole numbers: expected a number of devices"},
      {"devices = [0, 0]", "devices = [0, 0]: GPU 0 appears twice"},
      {"devices = -5", "devices = -5: found -5, expected a number of devices"},
      {"devices = \"1,,3\"", "devices = \"1,,3\": empty entry in the list | use 1,3"},
      {"seed = -1", "seed = -1: expected a whole number from 0 to 18446744073709551615"},
      {"optim = 3", "optim: unknown setting"},
      {"seed.x = 3", "seed.x: unknown setting"},
      {"optim.lr.x = 3", "optim.lr = a table: expected a number"},
      {"lr = 3", "lr: unknown setting | did you mean optim.lr?"},
      {"fresh = true", "fresh = true: can only be a flag | use --fresh on the command line"},
      {"batch-size = 3\nbatch_size = 4", "batch_size is set twice | remove one of them"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_THAT(problems("run.toml", text), ElementsAre(HasSubstr(expected))) << text;
  }
  EXPECT_THAT(problems("run.json", R"({"sampler": {"shuffle": "false"}, "devices": "[0]", "data": {"workers": "4"}})"),
              AllOf(SizeIs(3), Each(HasSubstr("| write it without quotes"))));
  EXPECT_THAT(problems("run.json", R"({"optim": {"lr": null}, "batch_szie": 3})"),
              ElementsAre(HasSubstr("run.json: optim.lr = null: expected a number"),
                          "run.json: batch_szie: unknown setting | did you mean batch_size?"));
}

TEST_F(ConfigFile, HasDurationsInQuotes) {
  EXPECT_EQ(read("run.toml", "max_time_s = \"1:30:00\"\n").max_time_s, 5400);
  EXPECT_EQ(read("run.toml", "max_time_s = \"90\"\n").max_time_s, 90);
  EXPECT_EQ(read("run.json", R"({"checkpoint": {"every_s": "30min"}})").checkpoint.every_s, 1800);
  EXPECT_THAT(
      problems("run.toml", "max_time_s = \"soon\"\n"),
      ElementsAre(HasSubstr("run.toml:1: max_time_s = \"soon\": expected a number of 0 or more, or a time such")));
  EXPECT_THAT(problems("run.toml", "max_time_s = 01:30:00\n"),
              ElementsAre(HasSubstr("1d or 1:30:00 | write a time in quotes")));
  EXPECT_THAT(problems("run.toml", "seed = \"2h\"\n"), ElementsAre(HasSubstr("expected a whole number")));
}

TEST_F(ConfigFile, HasPartsOfStepsInQuotes) {
  EXPECT_EQ(read("run.toml", "[data]\nsteps_per_epoch = \"10%\"\n").data.steps_per_epoch, StepCount::percent(10));
  EXPECT_EQ(read("run.toml", "[data]\nsteps_per_epoch = 50\n").data.steps_per_epoch, StepCount(50));
  EXPECT_EQ(read("run.json", R"({"validate": {"max_batches": "12.5%"}})").validate.max_batches,
            StepCount::percent(12.5));
  const std::string expected = ": expected a whole number of 0 or more, or a part such as 10% | ";
  EXPECT_THAT(problems("run.toml", "validate.max_batches = 0.1\n"),
              ElementsAre("run.toml:1: validate.max_batches = 0.1" + expected + "did you mean \"10%\"?"));
  EXPECT_THAT(problems("run.toml", "validate.max_batches = \"50\"\n"),
              ElementsAre("run.toml:1: validate.max_batches = \"50\"" + expected + "write it without quotes"));
  EXPECT_THAT(problems("run.toml", "validate.max_batches = \"0.1\"\n"),
              ElementsAre("run.toml:1: validate.max_batches = \"0.1\"" + expected + "did you mean 10%?"));
  EXPECT_THAT(problems("run.json", R"({"validate": {"max_batches": true}})"),
              ElementsAre(HasSubstr("run.json: validate.max_batches = true" + expected + "validate.max_batches: ")));
  EXPECT_THAT(problems("run.toml", "validate.max_batches = \"150%\"\n"),
              ElementsAre(HasSubstr("max_batches = \"150%\": expected a part above 0%, 100% at most")));
}

TEST_F(ConfigFile, GivesHintsInTheFormOfTheFile) {
  EXPECT_THAT(problems("run.toml", "num_workers = 3\n"),
              ElementsAre("run.toml:1: num_workers: unknown setting | use [data] workers = N"));
  EXPECT_THAT(problems("run.json", R"({"num_workers": 3})"),
              ElementsAre(R"(run.json: num_workers: unknown setting | use "data": {"workers": N})"));
  EXPECT_THAT(problems("RUN.JSON", R"({"num_workers": 3})"),
              ElementsAre(R"(RUN.JSON: num_workers: unknown setting | use "data": {"workers": N})"));
  EXPECT_THAT(
      problems("run.toml", "compute_setup = \"cpu\"\ndevices = [0]\n"),
      ElementsAre(HasSubstr("| use compute_setup = \"gpu\", or a number such as devices = 2 for two CPU ranks")));
}

// SLEAP-NN's training_config.yaml as `yq .` prints it: every field has its equivalent.
TEST_F(ConfigFile, NamesTheEquivalentOfEachFieldOfSleapNn) {
  const std::string text = R"({
    "data_config": {"validation_fraction": 0.1, "use_same_data_for_val": false, "data_pipeline_fw": "torch_dataset",
      "cache_img_path": null, "use_existing_imgs": false, "delete_cache_imgs_after_training": true,
      "parallel_caching": true, "cache_workers": 0, "provider": "LabelsReader", "user_instances_only": true,
      "use_augmentations_train": true, "skeletons": null},
    "description": "", "sleap_nn_version": "0.1.0",
    "trainer_config": {"train_data_loader": {"batch_size": 4, "shuffle": true, "num_workers": 0},
      "val_data_loader": {"batch_size": 4}, "model_ckpt": {"save_top_k": 1, "save_last": null},
      "trainer_devices": null, "trainer_num_devices": null, "trainer_device_indices": null, "trainer_accelerator": "auto", "profiler": null,
      "trainer_strategy": "auto", "enable_progress_bar": true, "min_train_steps_per_epoch": 200,
      "train_steps_per_epoch": null, "visualize_preds_during_training": false, "keep_viz": false,
      "viz_img_format": "png", "max_epochs": 100, "seed": 42, "use_wandb": false, "save_ckpt": false, "ckpt_dir": ".",
      "run_name": null, "resume_ckpt_path": null, "wandb": {"entity": null}, "optimizer_name": "Adam",
      "optimizer": {"lr": 0.0001, "amsgrad": false}, "lr_scheduler": {"reduce_lr_on_plateau": {"patience": 5}},
      "early_stopping": {"patience": 10}, "online_hard_keypoint_mining": {"hard_to_easy_ratio": 2.0},
      "zmq": {"controller_port": null}, "eval": {"enabled": false}}})";
  const std::vector<std::string> found = problems("sleap.json", text);
  EXPECT_THAT(found, SizeIs(44));
  EXPECT_THAT(found, Each(Not(HasSubstr("--help-all"))));
  EXPECT_THAT(found, Contains(HasSubstr("trainer_config.trainer_devices: unknown setting | use \"devices\": N")));
  EXPECT_THAT(found, Contains(HasSubstr("trainer_config.max_epochs: unknown setting | did you mean max_epochs?")));
  EXPECT_THAT(problems("other.json", R"({"trainer_config": {"zebra": 1}})"), ElementsAre(HasSubstr("--help-all")))
      << "the control";
}

// All names of OneTrainer's TrainConfig, whose values do not matter here.
TEST_F(ConfigFile, NamesTheEquivalentOfEachFieldOfOneTrainer) {
  constexpr std::string_view kSettings =
      "training_method model_type debug_mode debug_dir workspace_dir cache_dir tensorboard_expose "
      "tensorboard_always_on tensorboard_port validation validate_after validate_after_unit continue_last_backup "
      "prevent_overwrites include_train_config multi_gpu device_indexes gradient_reduce_precision "
      "fused_gradient_reduce async_gradient_reduce async_gradient_reduce_buffer base_model_name output_dtype "
      "output_model_format output_model_destination async_offloading force_circular_padding compile "
      "concept_file_name concepts aspect_ratio_bucketing image_caching text_caching latent_caching clear_cache "
      "clear_cache_before_training learning_rate_scheduler custom_learning_rate_scheduler scheduler_params "
      "learning_rate learning_rate_warmup_steps learning_rate_cycles learning_rate_min_factor epochs "
      "gradient_accumulation_steps ema ema_decay ema_update_step_interval caching_threads dataloader_threads "
      "prefetch_next_batch train_device temp_device train_dtype fallback_train_dtype enable_autocast_cache only_cache "
      "resolution frames attention_mechanism mse_strength mae_strength log_cosh_strength huber_strength huber_delta "
      "vb_loss_strength loss_weight_fn loss_weight_strength dropout_probability loss_scaler learning_rate_scaler "
      "clip_grad_norm offset_noise_weight generalized_offset_noise perturbation_noise_weight "
      "rescale_noise_scheduler_to_zero_terminal_snr force_v_prediction force_epsilon_prediction min_noising_strength "
      "max_noising_strength timestep_distribution noising_weight noising_bias timestep_shift "
      "dynamic_timestep_shifting cep_gamma text_encoder_layer_skip text_encoder_sequence_length "
      "text_encoder_2_layer_skip text_encoder_2_sequence_length text_encoder_3_layer_skip text_encoder_4_layer_skip "
      "masked_training unmasked_probability unmasked_weight normalize_masked_area_loss "
      "masked_prior_preservation_weight custom_conditioning_image layer_filter layer_filter_preset "
      "layer_filter_regex embedding_learning_rate preserve_embedding_norm additional_embeddings "
      "embedding_weight_dtype peft_type lora_model_name lora_rank lora_alpha lora_decompose "
      "lora_decompose_norm_epsilon lora_decompose_output_axis lora_weight_dtype bundle_additional_embeddings "
      "oft_block_size oft_block_share dora_oft oft_scaled oft_clipped_norm oft_cans lokr_dim lokr_decompose_both "
      "lokr_decompose_factor lokr_use_tucker lokr_weight_decompose lokr_dora_on_output lokr_full_matrix "
      "lokr_vec_trick sample_definition_file_name samples sample_after sample_after_unit sample_skip_first "
      "sample_image_format sample_video_format sample_audio_format samples_to_tensorboard non_ema_sampling "
      "backup_after backup_after_unit rolling_backup rolling_backup_count backup_before_save save_every "
      "save_every_unit save_skip_first save_filename_prefix gradient_checkpointing";
  constexpr std::string_view kParts =
      "unet prior transformer unconditional_transformer text_encoder text_encoder_2 text_encoder_3 text_encoder_4 vae "
      "effnet_encoder decoder decoder_text_encoder decoder_vqgan embedding quantization optimizer optimizer_defaults "
      "cloud secrets";
  std::string text = "{\"batch_size\": 1";
  std::size_t refused = 0;
  for (const std::string& name : split(kSettings, ' ')) {
    text += fmt::format(", \"{}\": null", name);
    ++refused;
  }
  for (const std::string& name : split(kParts, ' ')) {
    text += fmt::format(R"(, "{}": {{"model_name": "", "train": true, "mode": "full"}})", name);
    refused += 3;
  }
  const std::vector<std::string> found = problems("onetrainer.json", text + "}");
  EXPECT_THAT(found, SizeIs(refused));
  EXPECT_THAT(found, Each(Not(HasSubstr("--help-all"))));
  EXPECT_THAT(found, Each(Not(HasSubstr("did you mean")))) << "each name has its own answer";
  EXPECT_THAT(found, Contains(HasSubstr("vae.train: unknown setting | the program builds its model")));
  EXPECT_THAT(found, Contains(HasSubstr("optimizer.mode: unknown setting | the program creates its optimizer")));
  EXPECT_THAT(found, Contains(HasSubstr("output_dtype: unknown setting | remove it: a checkpoint has the dtype")));
  EXPECT_THAT(problems("other.json", R"({"zebra": {"train": true}})"), ElementsAre(HasSubstr("--help-all")))
      << "the control";
}

TEST_F(ConfigFile, ReportsUnusableFiles) {
  EXPECT_THAT(problems("run.toml", "seed = 1\nseed = \n"), ElementsAre(HasSubstr("run.toml:2: ")));
  EXPECT_THAT(problems("run.json", "{\"seed\": 1, \"seed\": 2}"), ElementsAre(HasSubstr("key \"seed\" appears twice")));
  EXPECT_THAT(problems("run.toml", "max_steps = 9223372036854775808\n"),
              ElementsAre(HasSubstr(" | write a number that fits into 64 bits")));
  EXPECT_THAT(problems("run.toml", "max_steps = -\n"), ElementsAre(Not(HasSubstr("64 bits"))));
  EXPECT_THAT(problems("run.toml", "seed = 007\n"), ElementsAre(HasSubstr(" | write 7, with digits on both sides")));
  EXPECT_THAT(problems("run.json", R"({"seed": -1, "concepts": )" + std::string(20, '[') + std::string(20, ']') + "}"),
              ElementsAre(HasSubstr("seed = -1"), HasSubstr("concepts: unknown setting")))
      << "other problems of a deep file are found too";
  EXPECT_THAT(problems("run.json", "[]"), ElementsAre(HasSubstr("run.json: expected an object")));
  EXPECT_THAT(problems("run.yaml", "seed: 1"),
              ElementsAre(AllOf(HasSubstr("run.yaml: expected a file that ends in .toml or .json"),
                                HasSubstr("make JSON of it with yq"))));
  EXPECT_THAT(problems_in((directory_.path() / "none.toml").string()),
              ElementsAre("cannot open none.toml: No such file or directory | "));
  EXPECT_THAT(problems_in((directory_.path() / "none").string()),
              ElementsAre("cannot open none: No such file or directory | "));
  EXPECT_THAT(problems_in(std::string(300, 'a')), ElementsAre(HasSubstr("File name too long")));
}

TEST_F(ConfigFile, MayBeASymbolicLink) {
  const std::string target = write("target.toml", "seed = 7\n");
  const auto link = directory_.path() / "link.toml";
  std::filesystem::create_symlink(target, link);
  EXPECT_EQ(parse_invocation({}, std::vector<std::string>{"--config", link.string()}, {}).config.seed, 7U);
}

TEST_F(ConfigFile, HintsAtRemovedSettings) {
  const auto error = error_of<ConfigError>([&] { read("run.toml", "nprocs = 2\nstrategy = \"ddp\"\n"); });
  EXPECT_THAT(error.what(), HasSubstr("run.toml:2: strategy: unknown setting"));
  EXPECT_THAT(error.hint(), HasSubstr("remove it: gradients are always averaged over all ranks"));
}

/// A program with flags of its own.
struct OwnFlags {
  std::string data = "digits";
  std::int64_t hidden = 64;
  double dropout = 0.5;
  bool quiet = false;
  std::int64_t rounds = 1;
  Flags flags{};
  OwnFlags() {
    flags.add("data.set", &data, "d").add("hidden", &hidden, "width").add("dropout", &dropout, "p");
    flags.add("quiet", &quiet, "q").positional("rounds", &rounds, "r");
  }
};

TEST_F(ConfigFile, ReadsTheProgramsOwnValues) {
  for (
      const auto& [name, text] : std::vector<std::pair<std::string, std::string>>{
          {"run.toml",
           "seed = 3\n[program]\n\"data.set\" = \"a # b\"\nhidden = 8\ndropout = 1\nquiet = true\nrounds = 7\n"},
          {"run.json",
           R"({"program": {"data.set": "a # b", "hidden": 8, "dropout": 1, "quiet": true, "rounds": 7}, "seed": 3})"}}) {
    OwnFlags own;
    const std::string file = write(name, text);
    const Invocation invocation = parse_invocation(
        {}, std::vector<std::string>{"--config", file, "--no-quiet"},
        Variables(std::map<std::string, std::string, std::less<>>{{"LOCKSTEP_CFG_PROGRAM_DROPOUT", "0.25"}}),
        own.flags);
    EXPECT_EQ(own.data, "a # b");
    EXPECT_EQ(own.hidden, 8);
    EXPECT_EQ(own.dropout, 0.25) << "the environment wins over the file";
    EXPECT_FALSE(own.quiet) << "the flag wins over the file";
    EXPECT_EQ(own.rounds, 7);
    EXPECT_EQ(invocation.config.seed, 3U);
    EXPECT_EQ(invocation.origins.at("hidden"), "file " + file);
    EXPECT_EQ(invocation.origins.at("dropout"), "environment LOCKSTEP_CFG_PROGRAM_DROPOUT");
    EXPECT_EQ(invocation.origins.at("quiet"), "flag");
  }
}

TEST_F(ConfigFile, RoundTripsTheProgramsOwnValues) {
  OwnFlags written;
  written.data = "\"7\"\n";
  written.dropout = 1e-300;
  written.quiet = true;
  const std::string file = write("run.toml", config_toml({}) + program_toml(program_values(written.flags)));
  OwnFlags read;
  parse_invocation({}, std::vector<std::string>{"--config", file}, {}, read.flags);
  EXPECT_EQ(read.data, written.data);
  EXPECT_EQ(read.dropout, written.dropout);
  EXPECT_TRUE(read.quiet);
  EXPECT_EQ(program_toml({}), "");
  const std::vector<ProgramValue> limits{{.name = "most", .text = "inf"}, {.name = "least", .text = "-inf"}};
  EXPECT_EQ(program_toml(limits), "\n[program]\n") << "a default that no source may give";
}

TEST_F(ConfigFile, RefusesNumbersThatAFlagRefuses) {
  for (const char* number : {"inf", "-inf", "nan"}) {
    EXPECT_THAT(problems("run.toml", fmt::format("[optim]\nlr = {}\n", number)), ElementsAre(HasSubstr("optim.lr = ")));
  }
}

TEST_F(ConfigFile, NamesTheFaultsOfTheProgramsOwnValues) {
  OwnFlags own;
  const std::string file = write("run.toml", "hidden = 3\n[program]\nhiden = 3\ndropout = \"x\"\n");
  const Variables environment(std::map<std::string, std::string, std::less<>>{{"LOCKSTEP_CFG_PROGRAM_HIDDEN", "wide"}});
  const auto parse = [&] { parse_invocation({}, std::vector<std::string>{"--config", file}, environment, own.flags); };
  EXPECT_THAT(problems_of(parse),
              ElementsAre(AllOf(HasSubstr("run.toml:1: hidden: unknown setting | this is the program's own flag"),
                                HasSubstr("write it in the section [program]")),
                          AllOf(HasSubstr("run.toml:3: program.hiden: this program has no such flag | "),
                                HasSubstr("did you mean program.hidden?")),
                          HasSubstr("run.toml:4: program.dropout = \"x\": expected a number"),
                          HasSubstr("LOCKSTEP_CFG_PROGRAM_HIDDEN=wide: expected a whole number")));
  EXPECT_EQ(own.hidden, 64);
}

// The tool does not know the program.
TEST_F(ConfigFile, LeavesTheProgramsOwnValuesToTheProgram) {
  const std::vector<std::string> args{"--config", write("run.toml", "seed = 3\n[program]\nanything = []\n")};
  const Variables variables(std::map<std::string, std::string, std::less<>>{{"LOCKSTEP_CFG_PROGRAM_ANYTHING", "wide"}});
  EXPECT_EQ(parse_invocation({}, args, variables, FlagsAccess::for_tool()).config.seed, 3U);
  const std::vector<std::string> of_program{"--checkpoint.mode", "max"};  // the program may set the monitor
  EXPECT_EQ(parse_invocation({}, of_program, {}, FlagsAccess::for_tool()).config.checkpoint.mode, MonitorMode::max);
  EXPECT_THROW(parse_invocation({}, args, variables), ConfigError);
}

TEST_F(ConfigFile, RoundTripsEveryValue) {
  const TrainConfig config{
      .compute_setup = ComputeSetup::gpu,
      .devices = "cuda:0,2-3",
      .nprocs = 3,
      .backend = Backend::nccl,
      .precision = Precision::bf16,
      .matmul_precision = MatmulPrecision::medium,
      .deterministic = Determinism::warn,
      .detect_anomaly = true,
      .seed = UINT64_MAX,
      .max_epochs = 0,
      .max_steps = 123'456'789'012,
      .min_epochs = 1,
      .min_steps = 2,
      .fast_dev_run = 3,
      .batch_size = 7,
      .accumulation = 2,
      .global_batch_size = 42,
      .run_dir = "/tmp/a \"b\" \\ c",
      .run_name = "größe \x7f?",
      .allow_fallback = true,
      .init_weights = "other.pt",
      .resume = "never",
      .max_time_s = 1.5,
      .data = {.workers = 3,
               .prefetch = 4,
               .pin_memory = false,
               .steps_per_epoch = StepCount::percent(10),
               .min_steps_per_epoch = 5,
               .max_bad_samples = 11,
               .check_finite = true},
      .sampler = {.order = SampleOrder::pytorch, .shuffle = false, .drop_last = true},
      .optim = {.lr = 0.1,
                .lr_scaling = LrScaling::sqrt,
                .loss_scaling = LrScaling::linear,
                .lr_batch_size = 256,
                .max_grad_norm = 1e-7,
                .schedule = "warmup:5+cosine:until=9",
                .non_finite = NonFinitePolicy::warn,
                .stochastic_rounding = true},
      .spike = {.z_score = 6.5, .window = 50, .inputs = true, .policy = SpikePolicy::rollback, .lr_factor = 0.25},
      .plateau = {.metric = "val_loss",
                  .mode = MonitorMode::max,
                  .factor = 0.5,
                  .patience = 2,
                  .threshold = 0.01,
                  .cooldown = 1,
                  .min_lr = 1e-6},
      .early_stop = {.metric = "loss",
                     .mode = MonitorMode::max,
                     .patience = 4,
                     .min_delta = 0.5,
                     .check_finite = false,
                     .stopping_threshold = 0,
                     .divergence_threshold = -1.5},
      .validate = {.every_epochs = 0.25,
                   .every_steps = 3,
                   .every_s = 2.5,
                   .max_batches = StepCount::percent(12.5),
                   .at_start = true,
                   .sanity_steps = 5},
      .test = {.max_batches = 6},
      .predict = {.max_batches = StepCount::percent(50)},
      .checkpoint = {.enabled = false,
                     .every_epochs = 5,
                     .every_steps = 6,
                     .every_s = 7.5,
                     .async = true,
                     .keep_last = 8,
                     .keep_all = true,
                     .monitor = "val_accuracy",
                     .mode = MonitorMode::max,
                     .keep_best = 9,
                     .name = "{epoch}-{val_accuracy:.2f}",
                     .on_error = SaveErrorPolicy::stop,
                     .per_node = true,
                     .allow_partial = true},
      .dist = {.timeout_s = 0.5,
               .init_timeout_s = 1e6,
               .heartbeat_timeout_s = 60,
               .grace_s = 0,
               .max_restarts = 3,
               .stall_warn_s = 0,
               .stall_timeout_s = 1.5,
               .bucket_mib = 12.5,
               .find_unused_parameters = true,
               .broadcast_buffers = false,
               .compression = GradCompression::bf16,
               .require_sync_batch_norm = true,
               .check_replicas = true,
               .shard_optimizer = true},
      .memory = {.keep_freed = false, .halve_batch = true, .channels_last = true},
      .report = {.every_steps = 8,
                 .every_s = 9.5,
                 .epoch_means = true,
                 .progress = false,
                 .jsonl = false,
                 .csv = false,
                 .tensorboard = true,
                 .prometheus = true,
                 .command = "cat > rows",
                 .step_times = true,
                 .record = 10,
                 .log_dir = "logs",
                 .log_level = LogLevel::warning},
  };
  TrainConfig expected = config;
  expected.run_name = "größe";
  const auto defaults = config_values(TrainConfig{});
  const auto values = config_values(expected);
  ASSERT_EQ(values.size(), defaults.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    // All but the first contradict others.
    const std::set<std::string> with_default{
        "fresh",     "dist.static_graph",       "benchmark",   "cuda_graphs", "optim.max_grad_value",
        "barebones", "checkpoint.weights_only", "dist.requeue"};
    if (!with_default.contains(values[i].first)) {
      EXPECT_NE(values[i], defaults[i]) << "the round trip would not notice " << values[i].first;
    }
  }
  EXPECT_EQ(config_values(read("run.toml", config_toml(expected))), values);
  EXPECT_EQ(config_values(read("defaults.toml", config_toml(TrainConfig{}))), defaults);
  const auto odd = parse_config_toml(config_toml(config), "odd");
  const auto run_name = std::ranges::find(odd, "run_name", &FileSetting::name);
  EXPECT_EQ(std::get<std::string>(run_name->value), config.run_name);
}

// Its name may be that of another curve, or of none.
TEST_F(ConfigFile, LeavesOutAScheduleThatIsAFunction) {
  TrainConfig config;
  config.optim.schedule = LrSchedule("cosine", [](const ScheduleStep&) { return 0.5; });
  const std::string text = config_toml(config);
  EXPECT_THAT(text, HasSubstr("# schedule = \"cosine\": a function of the program\n"));
  const std::vector<std::string> args{"--config", write("run.toml", text)};
  EXPECT_TRUE(parse_invocation(config, args, {}).config.optim.schedule.is_function());
}

TEST(ParseConfigToml, RefusesWhatItsParserDoesNotExpect) {
  const std::pair<std::string, const char*> cases[] = {
      {"seed = 1\n\u00e9 = 1\n", "a.toml:2: found a character that is not ASCII"},
      {"run_name = \u00e9\n", "a.toml:1: found a character that is not ASCII"},
      {"[\u00e9]\n", "a.toml:1: expected the name of a section"},
      {"[.]\n", "a.toml:1: expected the name of a section"},
      {"a = [\n[1],\n]\n [[ #]]\n", "a.toml:4: expected the name of a section"},
      {"a = \"\n\u00e9\"\n", "a.toml:2: found a character that is not ASCII"},
      {"a = \"\"\"b\"\"\"\" \u00e9\n", "a.toml:1: found a character that is not ASCII"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_THAT(message_of<ConfigError>([&] { parse_config_toml(text, "a.toml"); }), testing::StartsWith(expected));
  }
  // The control: valid files with the same characters.
  for (const std::string text :
       {"\xEF\xBB\xBF# \u00e9 [.] '\na = \"\u00e9 \\\" \u00e9\" # \u00e9\n", "a = '\u00e9\\' # \u00e9\n",
        "a = \"\"\"\n[.] \" \u00e9\n\"\"\"\n", "a = '''\n[.] ' \u00e9\n'''\n", "a = [\n  [+1],\n  [ # \u00e9\n  2]]\n",
        "[ \"\u00e9\" ]\n'\u00e9' = 1\n", "a = { b = [+1] }\n[c]\n"}) {
    EXPECT_NO_THROW(parse_config_toml(text, "a.toml")) << text;
  }
}

TEST(ParseConfigToml, SaysWhatToWriteForFrequentMistakes) {
  const std::vector<std::pair<std::string, std::string>> lines{
      {"margin = 10%", R"(write "10%" in quotes)"},
      {"margin = 10%  # of the memory", R"(write "10%" in quotes)"},
      {"max_time_s = 30min", R"(write "30min" in quotes)"},
      {"max_time_s = 1:30:00", R"(write "1:30:00" in quotes)"},
      {"run_dir = runs/a", R"(write "runs/a" in quotes)"},
      {"run_dir = /data/a", R"(write "/data/a" in quotes)"},
      {"precision = bf16", R"(write "bf16" in quotes)"},
      {"fresh = True", "write true in small letters"},
      {"fresh = FALSE", "write false in small letters"},
      {"fresh = yes", "write true"},
      {"seed = None", "leave out the line: then the default counts"},
      {"seed =", "leave out the line: then the default counts"},
      {"lr = .5", "write 0.5, with digits on both sides of the point and no zero in front of others"},
      {"seed = 007", "write 7, with digits on both sides of the point and no zero in front of others"},
      {"run_dir = \"C:\\data\"", R"(in a text in " quotes a \ is written \\; in a text in ' quotes it is a \)"},
      {"seed: 3", "a setting is NAME = VALUE, with = instead of :"},
      {"seed = 1", "correct the file; it must be TOML"},  // the second time
      {"run_dir = \"a", "correct the file; it must be TOML"},
  };
  for (const auto& [line, hint] : lines) {
    const auto error =
        error_of<ConfigError>([&] { parse_config_toml("seed = 1\n" + line + "\nnprocs = 2\n", "a.toml"); });
    EXPECT_THAT(error.what(), testing::StartsWith("a.toml:")) << line;
    EXPECT_EQ(error.hint(), hint) << line << ": " << error.what();
  }
}

}  // namespace
}  // namespace lockstep
