// The bundled examples do what their header comments say.
#include <array>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/python.h"
#include "support/requirements.h"
#include "support/runs.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

std::string example(const std::string& name) { return std::string(EXAMPLES_DIR) + "/" + name; }
std::string source(const std::string& name) { return std::string(EXAMPLE_SOURCES) + "/" + name; }

const Process::Environment kOneThread{{"OMP_NUM_THREADS", "1"}};  // two ranks on two cores; sums depend on it

/// The number before `text` in the output, or after it.
double number_before(const std::string& output, const std::string& text) {
  const auto at = output.find(text);
  EXPECT_NE(at, std::string::npos) << output;
  const auto begin = output.rfind('\n', at) + 1;
  return at == std::string::npos ? -1 : std::stod(output.substr(begin, at - begin));
}
double number_after(const std::string& output, const std::string& text) {
  const auto at = output.rfind(text);
  EXPECT_NE(at, std::string::npos) << output;
  return at == std::string::npos ? -1 : std::stod(output.substr(at + text.size()));
}

/// Programs beside torchrun come first in PATH.
Process::Environment with_torchrun(const std::string& torchrun) {
  const auto folder = std::filesystem::path(torchrun).parent_path().string();
  return {{"PATH", folder + ":" + read_environment().get("PATH").value_or("")}, {"OMP_NUM_THREADS", "1"}};
}

TEST(Example, OneDeviceAndManyLearnThePlane) {
  const TempDir dir;
  const auto one =
      run_program(command(example("01_single_device"), dir.path() / "one", {"10", "2", "--batch_size", "64"}));
  ASSERT_EQ(one.code, 0) << one.err;
  const auto two = run_program(command(example("02_multi_device"), dir.path() / "two", {"10", "2", "--nprocs", "2"}));
  ASSERT_EQ(two.code, 0) << two.err;
  for (const auto* run : {"one", "two"}) {
    const auto losses = metric(dir.path() / run, "loss");
    ASSERT_FALSE(losses.empty());
    EXPECT_LT(losses.rbegin()->second, 0.1 * losses.begin()->second);
  }
}

// Example 06 and its manual loop, 07, give the same bytes with dropout, clipping, schedule and two ranks.
TEST(Example, TheLoopByHandEndsWithTheTrainersWeights) {
  const TempDir dir;
  const std::vector<std::string> flags{
      "--nprocs", "2", "--max_steps", "60", "--sample", "0", "--checkpoint.every_steps", "30"};
  const auto trainer = run_program(command(example("06_char_gpt"), dir.path() / "trainer", flags));
  ASSERT_EQ(trainer.code, 0) << trainer.err;
  auto by_hand = flags;
  by_hand.erase(by_hand.begin() + 4, by_hand.begin() + 6);
  const auto loop = run_program(command(example("07_custom_loop"), dir.path() / "loop", by_hand));
  ASSERT_EQ(loop.code, 0) << loop.err;
  EXPECT_THAT(loop.err, HasSubstr("validation   never\n")) << "the table shows what this loop does";
  EXPECT_THAT(loop.err, HasSubstr("checkpoints  every 30 steps and at the end"));
  auto expected = final_state(dir.path() / "trainer");
  EXPECT_EQ(expected.at("name"), "step-0000000060");
  expected.erase("report.safetensors");  // the loop by hand reports nothing
  EXPECT_EQ(final_state(dir.path() / "loop"), expected);
}

TEST(Example, TheLoopByHandContinuesWithAnyNumberOfRanks) {
  const TempDir dir;
  const auto train = [&](const char* ranks, const char* steps) {
    const auto result = run_program(command(example("07_custom_loop"), dir.path() / "run",
                                            {"--nprocs", ranks, "--max_steps", steps, "--checkpoint.every_steps", "5"}),
                                    kOneThread);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.err;
  };
  train("1", "5");
  for (const auto& [ranks, steps] : {std::pair("2", "10"), std::pair("1", "15")}) {
    EXPECT_THAT(train(ranks, steps), HasSubstr("saved with another number of ranks: the random generators get new"));
  }
  EXPECT_EQ(final_state(dir.path() / "run").at("name"), "step-0000000015");
}

