#include "optim/grad_norm.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/utils/clip_grad.h>

#include "base/mapped.h"

namespace lockstep {
namespace {

std::vector<at::Tensor> parameters_with_gradients() {
  std::vector<at::Tensor> parameters{at::ones({3, 2}), at::ones({4}), at::ones({})};
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() = at::full_like(parameters[i], static_cast<double>(i) + 1.5);
  }
  return parameters;
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  return mapped(parameters, [](const at::Tensor& parameter) { return parameter.grad(); });
}

TEST(GlobalNorm, IsTheNormOfAllValuesTogether) {
  const std::vector<at::Tensor> gradients{at::full({2, 2}, 2.0), at::full({1}, 3.0), at::zeros({0})};
  const at::Tensor norm = global_norm(gradients, at::kCPU);
  EXPECT_EQ(norm.dim(), 0);
  EXPECT_EQ(norm.scalar_type(), at::kFloat);
  EXPECT_FLOAT_EQ(norm.item<float>(), 5);
}

TEST(GlobalNorm, IsZeroWithoutGradientsOnTheDevice) {
  EXPECT_EQ(global_norm({}, at::kCPU).item<float>(), 0);
  EXPECT_EQ(global_norm({}, at::kMeta).device(), at::kMeta);
}

TEST(GlobalNorm, SumsHalfTypesInFloat) {
  // 300^2 is beyond half's range; 4097 ones are not countable in bfloat16.
  EXPECT_NEAR(global_norm(std::vector{at::full({4}, 300, at::kHalf)}, at::kCPU).item<double>(), 600, 1e-3);
  EXPECT_NEAR(global_norm(std::vector{at::ones({4097}, at::kBFloat16)}, at::kCPU).item<double>(), std::sqrt(4097.0),
              1e-4);
  EXPECT_NEAR(global_norm(std::vector{at::ones({4}, at::kDouble), at::ones({5}, at::kHalf)}, at::kCPU).item<double>(),
              3, 1e-6);
}

// Long enough for several chunks; a channels-last gradient lies differently in memory.
TEST(GlobalNorm, OfAnyLayoutAndThreadsIsThatOfDoubles) {
  at::manual_seed(3);
  const std::vector<at::Tensor> gradients{
      at::randn({70001}), at::randn({33, 7, 20, 30}).contiguous(at::MemoryFormat::ChannelsLast), at::randn({5, 3})};
  double squares = 0;
  for (const at::Tensor& gradient : gradients) {
    squares += gradient.to(at::kDouble).square().sum().item<double>();
  }
  const int threads = at::get_num_threads();
  const at::Tensor norm = global_norm(gradients, at::kCPU);
  at::set_num_threads(threads == 1 ? 2 : 1);
  EXPECT_TRUE(at::equal(global_norm(gradients, at::kCPU), norm)) << "the sum does not depend on the number of threads";
  EXPECT_NEAR(norm.item<double>(), std::sqrt(squares), 1e-4);
  const at::Tensor before = gradients[1].clone();
  scale_(gradients, at::full({}, 0.5f));
  EXPECT_NEAR(global_norm(gradients, at::kCPU).item<double>(), std::sqrt(squares) / 2, 1e-4);
  EXPECT_TRUE(at::equal(gradients[1], before / 2));
  at::set_num_threads(threads);
}

// Ones are counted exactly, so this is the number of elements, whatever the chunks.
TEST(GlobalNorm, ReadsAndScalesEveryElementOnce) {
  constexpr std::int64_t kChunk = 1 << 15;
  std::vector<at::Tensor> gradients;
  std::int64_t elements = 0;
  for (const std::int64_t size : {std::int64_t{0}, std::int64_t{1}, kChunk - 1, kChunk, kChunk + 1, std::int64_t{0},
                                  9 * kChunk + 17, std::int64_t{5}, std::int64_t{0}}) {
    gradients.push_back(at::ones({size}));
    elements += size;
    EXPECT_EQ(global_norm(gradients, at::kCPU).item<float>(), std::sqrt(static_cast<float>(elements))) << size;
  }
  const std::vector<at::Tensor> expected = mapped(gradients, [](const at::Tensor& ones) { return ones * 0.3F; });
  scale_(gradients, at::full({}, 0.3F));
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    EXPECT_TRUE(at::equal(gradients[i], expected[i])) << i;
  }
}

TEST(GlobalNorm, IsInfiniteBeyondTheRangeOfFloat) {
  const std::vector<at::Tensor> huge{at::full({4}, 3e38F)};
  const at::Tensor norm = global_norm(huge, at::kCPU);
  EXPECT_TRUE(std::isinf(norm.item<float>()));
  scale_(huge, clip_factor(norm, 1.0));  // as torch.nn.utils.clip_grad_norm_
  EXPECT_EQ(huge[0].abs().max().item<float>(), 0);
}

TEST(GlobalNorm, OfAViewWithGapsReadsNothingBetweenThem) {
  const at::Tensor all = at::full({4, 3}, 5.0F);
  const std::vector<at::Tensor> column{all.select(1, 1)};
  EXPECT_FLOAT_EQ(global_norm(column, at::kCPU).item<float>(), 10);
  scale_(column, at::full({}, 0.5F));
  EXPECT_EQ(all.sum().item<float>(), 50);
}

TEST(ClipFactor, ClipsAsTorchDoes) {
  for (const double max_norm : {0.5, 7.0, 1000.0}) {
    const auto ours = parameters_with_gradients();
    const auto theirs = parameters_with_gradients();
    const double expected_norm = torch::nn::utils::clip_grad_norm_(theirs, max_norm);

    const auto gradients = gradients_of(ours);
    const at::Tensor norm = global_norm(gradients, at::kCPU);
    scale_(gradients, clip_factor(norm, max_norm));
    EXPECT_NEAR(norm.item<double>(), expected_norm, 1e-5);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      EXPECT_TRUE(at::allclose(ours[i].grad(), theirs[i].grad(), 1e-6, 0)) << "max_norm " << max_norm;
    }
  }
}

TEST(ClipFactor, NeverEnlargesAndKeepsNotANumber) {
  EXPECT_EQ(clip_factor(at::full({}, 0.0f), 1.0).item<float>(), 1);
  EXPECT_EQ(clip_factor(at::full({}, 0.25f), 1.0).item<float>(), 1);
  EXPECT_TRUE(std::isnan(clip_factor(at::full({}, std::numeric_limits<float>::quiet_NaN()), 1.0).item<float>()));
}

TEST(Scale, KeepsEachDtype) {
  const std::vector<at::Tensor> tensors{at::ones({2}, at::kBFloat16), at::ones({2}), at::ones({2}, at::kDouble)};
  scale_(tensors, at::full({}, 0.5f));
  scale_({}, at::full({}, 0.5f));
  for (const at::Tensor& tensor : tensors) {
    EXPECT_EQ(tensor.sum().item<double>(), 1) << tensor.scalar_type();
  }
  EXPECT_EQ(tensors[0].scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace lockstep
