#include <cstdint>
#include <stdexcept>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <lockstep/world/world.h>

#include "device/simulated_device.h"
#include "world/rank_device.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

TEST(WaitForTheDevice, EndsWithTheWorkOfTheCurrentStream) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    simulated::begin(seed);
    const World world = World::single(simulated::device());
    const at::Tensor value = at::zeros({1}, at::device(simulated::device()));
    for (int i = 0; i < 20; ++i) {
      simulated::launch([to = simulated::raw(value)] { to.add_(1); });
    }
    EXPECT_EQ(WorldAccess::on_host(world, value).item<float>(), 20) << "seed " << seed;
  }
}

TEST(WithIndex, IsTheCurrentDeviceAsForTensors) {
  simulated::begin(0);
  const c10::Device any(simulated::device().type());
  for (const int index : {0, 1}) {
    const c10::DeviceGuard guard(simulated::device(index));
    EXPECT_EQ(with_index(any), at::zeros({1}, at::device(any)).device());
    EXPECT_EQ(with_index(any), simulated::device(index));
    EXPECT_EQ(with_index(simulated::device(1)), simulated::device(1));
  }
}

// NCCL's kernels wait for a lost peer for as long as nobody aborts them.
TEST(WaitForTheDevice, EndsWithAFailureThoughTheDeviceStillWaits) {
  simulated::begin(0);
  const c10::impl::VirtualGuardImpl guard(simulated::device().type());
  const c10::Stream other = guard.getNewStream(simulated::device());
  c10::Event never(other.device_type());
  simulated::hold(other);
  never.record(other);
  int looks = 0;
  EXPECT_THROW(wait_for_event(never,
                              [&] {
                                if (++looks == 5) {
                                  throw std::runtime_error("a collective failed");
                                }
                              }),
               std::runtime_error);
  EXPECT_EQ(looks, 5);
}

}  // namespace
}  // namespace lockstep