// The position has the epoch too.
TEST(Example, TheLoopByHandContinuesInItsSecondEpoch) {
  const TempDir dir;
  const auto train = [&](const std::string& run, const char* steps) {
    const auto result =
        run_program(command(example("07_custom_loop"), dir.path() / run,
                            {"--max_steps", steps, "--data.steps_per_epoch", "8", "--optim.schedule", "constant"}),
                    kOneThread);
    EXPECT_EQ(result.code, 0) << result.err;
  };
  train("resumed", "12");
  train("resumed", "20");
  train("straight", "20");
  EXPECT_EQ(final_state(dir.path() / "resumed"), final_state(dir.path() / "straight"));
}

// A value of 0 means: not at all.
TEST(Example, TheLoopByHandTrainsWithoutClippingAndWithoutSavesBetween) {
  const TempDir dir;
  const auto weights = [&](const std::string& limit) {
    const auto run = dir.path() / limit;
    const auto result = run_program(command(example("07_custom_loop"), run,
                                            {"--max_steps", "3", "--checkpoint.every_steps", "0",
                                             "--optim.max_grad_norm", limit, "--optim.schedule", "step:1ep"}),
                                    kOneThread);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("step 3 is saved in "));
    auto state = final_state(run);
    EXPECT_EQ(state.at("name"), "step-0000000003");
    return state;
  };
  EXPECT_EQ(weights("0"), weights("1e9"));
}

// Without a number of steps it would do nothing.
TEST(Example, TheLoopByHandRefusesALimitThatItDoesNotCount) {
  const TempDir dir;
  const auto result =
      run_program(command(example("07_custom_loop"), dir.path() / "run", {"--max_steps", "0", "--max_epochs", "1"}));
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("this loop ends at --max_steps and counts no epochs"));
}

double words_known(const std::string& output) { return number_before(output, " % of the words"); }

// Half of the quickstart's training, stopped and resumed, learns English.
TEST(Example, TheMainJobLearnsEnglish) {
  const TempDir dir;
  const auto job = command(example("06_char_gpt"), dir.path() / "run", {"--nprocs", "2", "--max_steps", "800"});
  {
    Process process(job);
    ASSERT_TRUE(process.wait_for("step 300 ", std::chrono::seconds(120))) << process.err();
    process.signal(SIGINT);
    ASSERT_EQ(process.wait().code, 130);
  }
  const auto result = run_program(job, {}, ".", std::chrono::seconds(280));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("resuming from step 3"));
  EXPECT_LT(metric(dir.path() / "run", "val_loss").rbegin()->second, 1.8);
  EXPECT_GE(words_known(result.err), 60);
}

