#include <algorithm>
#include <sstream>

#include <gmock/gmock.h>

#include <lockstep/plan/plan.h>

#include "environment/build_info.h"
#include "support/fake_hardware.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(Describe, IsTheStartUpTable) {
  const TrainConfig config{.precision = Precision::bf16_mixed,
                           .max_epochs = 5,
                           .max_steps = 1000,
                           .batch_size = 16,
                           .global_batch_size = 64,
                           .run_name = "digits",
                           .optim = {.lr = 0.001, .max_grad_norm = 1, .schedule = "warmup:100+cosine"}};
  EXPECT_EQ(describe(resolve(config, machine_with(2), std::nullopt)),
            "launch       this program starts 2 ranks\n"
            "host         test\n"
            "devices      2 x Test GPU (80.0 GiB), cuda:0-1\n"
            "backend      nccl\n"
            "precision    bf16_mixed\n"
            "seed         42\n"
            "batch        64 = 16 per rank x 2 micro-batches x 2 ranks\n"
            "limits       5 epochs or 1000 steps, whichever ends first\n"
            "optimizer    learning rate 0.001, gradient norm at most 1\n"
            "schedule     warmup:100+cosine\n"
            "data         keyed order, shuffled, 2 workers per rank, 2 steps ahead\n"
            "validation   every epoch, if fit() gets validation data\n"
            "checkpoints  every epoch and at the end, last 2 kept\n"
            "resume       auto\n"
            "run          runs/digits\n"
            "threads      8 per rank\n"
            "build        " +
                build_text() + "\n");
  EXPECT_THAT(build_text(), StartsWith("lockstep "));
}

TEST(Describe, NamesTheSettingsOfNumbers) {
  const TrainConfig config{.compute_setup = ComputeSetup::cpu,
                           .precision = Precision::fp16_mixed,
                           .matmul_precision = MatmulPrecision::high,
                           .deterministic = Determinism::warn,
                           .optim = {.lr_scaling = LrScaling::sqrt, .lr_batch_size = 256, .max_grad_value = 0.5}};
  const std::string text = describe(resolve(config, no_gpu(), std::nullopt));
  EXPECT_THAT(text, HasSubstr("precision    fp16_mixed, matrix products high, deterministic warn\n"));
  EXPECT_THAT(text, HasSubstr("optimizer    learning rate of the program, scaled by sqrt(global batch / 256), gradient "
                              "elements at most 0.5\n"));
  EXPECT_THAT(text, HasSubstr("warning: --precision fp16_mixed on the CPU is slow; use --precision bf16_mixed\n"));
}

TEST(Describe, NamesPartsOfTheData) {
  TrainConfig config{.data = {.steps_per_epoch = StepCount::percent(10)}, .validate = {.max_batches = 50}};
  std::string text = describe(resolve(config, no_gpu(), std::nullopt));
  EXPECT_THAT(text, HasSubstr("data         keyed order, shuffled, 10% of all steps per epoch, 2 workers per rank"));
  EXPECT_THAT(text, HasSubstr("validation   every epoch, 50 steps, if fit() gets validation data\n"));
  EXPECT_THAT(text, testing::Not(HasSubstr("\ntest ")));
  config = {.data = {.steps_per_epoch = 50},
            .validate = {.max_batches = StepCount::percent(12.5)},
            .test = {.max_batches = 7},
            .predict = {.max_batches = StepCount::percent(10)}};
  text = describe(resolve(config, no_gpu(), std::nullopt));
  EXPECT_THAT(text, HasSubstr("data         keyed order, shuffled, 50 steps per epoch, 2 workers per rank"));
  EXPECT_THAT(text, HasSubstr("validation   every epoch, 12.5% of all steps, if fit() gets validation data\n"
                              "test         the first 7 steps\n"
                              "prediction   the first 10% of all steps\n"));
}

TEST(Describe, NamesTheMetricsThatDecide) {
  const TrainConfig config{.early_stop = {.metric = "val_loss", .patience = 5},
                           .checkpoint = {.monitor = "val_accuracy", .mode = MonitorMode::max, .keep_best = 3}};
  const std::string text = describe(resolve(config, no_gpu(), std::nullopt));
  EXPECT_THAT(text, HasSubstr("early stop   after 5 measurements of val_loss (min) without an improvement\n"));
  EXPECT_THAT(text, HasSubstr("at the end, last 2 and the best 3 by val_accuracy (max) kept\n"
                              "resume       auto\n"));
}

