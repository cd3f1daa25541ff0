#include <set>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/rng_state.h>

#include "support/captured_stderr.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::int64_t draw() { return at::randint(std::int64_t{1} << 40, {1}, at::kLong).item<std::int64_t>(); }

TEST(RngState, RestoresTheSequence) {
  seed_rng({.seed = 1}, at::kCPU);
  at::randn({7});  // leaves half of a pair of normal numbers behind
  const at::Tensor state = rng_state(at::kCPU);
  EXPECT_EQ(state.scalar_type(), at::kByte);
  EXPECT_EQ(state.dim(), 1);
  const at::Tensor next = at::cat({at::randn({5}), at::rand({5})});
  EXPECT_FALSE(at::equal(at::cat({at::randn({5}), at::rand({5})}), next));
  set_rng_state(state, at::kCPU);
  EXPECT_TRUE(at::equal(at::cat({at::randn({5}), at::rand({5})}), next));
}

TEST(RngState, RejectsInvalidBytes) {
  const at::Tensor state = rng_state(at::kCPU);
  EXPECT_THAT([&] { set_rng_state(state.narrow(0, 0, 16), at::kCPU); },
              ThrowsMessage<CheckpointError>(HasSubstr("random number state for cpu: found 16 Bytes, expected ")));
  EXPECT_THAT([&] { set_rng_state({}, at::kCPU); }, ThrowsMessage<CheckpointError>(HasSubstr("found nothing")));
  EXPECT_THAT([&] { set_rng_state(state.to(at::kFloat), at::kCPU); },
              ThrowsMessage<CheckpointError>(HasSubstr("Floats")));
  EXPECT_THAT([&] { set_rng_state(at::full_like(state, 255), at::kCPU); },
              ThrowsMessage<CheckpointError>(HasSubstr("random number state for cpu: ")));
  EXPECT_TRUE(at::equal(rng_state(at::kCPU), state));
}

TEST(RestoreRng, RestoresAStateThatFitsAndSeedsOtherwise) {
  const at::Tensor state = rng_state(at::kCPU);
  const std::int64_t next = draw();
  restore_rng(state, {.seed = 7, .rank = 1, .step = 30}, at::kCPU);
  EXPECT_EQ(draw(), next);
  seed_rng({.seed = 7, .rank = 1, .step = 30}, at::kCPU);
  const std::int64_t seeded = draw();
  EXPECT_NE(seeded, next);
  for (const auto& [other, why] :
       {std::pair(at::Tensor(), "saved with another number of ranks"),
        std::pair(at::cat({state, at::zeros({16}, at::kByte)}), "saved on another kind of device than cpu")}) {
    draw();
    CapturedStderr captured;
    restore_rng(other, {.seed = 7, .rank = 1, .step = 30}, at::kCPU);
    EXPECT_THAT(captured.text(), HasSubstr(why));
    EXPECT_EQ(draw(), seeded) << why;
  }
  EXPECT_THROW(restore_rng(at::full_like(state, 255), {.seed = 7, .rank = 1, .step = 30}, at::kCPU), CheckpointError)
      << "it is damaged";
}

TEST(SeedRng, GivesEachSeedRankAndStepItsOwnNumbers) {
  std::set<std::int64_t> drawn;
  for (const std::uint64_t seed : {0U, 1U, 42U}) {
    for (const int rank : {0, 1, 2}) {
      for (const std::int64_t step : {0, 1, 2}) {
        seed_rng({.seed = seed, .rank = rank, .step = step}, at::kCPU);
        drawn.insert(draw());
      }
    }
  }
  EXPECT_EQ(drawn.size(), 27U);
  seed_rng({.seed = 42, .rank = 2, .step = 2}, at::kCPU);
  EXPECT_TRUE(drawn.contains(draw()));
}

}  // namespace
}  // namespace lockstep