// An almost untrained model writes few words; the quickstart's model must exceed this bound.
TEST(Example, AnUntrainedModelFailsTheSampleTest) {
  const TempDir dir;
  const auto result =
      run_program(command(example("06_char_gpt"), dir.path() / "run", {"--nprocs", "2", "--max_steps", "1"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_LT(words_known(result.err), 30);
}

// --- lines of other systems ---

/// The lines of a rank on the standard output.
std::string lines_of_rank(const std::string& output, int rank) {
  const std::string prefix = "[rank" + std::to_string(rank) + "]: ";
  std::istringstream all(output);
  std::string text;
  for (std::string line; std::getline(all, line);) {
    text += line.starts_with(prefix) ? line.substr(prefix.size()) + "\n" : "";
  }
  return text;
}

TEST(Example, PrintsTheLinesOfTheTutorial) {
  const TempDir dir;
  const auto run = [&](const char* epochs) {
    const auto result = run_program(
        command(example("12_console_lines"), dir.path() / "run", {epochs, "2", "--lines", "tutorial", "--nprocs", "2"}),
        kOneThread);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  const std::string saved = "Training snapshot saved at " + (dir.path() / "run/checkpoints").string() + "\n";
  const std::string first = run("3");
  EXPECT_EQ(lines_of_rank(first, 0),
            "[GPU0] Epoch 0 | Batchsize: 32 | Steps: 32\n"
            "[GPU0] Epoch 1 | Batchsize: 32 | Steps: 32\n"
            "Epoch 1 | " +
                saved +
                "[GPU0] Epoch 2 | Batchsize: 32 | Steps: 32\n"
                "Epoch 2 | " +
                saved);
  EXPECT_EQ(lines_of_rank(first, 1),
            "[GPU1] Epoch 0 | Batchsize: 32 | Steps: 32\n"
            "[GPU1] Epoch 1 | Batchsize: 32 | Steps: 32\n"
            "[GPU1] Epoch 2 | Batchsize: 32 | Steps: 32\n");
  EXPECT_EQ(lines_of_rank(run("4"), 1),
            "Loading snapshot\n"
            "Resuming training from snapshot at Epoch 3\n"
            "[GPU1] Epoch 3 | Batchsize: 32 | Steps: 32\n");
  const auto alone = run_program(command(example("12_console_lines"), dir.path() / "alone", {"2", "2"}), kOneThread);
  EXPECT_EQ(alone.code, 0) << alone.err;
  EXPECT_EQ(alone.out,
            "[GPU0] Epoch 0 | Batchsize: 32 | Steps: 64\n"
            "[GPU0] Epoch 1 | Batchsize: 32 | Steps: 64\n"
            "Epoch 1 | Training checkpoint saved at " +
                (dir.path() / "alone/checkpoints").string() + "\n");
}

TEST(Example, PrintsTheLinesOfPerceptrain) {
  const TempDir dir;
  const auto two = run_program(
      command(example("12_console_lines"), dir.path() / "two", {"2", "2", "--lines", "perceptrain", "--nprocs", "2"}),
      kOneThread);
  ASSERT_EQ(two.code, 0) << two.err;
  const std::string loss = R"( Train_Loss: [0-9]\.[0-9]{7} -)";
  EXPECT_THAT(lines_of_rank(two.out, 1), MatchesRegex(R"(P  1\|cpu    \| Iteration       1\|)" + loss +
                                                      "\nP  1\\|cpu    \\| Iteration       2\\|" + loss + "\n"));
  EXPECT_THAT(lines_of_rank(two.out, 0), HasSubstr("P  0|cpu    | Iteration       1| Train_Loss: "));
  const auto other = run_program(command(example("12_console_lines"), dir.path() / "other", {"--lines", "both"}));
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("--lines both: expected tutorial or perceptrain"));
}

// --- torchrun ---

TEST(Example, TheScriptForTorchrunTrainsTheSameProgram) {
  const std::string torchrun = find_torchrun(LIBTORCH_DIR);
  LOCKSTEP_REQUIRE(Requirements().that(!torchrun.empty(), "no torchrun beside the LibTorch at " LIBTORCH_DIR));
  const TempDir dir;
  auto script = command(example("02_multi_device"), dir.path() / "torchrun", {});
  script.insert(script.begin() + 1, {"2", "3", "1"});  // ranks, epochs, epochs between two checkpoints
  script.insert(script.begin(), {"bash", source("03_torchrun.sh")});
  const auto result = run_program(script, with_torchrun(torchrun));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("torchrun, 2 ranks"));
  const auto own = run_program(command(example("02_multi_device"), dir.path() / "own", {"3", "1", "--nprocs", "2"}),
                               {{"OMP_NUM_THREADS", "1"}});
  ASSERT_EQ(own.code, 0) << own.err;
  EXPECT_EQ(final_state(dir.path() / "torchrun"), final_state(dir.path() / "own"));
}

// --- digits ---

void write_idx(const std::filesystem::path& file, const std::vector<std::uint8_t>& sizes, const std::string& bytes) {
  std::ofstream out(file, std::ios::binary);
  out << '\0' << '\0' << '\x08' << static_cast<char>(sizes.size());
  for (const std::uint8_t size : sizes) {
    out << '\0' << '\0' << '\0' << static_cast<char>(size);
  }
  out << bytes;
}

/// Digits of 3 x 5 points in noisy images of 8 x 8.
void write_digits(const std::filesystem::path& folder, const std::string& part, std::uint8_t count) {
  constexpr std::array<const char*, 10> kPoints{
      "111101101101111", "010110010010111", "111001111100111", "111001011001111", "101101111001001",
      "111100111001111", "111100111101111", "111001010010010", "111101111101111", "111101111001111"};
  std::mt19937 random(count);
  std::string images;
  std::string labels;
  for (int i = 0; i < count; ++i) {
    const auto digit = static_cast<std::size_t>(i % 10);
    for (unsigned y = 0; y < 8; ++y) {
      for (unsigned x = 0; x < 8; ++x) {
        const bool inside = y >= 1 && y < 6 && x >= 2 && x < 5;
        const bool ink = inside && kPoints[digit][(y - 1) * 3 + (x - 2)] == '1';
        images += static_cast<char>((ink ? 200 : 0) + random() % 40);
      }
    }
    labels += static_cast<char>(digit);
  }
  write_idx(folder / (part + "-images-idx3-ubyte"), {count, 8, 8}, images);
  write_idx(folder / (part + "-labels-idx1-ubyte"), {count}, labels);
}

TEST(Example, DigitsAreRecognized) {
  const TempDir dir;
  write_digits(dir.path(), "train", 250);
  write_digits(dir.path(), "t10k", 100);
  const auto accuracy = [&](const char* ranks, const char* epochs) {
    const auto run = dir.path() / (std::string("run") + ranks + epochs);
    const auto result = run_program(command(example("05_digits"), run,
                                            {dir.path().string(), "--nprocs", ranks, "--max_epochs", epochs,
                                             "--global_batch_size", "25", "--optim.lr", "5e-3"}),
                                    kOneThread);
    EXPECT_EQ(result.code, 0) << result.err;
    return number_before(result.err, " % of the test images");
  };
  EXPECT_LT(accuracy("1", "1"), 80);  // the control: an untrained network fails
  EXPECT_GE(accuracy("1", "8"), 95);
  EXPECT_GE(accuracy("2", "8"), 95);
}

TEST(Example, HandwrittenDigitsAreRecognized) {
  const std::string python = python_with("scikit-learn", PARITY_DIR);
  LOCKSTEP_REQUIRE(Requirements().that(python.starts_with('/'), python));
  const TempDir dir;
  const auto digits = (dir.path() / "digits").string();
  ASSERT_EQ(run_program({python, source("05_digits.py"), digits}).code, 0);
  const auto result = run_program(command(example("05_digits"), dir.path() / "run", {digits, "--nprocs", "2"}),
                                  kOneThread, ".", Process::Seconds(300));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_GE(number_before(result.err, " % of the test images"), 99);
}

// --- others ---

TEST(Example, AGeneratorLearnsTheCircle) {
  const TempDir dir;
  for (const char* ranks : {"1", "2"}) {
    const auto run = dir.path() / ranks;
    const auto result =
        run_program(command(example("08_gan"), run, {"--nprocs", ranks, "--max_steps", "260"}), kOneThread);
    ASSERT_EQ(result.code, 0) << result.err;
    const auto distance = metric(run, "off_circle");
    ASSERT_GT(distance.begin()->second, 0.3);  // the control: an untrained generator is far from it
    EXPECT_LT(distance.rbegin()->second, 0.5 * distance.begin()->second);
  }
}

TEST(Example, AnEmbeddedTrainingReachesItsTolerance) {
  const TempDir dir;
  const auto one = run_program({example("09_embedded"), "0.1"}, kOneThread, dir.path().string());
  ASSERT_EQ(one.code, 0) << one.out << one.err;
  EXPECT_LT(number_after(one.out, "largest error "), 0.1);
  const auto two = run_program({LOCKSTEP_CLI, "run", "--nproc-per-node", "2", "--", example("09_embedded"), "0.1"},
                               kOneThread, dir.path().string());
  ASSERT_EQ(two.code, 0) << two.out << two.err;
  EXPECT_THAT(two.out, HasSubstr("round 1: 64 points"));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));  // it writes nothing
}

