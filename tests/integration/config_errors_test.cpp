// Invalid settings are rejected before any process starts, with every problem and its hint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/runs.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// Uses less than a second of CPU time, independent of the load, and waits for nothing.
constexpr double kWork = 1;
constexpr double kSoon = 10;

struct Refused {
  std::string name;
  std::vector<std::string> flags;
  std::vector<std::string> texts;
};
std::ostream& operator<<(std::ostream& out, const Refused& refused) { return out << refused.name; }

class WrongSettings : public testing::TestWithParam<Refused> {};

TEST_P(WrongSettings, AreRefusedAtOnce) {
  const TempDir dir;
  auto flags = GetParam().flags;
  flags.insert(flags.begin(), {TRAIN_PROGRAM, "--run_dir", (dir.path() / "run").string()});
  const auto result = run_program(flags, {{"CUDA_VISIBLE_DEVICES", "-1"}});
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_LT(result.seconds, kSoon);
  EXPECT_LT(result.cpu_seconds, kWork);
  for (const auto& text : GetParam().texts) {
    EXPECT_THAT(result.err, HasSubstr(text));
  }
  EXPECT_THAT(result.err, HasSubstr("hint"));
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "run")) << "something was started";
}

INSTANTIATE_TEST_SUITE_P(
    Flags, WrongSettings,
    testing::Values(Refused{"gpu_without_cuda", {"--compute_setup", "gpu"}, {"--compute_setup"}},
                    Refused{"nccl_on_cpu", {"--backend", "nccl", "--compute_setup", "cpu"}, {"--backend"}},
                    Refused{"duplicate_devices", {"--devices", "0,0"}, {"--devices"}},
                    Refused{"negative_ranks", {"--nprocs", "-1"}, {"--nprocs"}},
                    Refused{"misspelt_flag", {"--batch_szie", "3"}, {"--batch_szie", "--batch_size"}},
                    Refused{"nccl_for_two_ranks_without_gpu", {"--backend", "nccl", "--nprocs", "2"}, {"nccl"}},
                    Refused{"all_at_once",
                            {"--nprocs", "-1", "--batch_szie", "3", "--devices", "0,0"},
                            {"--nprocs", "--batch_szie", "--devices"}}),
    [](const auto& test) { return test.param.name; });

TEST(WrongFile, ReportsAllThreeMistakes) {
  const TempDir dir;
  std::ofstream(dir.path() / "run.toml") << "max_epochs = \"three\"\nbatch_szie = 4\n[checkpoint]\nkeep_last = 1\n";
  const auto result = run_program({TRAIN_PROGRAM, "--config", (dir.path() / "run.toml").string()});
  EXPECT_EQ(result.code, 2);
  EXPECT_LT(result.seconds, kSoon);
  EXPECT_LT(result.cpu_seconds, kWork);
  for (const auto* text : {"max_epochs", "batch_szie", "keep_last"}) {
    EXPECT_THAT(result.err, HasSubstr(text));
  }
}

TEST(RightSettings, ArePrintedWithoutStartingAnything) {
  const TempDir dir;
  for (const auto* flag : {"--help", "--help-all", "--print-config", "--dry-run"}) {
    const auto result = run_program(command(TRAIN_PROGRAM, dir.path() / "run", {flag, "--nprocs", "2"}));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_LT(result.seconds, kSoon);
    EXPECT_LT(result.cpu_seconds, kWork);
    EXPECT_FALSE(result.out.empty());
    EXPECT_FALSE(std::filesystem::exists(dir.path() / "run"));
  }
}

// Else a script goes on with a part of the settings, which is a valid file.
TEST(RightSettings, ThatCannotBePrintedAreAnError) {
  for (const auto* flag : {"--help", "--help-all", "--print-config", "--dry-run"}) {
    const auto result = run_program({"sh", "-c", "\"$0\" \"$1\" > /dev/full", TRAIN_PROGRAM, flag});
    EXPECT_EQ(result.code, 74) << flag;
    EXPECT_EQ(result.err, "error: cannot write to standard output: No space left on device\n");
  }
}

TEST(RightSettings, PlanForAnotherMachine) {
  const TempDir dir;
  std::ofstream machine(dir.path() / "big.json");
  machine << R"({"host": "big", "cores": 64, "memory": "512GiB", "cuda": true, "nccl": true, "gpus": [)";
  for (int gpu = 0; gpu < 8; ++gpu) {
    machine << (gpu > 0 ? "," : "") << R"({"name": "NVIDIA H200", "uuid": "GPU-0000000)" << gpu
            << R"(", "memory": "140GiB", "free": "139GiB"})";
  }
  machine << "]}";
  machine.close();
  const auto result =
      run_program({TRAIN_PROGRAM, "--hardware", (dir.path() / "big.json").string()}, {{"CUDA_VISIBLE_DEVICES", ""}});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("8 ranks"));
  EXPECT_THAT(result.out, HasSubstr("H200"));
  EXPECT_THAT(result.out, HasSubstr("nccl"));
}

}  // namespace
}  // namespace lockstep
