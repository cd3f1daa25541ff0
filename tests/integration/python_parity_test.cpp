// The same numbers as Python PyTorch, checked against the real one.
#include <cmath>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/checkpoint/module_state.h>
#include <lockstep/tensor/tensor_file.h>

#include "support/larger_or_nan.h"
#include "support/python.h"
#include "support/requirements.h"
#include "support/runs.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

class PythonDdp : public testing::TestWithParam<std::string> {};

TEST_P(PythonDdp, HasTheSameLosses) {
  const std::string torchrun = find_torchrun(LIBTORCH_DIR);
  LOCKSTEP_REQUIRE(Requirements().that(!torchrun.empty(), "no torchrun beside the LibTorch at " LIBTORCH_DIR));
  constexpr int kSteps = 50;
  const auto python = run_program({torchrun, "--standalone", "--nproc-per-node", "2",
                                   std::string(PARITY_DIR) + "/ddp_losses.py", GetParam(), std::to_string(kSteps)},
                                  {{"OMP_NUM_THREADS", "1"}});
  ASSERT_EQ(python.code, 0) << python.err;
  const TempDir dir;
  const auto ours =
      run_program(command(TRAIN_PROGRAM, dir.path() / "run",
                          {"--nprocs", "2", "--dropout", "0", "--noise", "false", "--optimizer", GetParam(),
                           "--sampler.order", "pytorch", "--max_epochs", "0", "--max_steps", std::to_string(kSteps)}));
  ASSERT_EQ(ours.code, 0) << ours.err;
  const auto losses = metric(dir.path() / "run", "loss");
  ASSERT_EQ(losses.size(), static_cast<std::size_t>(kSteps));
  std::istringstream lines(python.out);
  double worst = 0;
  for (int step = 1; step <= kSteps; ++step) {
    double expected = 0;
    ASSERT_TRUE(lines >> expected) << python.out;
    worst = larger_or_nan(worst, std::abs(losses.at(step) - expected) / std::abs(expected));
  }
  EXPECT_LE(worst, 1e-5);
}
INSTANTIATE_TEST_SUITE_P(Optimizers, PythonDdp, testing::Values("sgd", "adamw"),
                         [](const auto& test) { return test.param; });

TEST(PythonTensorboard, ReadsTheEventFilesOfAResumedRun) {
  const std::string python = python_with("tensorboard", PARITY_DIR);
  LOCKSTEP_REQUIRE(Requirements().that(python.starts_with('/'), python));
  const TempDir dir;
  for (const char* steps : {"20", "50"}) {  // the first attempt reports a step that the second one reports again
    const auto trained = run_program(
        command(TRAIN_PROGRAM, dir.path() / "run",
                {"--max_epochs", "0", "--max_steps", steps, "--report.every_steps", "3", "--report.tensorboard"}));
    ASSERT_EQ(trained.code, 0) << trained.err;
  }
  const auto read =
      run_program({python, std::string(PARITY_DIR) + "/tensorboard_parity.py", (dir.path() / "run").string()});
  EXPECT_EQ(read.code, 0) << read.out << read.err;
}

TEST(PythonSafetensors, OpensACheckpoint) {
  const std::string python = find_python(LIBTORCH_DIR);
  LOCKSTEP_REQUIRE(Requirements().that(has_modules(python, {"torch", "safetensors"}),
                                       "no Python with safetensors beside the LibTorch at " LIBTORCH_DIR));
  const TempDir dir;
  ASSERT_EQ(run_program(command(TRAIN_PROGRAM, dir.path() / "run", {"--max_epochs", "1"})).code, 0);
  const auto loaded = run_program(
      {python, std::string(PARITY_DIR) + "/load_checkpoint.py", newest_checkpoint(dir.path() / "run").string()});
  EXPECT_EQ(loaded.code, 0) << loaded.err;
  EXPECT_THAT(loaded.out, HasSubstr("4 tensors"));
}