// The control: lockstep run does report an embedded program that fails.
TEST(Example, AnEmbeddedTrainingThatFailsIsAFailure) {
  const auto result =
      run_program({LOCKSTEP_CLI, "run", "--nproc-per-node", "2", "--", example("09_embedded"), "0"}, kOneThread);
  EXPECT_EQ(result.code, 1) << result.out << result.err;
}

// lockstep::run handles Ctrl-C, see Resume.AfterCtrlC. Without it the program's own way stays: this one just ends.
TEST(Example, AnEmbeddedTrainingLeavesCtrlCToItsProgram) {
  Process process({"stdbuf", "-oL", example("09_embedded"), "0"}, kOneThread);
  ASSERT_TRUE(process.wait_for("round 1:"));
  process.signal(SIGINT);
  const auto result = process.wait();
  EXPECT_EQ(result.code, 128 + SIGINT);
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out.find("round 10:"), std::string::npos) << "it was trained to its end";
}

TEST(Example, TheFlagsOfOneTrainerStartTheSameTraining) {
  const std::string torchrun = find_torchrun(LIBTORCH_DIR);
  LOCKSTEP_REQUIRE(Requirements().that(!torchrun.empty(), "no torchrun beside the LibTorch at " LIBTORCH_DIR));
  const TempDir dir;
  const auto train = [&](const std::string& run, const std::vector<std::string>& more) {
    auto flags =
        with({"--config-path", source("10_train_multi_gpu.json"), "--num-gpus", "2", "--max_epochs", "2"}, more);
    return run_program(command(example("10_train_multi_gpu"), dir.path() / run, flags), with_torchrun(torchrun));
  };
  const auto spawned = train("spawn", {"--spawn", "--distributed-backend", "gloo", "--distributed-data-loading"});
  ASSERT_EQ(spawned.code, 0) << spawned.err;
  EXPECT_THAT(spawned.err, HasSubstr("this program starts 2 ranks"));
  const auto launched = train("torchrun", {"--port", free_port()});
  ASSERT_EQ(launched.code, 0) << launched.err;
  EXPECT_THAT(launched.err, HasSubstr("torchrun, 2 ranks"));
  EXPECT_EQ(final_state(dir.path() / "spawn"), final_state(dir.path() / "torchrun"));
}

