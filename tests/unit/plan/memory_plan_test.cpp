#include "plan/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/fake_hardware.h"
#include "support/message_of.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::Not;
using testing::Optional;

constexpr std::int64_t kBillion = 1'000'000'000;

MemoryEstimate estimate_of(const TrainConfig& config, const Hardware& hardware, const char* optimizer = "adamw") {
  return estimate_memory(kBillion, optimizer_memory(optimizer), resolve(config, hardware, std::nullopt));
}

TEST(MemoryPlan, ReadsNumbersOfParametersAsPeopleWriteThem) {
  EXPECT_EQ(parse_parameters("350000"), 350'000);
  EXPECT_EQ(parse_parameters("350k"), 350'000);
  EXPECT_EQ(parse_parameters("124M"), 124'000'000);
  EXPECT_EQ(parse_parameters("1.5B"), 1'500'000'000);
  EXPECT_EQ(parse_parameters("1.5G"), 1'500'000'000);
  EXPECT_EQ(parse_parameters("7b"), 7 * kBillion);
  EXPECT_EQ(parse_parameters("1T"), 1000 * kBillion);
  for (const char* wrong : {"", "M", "0", "-1", "7BB", "seven", "7 B", "nan", "1e30", "0.1"}) {
    EXPECT_EQ(parse_parameters(wrong), std::nullopt) << wrong;
  }
}

TEST(MemoryPlan, CountsTheOptionsThatKeepMore) {
  EXPECT_EQ(optimizer_memory("sgd").state, 0);
  EXPECT_EQ(optimizer_memory("sgd+momentum").state, 1);
  EXPECT_EQ(optimizer_memory("rmsprop+centered+momentum").state, 3);
  EXPECT_EQ(optimizer_memory("adamw+amsgrad").state, 3);
  const auto refused = [](const char* text) { return message_of([&] { optimizer_memory(text); }); };
  EXPECT_THAT(refused("adamv"), AllOf(HasSubstr("--optimizer adamv: unknown"), HasSubstr("did you mean adamw?")));
  EXPECT_THAT(refused("quasi_newton"), HasSubstr("adamw, adam, sgd,"));
  EXPECT_THAT(refused("sgd+"), HasSubstr("sgd has no option '' that needs more memory"));
  EXPECT_THAT(refused("sgd+momentum+momentum"), HasSubstr("use sgd or sgd+momentum"));
  EXPECT_THAT(refused("lion+momentum"), HasSubstr("use lion"));
}

TEST(MemoryPlan, FollowsThePrecision) {
  const auto bytes = [](Precision precision) {
    const MemoryEstimate estimate = estimate_of({.precision = precision}, no_gpu());
    EXPECT_EQ(estimate.gradients, estimate.weights);
    EXPECT_EQ(estimate.optimizer_state, 2 * estimate.weights);
    EXPECT_EQ(estimate.beside_activations(), 4 * estimate.weights + estimate.half_copies);
    return std::pair(estimate.weights, estimate.half_copies);
  };
  EXPECT_EQ(bytes(Precision::fp32), std::pair(4 * kBillion, std::int64_t{0}));
  EXPECT_EQ(bytes(Precision::fp64), std::pair(8 * kBillion, std::int64_t{0}));
  EXPECT_EQ(bytes(Precision::bf16), std::pair(2 * kBillion, std::int64_t{0}));
  EXPECT_EQ(bytes(Precision::bf16_mixed), std::pair(4 * kBillion, 2 * kBillion));
  EXPECT_EQ(bytes(Precision::fp16_mixed), std::pair(4 * kBillion, 2 * kBillion));
}

TEST(MemoryPlan, FollowsTheRanks) {
  const MemoryEstimate sharded = estimate_of({.dist = {.shard_optimizer = true}}, eight_gpus());
  EXPECT_EQ(sharded.optimizer_state, kBillion);
  EXPECT_EQ(sharded.gradients, 4 * kBillion);
  EXPECT_EQ(estimate_of({.dist = {.shard_optimizer = true}}, one_gpu()).optimizer_state, 8 * kBillion);
  EXPECT_EQ(estimate_of({.accumulation = 4}, eight_gpus()).gradients, 8 * kBillion) << "buckets, and sums beside them";
  EXPECT_EQ(estimate_of({.accumulation = 4}, one_gpu()).gradients, 4 * kBillion);
}

TEST(MemoryPlan, CountsTheCopiesOfARollback) {
  EXPECT_EQ(estimate_of({.optim = {.non_finite = NonFinitePolicy::rollback}}, no_gpu()).rollback, 12 * kBillion);
  EXPECT_EQ(estimate_of({.spike = {.z_score = 5, .policy = SpikePolicy::rollback}}, no_gpu()).rollback, 12 * kBillion);
  EXPECT_EQ(estimate_of({.spike = {.policy = SpikePolicy::rollback}}, no_gpu()).rollback, 0);
}

TEST(MemoryPlan, NeedsTheMostOfForwardAndUpdate) {
  const MemoryEstimate estimate{.weights = 10, .half_copies = 5, .update = 8};
  EXPECT_EQ(estimate.needed(), 18);
  EXPECT_EQ(estimate.beside_activations(), 15);
}

MemoryPlan memory_of(const TrainConfig& config, const Hardware& hardware, std::int64_t parameters) {
  return plan_memory(parameters, optimizer_memory("adamw"), resolve(config, hardware, std::nullopt), hardware);
}

TEST(MemoryPlan, DividesADeviceAmongItsRanks) {
  Hardware hardware = eight_gpus();
  hardware.gpus[1].free_bytes = 30 * kGiB;
  EXPECT_THAT(memory_of({.devices = "0,1"}, hardware, 1).available, ElementsAre(80 * kGiB, 30 * kGiB));
  EXPECT_THAT(memory_of({.nprocs = 4}, no_gpu(), 1).available, ElementsAre(16 * kGiB, 16 * kGiB, 16 * kGiB, 16 * kGiB));
}

TEST(MemoryPlan, HasARowForEachPartAndDevice) {
  const TrainConfig config{.devices = "0,1", .precision = Precision::bf16_mixed, .dist = {.shard_optimizer = true}};
  const Plan plan = resolve(config, eight_gpus(), std::nullopt);
  EXPECT_EQ(describe(plan_memory(kBillion, optimizer_memory("lion"), plan, eight_gpus()), plan),
            "\nmemory of each rank, for 1,000,000,000 parameters with lion in bf16_mixed\n"
            "  weights             3.7 GiB  4 bytes for each parameter\n"
            "  gradients           3.7 GiB  in the buckets that are sent\n"
            "  optimizer state     1.9 GiB  1 value for each parameter, divided by 2 ranks\n"
            "  half precision      1.9 GiB  copies of the weights from forward to backward, at most\n"
            "  together           11.2 GiB\n"
            "  update              1.9 GiB  at most this much more during an update, when activations are freed\n"
            "\n"
            "local rank  device            available  left for activations\n"
            "0           cuda:0 Test GPU    80.0 GiB              68.8 GiB\n"
            "1           cuda:1 Test GPU    80.0 GiB              68.8 GiB\n"
            "the largest batch for it: find_batch_size, see docs/loop.md\n");
  const Plan cpu = resolve({.nprocs = 4}, no_gpu(), std::nullopt);
  EXPECT_THAT(describe(plan_memory(kBillion, optimizer_memory("adamw"), cpu, no_gpu()), cpu),
              HasSubstr("\n0-3         cpu       16.0 GiB               1.1 GiB\n"));
}

TEST(MemoryPlan, SaysWhatIsUnknown) {
  Hardware hardware = no_gpu();
  hardware.memory_bytes = 0;
  const Plan plan = resolve({}, hardware, std::nullopt);
  const MemoryPlan memory = plan_memory(1000 * kBillion, optimizer_memory("adamw"), plan, hardware);
  EXPECT_THAT(describe(memory, plan), HasSubstr("\n0           cpu        unknown               unknown\n"));
  EXPECT_EQ(find_lack_of_memory(memory, plan), std::nullopt);
}

std::optional<Problem> lack_of(const TrainConfig& config, const Hardware& hardware, std::int64_t parameters) {
  return find_lack_of_memory(memory_of(config, hardware, parameters), resolve(config, hardware, std::nullopt));
}

TEST(MemoryPlan, RecommendsOnlyWhatIsEnough) {
  EXPECT_EQ(lack_of({}, eight_gpus(), kBillion), std::nullopt);
  EXPECT_THAT(
      lack_of({}, eight_gpus(), 7 * kBillion),
      Optional(
          AllOf(Field(&Problem::what, HasSubstr("the model does not fit: without activations a rank needs 104.3 "
                                                "GiB, and has 80.0 GiB on cuda:0, cuda:1")),
                Field(&Problem::hint,
                      "use --dist.shard_optimizer true (then 58.7 GiB), --precision bf16 "
                      "--optim.stochastic_rounding true (then 52.2 GiB) or the optimizer adafactor (then 52.2 GiB)"))));
  Hardware uneven = eight_gpus();
  uneven.gpus[1].free_bytes = 10 * kGiB;
  EXPECT_THAT(lack_of({}, uneven, 7 * kBillion),
              Optional(Field(&Problem::what, HasSubstr("and has 10.0 GiB to 80.0 GiB on cuda:0, cuda:1"))));
  EXPECT_THAT(
      lack_of({}, one_gpu(), 15 * kBillion),
      Optional(
          Field(&Problem::hint,
                "use --precision bf16 --optim.stochastic_rounding true and the optimizer adafactor (then 55.9 GiB)")));
  EXPECT_THAT(
      lack_of({}, one_gpu(), 70 * kBillion),
      Optional(Field(
          &Problem::hint,
          "every rank has the whole model: use a smaller model, or devices with more memory; "
          "--precision bf16 --optim.stochastic_rounding true and the optimizer adafactor would still need 260.8 GiB")));
}

TEST(MemoryPlan, RefusesToShardWhatTheTrainingRefusesToShard) {
  const TrainConfig config{.nprocs = 2, .dist = {.shard_optimizer = true}};
  const Plan plan = resolve(config, no_gpu(), std::nullopt);
  EXPECT_THAT(message_of([&] { plan_memory(1, optimizer_memory("prodigy"), plan, no_gpu()); }),
              HasSubstr("--dist.shard_optimizer true: prodigy updates all parameters together"));
}

}  // namespace
}  // namespace lockstep