struct TwoLayers : torch::nn::Module {
  TwoLayers() {
    register_module("a", torch::nn::Linear(10, 16));
    register_module("b", torch::nn::Linear(16, 1));
  }
};

TEST(PythonWeights, AreLoaded) {
  const std::string python = find_python(LIBTORCH_DIR);
  LOCKSTEP_REQUIRE(Requirements().that(has_modules(python, {"torch", "safetensors"}),
                                       "no Python with safetensors beside the LibTorch at " LIBTORCH_DIR));
  const TempDir dir;
  const auto file = dir.path() / "weights.safetensors";
  const auto saved = run_program({python, std::string(PARITY_DIR) + "/save_weights.py", file.string()});
  ASSERT_EQ(saved.code, 0) << saved.err;
  TwoLayers net;
  load_module(net, load_tensors(file));
  double sum = 0;
  for (const auto& parameter : net.parameters()) {
    sum += parameter.to(at::kDouble).sum().item<double>();
  }
  EXPECT_THAT(saved.out, HasSubstr(fmt::format("sum {:.6f}", sum)));
}

TEST(PythonConverter, GoesBothWays) {
  const std::string python = find_python(LIBTORCH_DIR);
  LOCKSTEP_REQUIRE(Requirements().that(has_modules(python, {"torch", "safetensors", "numpy"}),
                                       "no Python with safetensors and numpy beside the LibTorch at " LIBTORCH_DIR));
  const TempDir dir;
  const auto converted = run_program(
      {python, std::string(PARITY_DIR) + "/convert_checkpoint.py", CONVERTER, dir.path().string(), GOLDEN_CHECKPOINT},
      {}, ".", Process::Seconds(300));
  EXPECT_EQ(converted.code, 0) << converted.out << converted.err;
  const auto verified = run_program({LOCKSTEP_CLI, "verify", (dir.path() / "checkpoints").string()});
  EXPECT_EQ(verified.code, 0) << verified.out << verified.err;
  EXPECT_THAT(verified.out, HasSubstr("step-0000000500: valid"));
  EXPECT_THAT(verified.out, HasSubstr("no run resumes from step 500, which holds only weights"));
}

TEST(PythonConverter, SaysWhichPackagesItNeeds) {
  const std::string python = find_python(LIBTORCH_DIR);
  LOCKSTEP_REQUIRE(Requirements().that(!python.empty(), "no Python beside the LibTorch at " LIBTORCH_DIR));
  const auto result = run_program({python, "-S", "-I", CONVERTER, "a.pt", "b.safetensors"});  // without packages
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, HasSubstr("lockstep-convert: No module named"));
  EXPECT_THAT(result.err, HasSubstr("pip install torch numpy safetensors"));
  EXPECT_THAT(result.err, testing::Not(HasSubstr("Traceback")));
}

/// The script asks our program, and compares the answers with those of PyTorch.
void expect_no_difference(const std::string& script, const std::string& program,
                          const std::vector<std::string>& more = {}) {
  const std::string python = find_python(LIBTORCH_DIR);
  LOCKSTEP_REQUIRE(Requirements().that(!python.empty(), "no Python beside the LibTorch at " LIBTORCH_DIR));
  const auto result = run_program(with({python, std::string(PARITY_DIR) + "/" + script, program}, more), {}, ".",
                                  Process::Seconds(380));
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr(" 0 different"));
}

TEST(PythonSchedules, HaveTheSameFactors) { expect_no_difference("lr_schedule_parity.py", LR_SCHEDULE_DUMP); }

TEST(PythonTraining, GivesTheSameLossesAndWeights) {
  expect_no_difference("training_parity.py", TRAINING_DUMP, {PARITY_DOCUMENT});
}

TEST(PythonModels, TrainHereAsThere) { expect_no_difference("script_parity.py", SCRIPT_PROGRAM); }

TEST(PythonSampler, HasTheSameOrder) { expect_no_difference("sampler_parity.py", SAMPLER_DUMP); }

}  // namespace
}  // namespace lockstep
