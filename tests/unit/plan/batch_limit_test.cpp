// A micro-batch that did not fit: for which starts it counts, and what it changes.
#include "plan/batch_limit.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "plan/batch_plan.h"
#include "support/fake_hardware.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kDevice = "Test GPU (80.0 GiB)";

Plan plan_of(std::int64_t batch_size, std::int64_t global_batch_size = 0, int gpus = 2) {
  return resolve({.batch_size = batch_size,
                  .global_batch_size = global_batch_size,
                  .run_name = "digits",
                  .memory = {.halve_batch = true}},
                 machine_with(gpus), std::nullopt);
}

/// What is left of the micro-batch.
std::int64_t batch_size_with(const Plan& plan, const std::vector<BatchLimit>& known,
                             const std::vector<std::string>& devices = {kDevice}) {
  return with_batch_limit(plan, find_batch_limit(plan, known, devices)).loader.batch.batch_size;
}

TEST(BatchLimit, IsReadAsItWasWritten) {
  const auto read =
      parse_batch_limit(to_json({.batch_size = 8, .device = "NVIDIA \"H200\" (139.8 GiB)", .too_large = 4}));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->batch_size, 8);
  EXPECT_EQ(read->device, "NVIDIA \"H200\" (139.8 GiB)");
  EXPECT_EQ(read->too_large, 4);
  for (const char* damaged :
       {"", "{", "[]", R"({"format": 2, "batch_size": 8, "device": "CPU", "too_large": 4})",
        R"({"format": 1, "batch_size": 8, "device": "CPU", "too_large": 0})", R"({"format": 1, "batch_size": 8})"}) {
    EXPECT_FALSE(parse_batch_limit(damaged)) << damaged;
  }
}

TEST(BatchLimit, IsOfTheSettingTheDeviceAndTheMicroBatchThatFailed) {
  const Plan plan = plan_of(16);
  const BatchLimit limit = batch_limit(plan, plan.local_devices.front());
  EXPECT_EQ(limit.batch_size, 16);
  EXPECT_EQ(limit.device, kDevice);
  EXPECT_EQ(limit.too_large, 16);
  const Plan second = with_batch_limit(plan, limit);
  const BatchLimit next = batch_limit(second, second.local_devices.front());
  EXPECT_EQ(next.batch_size, 16) << "the setting stays what the user gave";
  EXPECT_EQ(next.too_large, 8);
  EXPECT_EQ(batch_limit(plan_of(0, 64), plan.local_devices.front()).batch_size, 0) << "derived";
  EXPECT_EQ(batch_limit(plan_of(2048, 32), plan.local_devices.front()).too_large, 16) << "the share of a rank";
  EXPECT_EQ(device_with_memory({.name = "CPU"}), "CPU");
}

TEST(BatchLimit, KeepsTheStepsOfTheRun) {
  const Plan plan = plan_of(16);
  const Plan limited = with_batch_limit(plan, BatchLimit{.batch_size = 16, .device = kDevice, .too_large = 8});
  EXPECT_EQ(flags_of(limited.loader.batch), "--batch_size 4 --accumulation 4 --global_batch_size 32");
  EXPECT_EQ(limited.config.batch_size, 4);
  EXPECT_EQ(limited.config.accumulation, 4);
  EXPECT_EQ(limited.config.global_batch_size, 32);
  EXPECT_EQ(limited.eval_loader.batch.batch_size, 4);
  EXPECT_EQ(asked_config(limited).batch_size, 16) << "config.toml";
  EXPECT_EQ(with_batch_limit(plan, std::nullopt).loader.batch.batch_size, 16);
}

TEST(BatchLimit, IsSaidInTheTableWithTheWayBack) {
  const std::string json = to_json({.batch_size = 16, .device = kDevice, .too_large = 8});
  const Plan limited = with_kept_limit(plan_of(16), json);
  EXPECT_THAT(limited.notes,
              ElementsAre("micro-batches have 4 samples instead of 16 (--memory.halve_batch): 8 did not fit into the "
                          "memory of Test GPU (80.0 GiB), as runs/digits/batch_limit.json says; delete this file, or "
                          "use --fresh or another --batch_size, to begin with 16 again"));
  EXPECT_THAT(describe(limited), HasSubstr("batch        32 = 4 per rank x 4 micro-batches x 2 ranks\n"));
  Plan fresh = plan_of(16);
  fresh.config.fresh = true;
  Plan off = plan_of(16);
  off.config.memory.halve_batch = false;
  for (const Plan& plan : {with_kept_limit(fresh, json), with_kept_limit(off, json), with_kept_limit(plan_of(16), ""),
                           with_kept_limit(plan_of(12), json)}) {
    EXPECT_EQ(plan.loader.batch.accumulation, 1);
  }
}

TEST(BatchLimit, CountsForTheSameSettingOnSuchADevice) {
  const BatchLimit limit{.batch_size = 16, .device = kDevice, .too_large = 16};
  EXPECT_EQ(batch_size_with(plan_of(16), {limit}), 8);
  EXPECT_EQ(batch_size_with(plan_of(16), {}), 16);
  EXPECT_EQ(batch_size_with(plan_of(12), {limit}), 12) << "another batch size";
  EXPECT_EQ(batch_size_with(plan_of(16), {limit}, {"Test GPU (96.0 GiB)"}), 16) << "another machine";
  EXPECT_EQ(batch_size_with(plan_of(16), {limit}, {"Test GPU (96.0 GiB)", kDevice}), 8) << "one of the ranks has it";
}

TEST(BatchLimit, OfSeveralMachinesIsTheSmallest) {
  const BatchLimit first{.batch_size = 16, .device = kDevice, .too_large = 16};
  const BatchLimit second{.batch_size = 16, .device = kDevice, .too_large = 4};
  EXPECT_EQ(batch_size_with(plan_of(16), {first, second}), 2);
  EXPECT_EQ(batch_size_with(plan_of(16), {second, first}), 2);
}

TEST(BatchLimit, OfADerivedBatchHoldsWithAnyNumberOfRanks) {
  const BatchLimit limit{.batch_size = 0, .device = kDevice, .too_large = 32};  // of 64 on two ranks
  EXPECT_EQ(batch_size_with(plan_of(0, 64, 2), {limit}), 16);
  EXPECT_EQ(batch_size_with(plan_of(0, 64, 1), {limit}), 16) << "64 in one micro-batch would not fit";
  EXPECT_EQ(batch_size_with(plan_of(0, 64, 4), {limit}), 16) << "of which nobody knows that it does not fit";
}

TEST(BatchLimit, EndsAtOneSample) {
  Plan plan = plan_of(2048, 6);  // the largest share is three samples
  std::vector<std::int64_t> tried;
  while (plan.loader.batch.batch_size > 1) {
    const BatchLimit limit = batch_limit(plan, plan.local_devices.front());
    tried.push_back(limit.too_large);
    plan = with_batch_limit(plan_of(2048, 6), limit);
  }
  EXPECT_THAT(tried, ElementsAre(3, 2));
}

}  // namespace
}  // namespace lockstep
