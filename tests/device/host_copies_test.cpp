#include "checkpoint/host_copies.h"

#include <cstdint>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "device/simulated_device.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kSeeds = 30;

/// A model of three tensors on the device and a number on the host.
struct Model {
  at::Tensor weight = at::zeros({5, 3}, at::device(simulated::device()));
  at::Tensor transposed = at::zeros({4, 7}, at::device(simulated::device())).t();
  at::Tensor count = at::zeros({}, at::device(simulated::device()).dtype(at::kLong));
  at::Tensor on_host = at::zeros({2});

  void step() {
    for (const at::Tensor& tensor : {weight, transposed, count}) {
      simulated::launch([to = simulated::raw(tensor)] { to.add_(1); });
    }
    on_host.add_(1);
  }
  CheckpointContents contents() const {
    return {.tensors = {{"model", {{"weight", weight}, {"transposed", transposed}}},
                        {"optimizer", {{"count", count}, {"on_host", on_host}}}}};
  }
};

bool all_are(const CheckpointContents& copies, double value) {
  bool right = copies.tensors.size() == 2;
  for (const auto& [file, tensors] : copies.tensors) {
    for (const auto& [name, tensor] : tensors) {
      right = right && tensor.is_cpu() && tensor.is_contiguous() && at::all(tensor == value).item<bool>();
    }
  }
  return right;
}

TEST(HostCopiesOnASimulatedDevice, AreTheStateOfTheirMoment) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    simulated::begin(seed);
    Model model;
    HostCopies copies;
    for (int save = 1; save <= 3; ++save) {
      model.step();
      const CheckpointContents& taken = copies.take(model.contents());
      model.step();  // while the files are written
      simulated::finish();
      EXPECT_TRUE(all_are(taken, 2 * save - 1)) << "seed " << seed << " save " << save;
    }
  }
}

TEST(HostCopiesOnASimulatedDevice, WaitOnceAndKeepTheirMemory) {
  simulated::begin(0);
  Model model;
  HostCopies copies;
  const auto* memory = copies.take(model.contents()).tensors.at("model")[0].second.const_data_ptr();
  EXPECT_EQ(simulated::host_waits(), 1);
  EXPECT_EQ(copies.take(model.contents()).tensors.at("model")[0].second.const_data_ptr(), memory);
  EXPECT_GT(simulated::pinned_bytes(), 0);
  EXPECT_LE(simulated::pinned_bytes(), 256) << "three tensors of 60, 112 and 8 bytes, each aligned to 64";

  model.weight = at::ones({50, 3}, at::device(simulated::device()));
  const CheckpointContents& other = copies.take(model.contents());
  EXPECT_EQ(other.tensors.at("model")[0].second.sizes(), model.weight.sizes());
  EXPECT_EQ(other.tensors.at("model")[0].second.sum().item<float>(), 150);
}

TEST(HostCopiesOnASimulatedDevice, AreCheckedByADeviceThatNoticesAMissingWait) {
  int wrong = 0;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    simulated::begin(seed);
    Model model;
    model.step();
    const at::Tensor copy = at::empty({5, 3}, at::TensorOptions().pinned_memory(true));
    copy.copy_(model.weight, /*non_blocking=*/true);
    wrong += at::all(copy == 1).item<bool>() ? 0 : 1;
    simulated::finish();
  }
  EXPECT_GT(wrong, 0);
}

std::int64_t sum(const std::vector<std::int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
}

TEST(PinnedLayout, HasLittleUnusedSpace) {
  constexpr std::int64_t kMiB = 1 << 20;
  // As of GPT-2 with AdamW: an embedding of 147 MiB, layers of 27 MiB in four matrices, three copies of each.
  std::vector<std::int64_t> sizes;
  for (int copy = 0; copy < 3; ++copy) {
    sizes.push_back(147 * kMiB);
    for (int layer = 0; layer < 12; ++layer) {
      sizes.insert(sizes.end(), {9 * kMiB, 9 * kMiB, 27 * kMiB / 4, 9 * kMiB / 4, 3072, 3072, 3072, 12288});
    }
  }
  const PinnedLayout layout = pack_pinned(sizes);
  EXPECT_LT(static_cast<double>(sum(layout.blocks)), 1.15 * static_cast<double>(sum(sizes)));
  EXPECT_EQ(sum(pack_pinned(std::vector<std::int64_t>(3, 154 * kMiB)).blocks), 512 * kMiB) << "not 3 times 256";
}

TEST(PinnedLayout, HasAPlaceForEachTensor) {
  const std::vector<std::vector<std::int64_t>> cases{
      {}, {1}, {64}, {65}, {1, 1, 1}, {1 << 20, 1, 3 << 19, 7}, {100, 200, 300, 400, 500, 600, 700}};
  for (const auto& sizes : cases) {
    const PinnedLayout layout = pack_pinned(sizes);
    ASSERT_EQ(layout.places.size(), sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const auto& place = layout.places[i];
      EXPECT_EQ(place.offset % 64, 0);
      EXPECT_LE(place.offset + sizes[i], layout.blocks.at(place.block));
      for (std::size_t j = 0; j < i; ++j) {
        const auto& other = layout.places[j];
        EXPECT_TRUE(place.block != other.block || place.offset >= other.offset + sizes[j] ||
                    other.offset >= place.offset + sizes[i]);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
