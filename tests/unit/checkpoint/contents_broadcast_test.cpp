#include "checkpoint/contents_broadcast.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "support/tensors.h"
#include "support/thread_world.h"

namespace lockstep {
namespace {

// Also what no file can hold: a rollback sends the state of callbacks.
TEST(ContentsBroadcast, SendsTensorsOfEachDtypeShapeAndName) {
  const NamedTensors sent{
      {"waves", at::full({2, 3}, c10::complex<double>(1, 2), at::kComplexDouble).t()},
      {"caf\xe9", at::arange(4, at::kHalf)},  // Latin-1, not UTF-8
      {"flags", at::arange(3).gt(1)},
      {"number", at::scalar_tensor(7, at::kLong)},
      {"nothing", at::empty({0, 5})},
      {"expanded", at::ones({1}).expand({4})},
  };
  thread_world(3, [&](World& world) {
    StoredContents contents;
    if (world.rank() == 1) {
      contents.contents.tensors["callbacks"] = sent;
    }
    broadcast_contents(world, /*source=*/1, contents);
    const NamedTensors& found = contents.contents.tensors["callbacks"];
    ASSERT_TRUE(are_equal(found, sent)) << "rank " << world.rank();
    for (std::size_t i = 0; i < sent.size(); ++i) {
      EXPECT_EQ(found[i].second.scalar_type(), sent[i].second.scalar_type()) << sent[i].first;
      EXPECT_EQ(found[i].second.sizes(), sent[i].second.sizes()) << sent[i].first;
    }
  });
}

}  // namespace
}  // namespace lockstep
