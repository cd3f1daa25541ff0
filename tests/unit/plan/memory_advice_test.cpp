#include "plan/memory_advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;

Plan plan_of(std::int64_t batch_size, std::int64_t accumulation, int ranks, std::int64_t global, bool gpu = false) {
  Plan plan;
  plan.world_size = ranks;
  plan.local_devices.assign(static_cast<std::size_t>(ranks), LocalDevice{.id = {.gpu = gpu}});
  plan.loader.batch = {.batch_size = batch_size, .accumulation = accumulation, .global_batch_size = global};
  return plan;
}

struct Case {
  std::int64_t batch_size, accumulation;
  int ranks;
  std::int64_t global;
  const char* flags;
};

TEST(MemoryAdvice, KeepsTheGlobalBatch) {
  const Case cases[] = {{32, 1, 2, 64, "--batch_size 16 --accumulation 2 --global_batch_size 64"},
                        {32, 2, 1, 64, "--batch_size 16 --accumulation 4 --global_batch_size 64"},
                        {5, 1, 1, 5, "--batch_size 3 --accumulation 2 --global_batch_size 5"},
                        {7, 3, 4, 81, "--batch_size 4 --accumulation 6 --global_batch_size 81"},
                        {2, 1, 1, 2, "--batch_size 1 --accumulation 2 --global_batch_size 2"}};
  for (const auto& [batch_size, accumulation, ranks, global, flags] : cases) {
    EXPECT_THAT(memory_advice({}, plan_of(batch_size, accumulation, ranks, global)), HasSubstr(flags));
  }
}

// What it advises must be accepted.
TEST(MemoryAdvice, IsAPlanThatWorks) {
  for (const std::int64_t batch_size : {2, 3, 7, 16}) {
    for (const int ranks : {1, 3, 8}) {
      for (std::int64_t global = ranks; global <= batch_size * ranks * 2; global += 5) {
        const std::string advice = memory_advice({}, plan_of(batch_size, 1, ranks, global));
        TrainConfig config;
        ASSERT_EQ(std::sscanf(advice.c_str(), "use --batch_size %ld --accumulation %ld --global_batch_size %ld",
                              &config.batch_size, &config.accumulation, &config.global_batch_size),
                  3);
        std::vector<Problem> problems;
        plan_batch(config, ranks, problems);
        ASSERT_TRUE(problems.empty()) << advice << " on " << ranks << " ranks: " << problems.front().what;
      }
    }
  }
}

TEST(MemoryAdvice, SaysWhenASmallerBatchCannotHelp) {
  EXPECT_THAT(memory_advice({}, plan_of(1, 1, 2, 2)), testing::StartsWith("a single sample needs too much memory"));
}

TEST(MemoryAdvice, IsAboutBatchesThatWaitIfADataSetFailed) {
  Plan plan = plan_of(32, 1, 2, 64);
  plan.config.data = {.workers = 4, .prefetch = 3};
  const std::string text = memory_advice({.in_data_set = true}, plan);
  EXPECT_THAT(text, testing::StartsWith("the data set ran out of memory: use fewer --data.workers (now 4) and a "
                                        "smaller --data.prefetch (now 3)"));
  EXPECT_THAT(text, HasSubstr("; use --batch_size 16 --accumulation 2")) << "the step's advice stays";
  EXPECT_THAT(memory_advice({}, plan), Not(HasSubstr("--data.workers")));
  plan.config.data.workers = 0;
  EXPECT_EQ(memory_advice({.in_data_set = true}, plan), memory_advice({}, plan)) << "then no batch waits";
}

TEST(MemoryAdvice, NamesTheMemoryOfGraphs) {
  Plan plan = plan_of(8, 1, 1, 8, /*gpu=*/true);
  const OutOfMemory facts{.device = {.gpu = true}};
  EXPECT_THAT(memory_advice(facts, plan), Not(HasSubstr("--cuda_graphs")));
  plan.config.cuda_graphs = true;
  EXPECT_THAT(memory_advice(facts, plan), HasSubstr("; or leave out --cuda_graphs: a graph keeps its memory"));
}

TEST(MemoryAdvice, NamesWhoElseIsOnTheGpuAndAWayAround) {
  const Plan plan = plan_of(8, 1, 2, 16, /*gpu=*/true);
  OutOfMemory facts{.device = {.gpu = true, .index = 1},
                    .tenants = {{.name = "pid 4242 'python train.py' (user x)", .bytes = std::int64_t{40} << 30}},
                    .free_gpus = {0, 2, 3}};
  const std::string text = memory_advice(facts, plan);
  EXPECT_THAT(text, HasSubstr("; or --precision bf16_mixed"));
  EXPECT_THAT(text, HasSubstr("on cuda:1, pid 4242 'python train.py' (user x) uses 40.0 GiB"));
  EXPECT_THAT(text, HasSubstr("--devices 0,2, is used by no other process"));
  facts.free_gpus = {0};
  EXPECT_THAT(memory_advice(facts, plan), Not(HasSubstr("--devices"))) << "too few for both ranks";
  facts.tenants.clear();
  EXPECT_THAT(memory_advice(facts, plan), Not(HasSubstr("cuda:1")));
}

}  // namespace
}  // namespace lockstep