TEST(Describe, SaysWarningsAndNotesLast) {
  const TrainConfig config{.compute_setup = ComputeSetup::cpu, .backend = Backend::gloo};
  const std::string text = describe(resolve(config, machine_with(2), std::nullopt));
  EXPECT_THAT(text, HasSubstr("launch       alone\n"));
  EXPECT_THAT(text, HasSubstr("devices      CPU\n"));
  EXPECT_THAT(text, HasSubstr("backend      none (one rank)\n"));
  EXPECT_THAT(text, HasSubstr("optimizer    learning rate of the program\n"));
  EXPECT_THAT(text, HasSubstr("schedule     schedule of the program\n"));
  const auto warning = text.find("\nwarning: 2 GPUs here, not used");
  const auto note = text.find("\nnote: one rank: --backend gloo is not used\n");
  ASSERT_NE(warning, std::string::npos);
  ASSERT_NE(note, std::string::npos);
  EXPECT_LT(warning, note);
  EXPECT_LT(text.find("threads"), warning);
}

TEST(Describe, SaysWhereTheNumberOfThreadsComesFrom) {
  Hardware machine = no_gpu();
  EXPECT_THAT(describe(resolve({.nprocs = 2}, machine, std::nullopt)), HasSubstr("threads      8 per rank\n"));
  machine.omp_threads = 3;
  EXPECT_THAT(describe(resolve({.nprocs = 2}, machine, std::nullopt)),
              HasSubstr("threads      3 per rank (OMP_NUM_THREADS)\n"));
}

TEST(Describe, NamesDifferentGpusApart) {
  Hardware machine = machine_with(4);
  machine.gpus[1].name = "Other GPU";
  machine.gpus[3].memory_bytes = 0;
  EXPECT_THAT(describe(resolve({}, machine, std::nullopt)),
              HasSubstr("Test GPU (80.0 GiB), cuda:0; Other GPU (80.0 GiB), cuda:1; Test GPU (80.0 GiB), cuda:2; "
                        "Test GPU, cuda:3\n"));
}

TEST(Describe, SaysHowManyNodesThereAre) {
  const std::string text = describe(resolve({}, no_gpu(), launched(0, 4, 2)));
  EXPECT_THAT(text, HasSubstr("devices      2 CPU ranks on this node, 2 nodes\n"));
  EXPECT_THAT(text, HasSubstr("backend      gloo\n"));
}

TEST(Describe, FitsOneScreen) {
  const std::string text = describe(resolve({}, eight_gpus(), std::nullopt));
  EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 18);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100U) << line;
  }
}

TEST(Describe, NamesTheLimitOfTimeAndTheShortestEpoch) {
  const TrainConfig config{.max_epochs = 2, .max_time_s = 3600, .data = {.min_steps_per_epoch = 200}};
  const std::string text = describe(resolve(config, no_gpu(), std::nullopt));
  EXPECT_THAT(text, HasSubstr("limits       2 epochs or 1:00:00 of training, whichever ends first\n"));
  EXPECT_THAT(text, HasSubstr("shuffled, at least 200 steps per epoch, "));
}

TEST(Describe, SpellsTheOffSwitches) {
  const TrainConfig config{.max_epochs = 0,
                           .max_steps = 1,
                           .fresh = true,
                           .data = {.workers = 0},
                           .sampler = {.shuffle = false},
                           .validate = {.every_epochs = 0},
                           .checkpoint = {.enabled = false}};
  const std::string text = describe(resolve(config, no_gpu(), std::nullopt));
  EXPECT_THAT(text, HasSubstr("limits       1 step\n"));
  EXPECT_THAT(text, HasSubstr("data         keyed order, built in the training thread\n"));
  EXPECT_THAT(text, HasSubstr("validation   never\n"));
  EXPECT_THAT(text, HasSubstr("checkpoints  off\n"));
}

}  // namespace
}  // namespace lockstep
