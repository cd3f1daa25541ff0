// A resumed run ends with the bytes of an uninterrupted one.
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/device_tests.h"
#include "gpu/shared_gpu.h"
#include "gpu/small_net.h"
#include "support/runs.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

void train_until(std::int64_t step, ComputeSetup where, Precision precision, const std::filesystem::path& run) {
  TrainConfig config{.compute_setup = where,
                     .precision = precision,
                     .deterministic = Determinism::on,
                     .max_epochs = 0,
                     .max_steps = step,
                     .batch_size = 8,
                     .global_batch_size = 16,
                     .run_dir = run.string()};
  config.optim.max_grad_norm = 0.5;
  config.optim.schedule = "warmup:15";
  Session session = Session::single(config);
  DataLoader data(small_images(45), session.plan.loader, session.world);
  SmallTask task(0.2, adamw({.lr = 0.001}));
  Trainer(session).fit(task, data);
}

void expect_equal_states(const std::filesystem::path& left, const std::filesystem::path& right) {
  const auto expected = final_state(left);
  const auto found = final_state(right);
  ASSERT_EQ(expected.size(), 4U);  // name, model, optimizer and generators
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, bytes] : expected) {
    EXPECT_TRUE(found.at(name) == bytes) << name << " differs";
  }
}

// With dropout, because the GPU's generator is resumed as well.
LOCKSTEP_DEVICE_TEST(Resume, IsBitwiseWithDeterministicAlgorithms) {
  for (const Precision precision : {Precision::fp32, Precision::bf16_mixed}) {
    const TempDir dir;
    train_until(20, where, precision, dir.path() / "straight");
    for (const std::int64_t stop : {7, 20}) {
      train_until(stop, where, precision, dir.path() / "stopped");
    }
    expect_equal_states(dir.path() / "straight", dir.path() / "stopped");
    train_until(19, where, precision, dir.path() / "other");  // the control
    EXPECT_NE(final_state(dir.path() / "other").at("model.safetensors"),
              final_state(dir.path() / "straight").at("model.safetensors"));
  }
}

TEST(ResumeOnGpu, AfterCtrlCIsBitwise) {
  LOCKSTEP_REQUIRE(Requirements().gpus(1));
  const TempDir dir;
  // Long enough for the signal to arrive during the training.
  const std::vector<std::string> flags{"--max_epochs", "0", "--max_steps", "1000", "--compute_setup", "gpu"};
  const auto straight = run_program(command(TRAIN_PROGRAM, dir.path() / "straight", flags), one_gpu_only());
  ASSERT_EQ(straight.code, 0) << straight.err;

  const auto stopped = command(TRAIN_PROGRAM, dir.path() / "stopped", flags);
  {
    Process process(stopped, one_gpu_only());
    ASSERT_TRUE(process.wait_for("step 7 ")) << process.err();
    process.signal(SIGINT);
    const auto result = process.wait();
    ASSERT_EQ(result.code, 130) << result.err;
    EXPECT_THAT(result.err, HasSubstr("run the same command again to continue"));
  }
  ASSERT_NE(newest_checkpoint(dir.path() / "stopped").filename(),
            newest_checkpoint(dir.path() / "straight").filename());
  const auto resumed = run_program(stopped, one_gpu_only());
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("resuming from"));
  expect_equal_states(dir.path() / "straight", dir.path() / "stopped");
}

}  // namespace
}  // namespace lockstep
