#include "parallel/lane_sums.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "device/simulated_device.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kSeeds = 30;
constexpr int kSteps = 10;

/// As LaneSums in late mode, but reads what has arrived so far.
class Impatient {
 public:
  void begin_step() {
    if (added_) {
      host_.copy_(sums_, /*non_blocking=*/true);
    }
  }
  void add(const at::Tensor& lane) {
    sums_.copy_(lane);
    added_ = true;
  }
  std::vector<float> read() { return {host_[0].item<float>(), host_[1].item<float>()}; }

 private:
  at::Tensor sums_ = at::zeros({2}, at::device(simulated::device()));
  at::Tensor host_ = at::zeros({2}).pin_memory();
  bool added_ = false;
};

/// A lane that the device fills when it comes to it.
at::Tensor lane(float first, float second) {
  at::Tensor values = at::empty({2}, at::device(simulated::device()));
  simulated::launch([to = simulated::raw(values), first, second] {
    to[0] = first;
    to[1] = second;
  });
  return values;
}

/// Whether each step reads what the reductions of the step before have added.
template <class Sums>
bool reads_the_step_before(Sums& sums) {
  std::vector<float> before{0, 0};
  bool right = true;
  for (int step = 0; step < kSteps; ++step) {
    sums.begin_step();
    const auto number = static_cast<float>(step + 1);
    sums.add(lane(number, 1));
    const std::vector<float> found = sums.read();
    right = right && found == before;
    before = {number, 1};
  }
  return right;
}

TEST(LaneSumsOnASimulatedDevice, AreThoseOfTheStepBefore) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    simulated::begin(seed);
    LaneSums sums(2, simulated::device(), /*late=*/true);
    EXPECT_TRUE(reads_the_step_before(sums)) << "seed " << seed;
  }
}

TEST(LaneSumsOnASimulatedDevice, AddTheLanesOfAllOptimizers) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    simulated::begin(seed);
    LaneSums sums(2, simulated::device(), /*late=*/true);
    sums.begin_step();
    sums.add(lane(1, 0));
    sums.add(lane(0, 2));
    sums.begin_step();
    EXPECT_EQ(sums.read(), std::vector<float>({1, 2})) << "seed " << seed;
    sums.begin_step();
    EXPECT_EQ(sums.read(), std::vector<float>({0, 0})) << "seed " << seed;
  }
}

TEST(LaneSumsOnASimulatedDevice, LetTheHostWaitOnceAStep) {
  simulated::begin(0);
  LaneSums sums(2, simulated::device(), /*late=*/true);
  reads_the_step_before(sums);
  EXPECT_LE(simulated::host_waits(), kSteps);
}

TEST(LaneSumsOnASimulatedDevice, AreCheckedByADeviceThatNoticesAMissingWait) {
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    simulated::begin(seed);
    Impatient sums;
    wrong += reads_the_step_before(sums) ? 0 : 1;
  }
  EXPECT_GT(wrong, 0);
}

}  // namespace
}  // namespace lockstep