TEST(Example, FineTunedWeightsGoBackToPython) {
  const std::string python = find_python(LIBTORCH_DIR);
  LOCKSTEP_REQUIRE(Requirements().that(has_modules(python, {"torch", "safetensors"}),
                                       "no Python with safetensors beside the LibTorch at " LIBTORCH_DIR));
  const TempDir dir;
  const auto file = [&](const std::string& name) { return (dir.path() / name).string(); };
  const auto script = [&](const std::vector<std::string>& words) {
    const auto result = run_program(with({python, source("11_finetune.py")}, words), kOneThread);
    EXPECT_EQ(result.code, 0) << result.err;
    return result.out;
  };
  script({"pretrain", file("first")});
  for (const std::string ranks : {"1", "2"}) {
    const auto result =
        run_program(command(example("11_finetune"), dir.path() / ("run" + ranks),
                            {file("first"), file("last" + ranks), "--nprocs", ranks, "--max_steps", "200"}),
                    kOneThread);
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_LT(std::filesystem::file_size(file("last" + ranks) + ".adapter"),
              std::filesystem::file_size(file("last" + ranks)) / 2);
  }
  std::istringstream checked(script({"check", file("first"), file("last1"), file("last2")}));
  std::string line;
  std::vector<double> errors;
  while (std::getline(checked, line)) {
    errors.push_back(number_after(line, "largest error "));
  }
  ASSERT_EQ(errors.size(), 3U);
  EXPECT_GT(errors[0], 0.3);  // the control: the first weights are those of another function
  EXPECT_LT(errors[1], 0.05);
  EXPECT_LT(errors[2], 0.05);
}

// --- the documents ---

// The first run names the programs; each of them trains a few steps.
TEST(Documents, ProgramsTrain) {
  const TempDir dir;
  const auto names = run_program({DOCS_PROGRAM});
  ASSERT_EQ(names.code, 2);
  std::istringstream lines(names.out);
  int programs = 0;
  for (std::string name; std::getline(lines, name); ++programs) {
    SCOPED_TRACE(name);
    const auto run = dir.path() / std::to_string(programs);
    const auto result = run_program(command(DOCS_PROGRAM, run, {"--nprocs", "2", "--max_steps", "5"}),
                                    {{"DOCS_PROGRAM", name}, {"OMP_NUM_THREADS", "1"}}, dir.path().string());
    EXPECT_EQ(result.code, 0) << result.out << result.err;
  }
  EXPECT_GE(programs, 5);
}

}  // namespace
}  // namespace lockstep
