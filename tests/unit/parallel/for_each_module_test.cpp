#include "parallel/for_each_module.h"

#include <cstddef>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>

namespace lockstep {
namespace {

std::vector<at::Tensor> buffers_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> buffers;
  for_each_module(module, [&](const torch::nn::Module& part, const auto&) {
    for (const at::Tensor& buffer : part.buffers(/*recurse=*/false)) {
      buffers.push_back(buffer);
    }
  });
  return buffers;
}

void expect_as_with_names(const torch::nn::Module& module) {
  const std::vector<at::Tensor> found = buffers_of(module);
  const std::vector<at::Tensor> expected = module.buffers();
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(found[i].is_same(expected[i])) << i;
  }
}

// The order in which buffers are sent is the same with names and without.
TEST(ForEachModule, VisitsPartsInTheOrderOfTheirNames) {
  torch::nn::BatchNorm1d shared(4);
  torch::nn::ModuleList whole;
  for (int i = 0; i < 3; ++i) {
    torch::nn::ModuleList block;
    block->push_back(torch::nn::Linear(4, 4));
    block->push_back(shared);
    block->push_back(torch::nn::BatchNorm1d(4));
    whole->push_back(block);
  }
  expect_as_with_names(*whole);
  EXPECT_EQ(buffers_of(*whole).size(), 18U) << "control: a part that is registered three times is visited three times";

  const auto named = whole->named_modules();
  std::size_t next = 0;
  for_each_module(*whole, [&](const torch::nn::Module& part, const std::shared_ptr<torch::nn::Module>& pointer) {
    EXPECT_EQ(&part, named[next].value().get());
    EXPECT_EQ(pointer.get(), next == 0 ? nullptr : &part);
    ++next;
  });
  EXPECT_EQ(next, named.size());
}

TEST(ForEachModule, SeesBuffersThatAreReplacedOrAddedLater) {
  torch::nn::ModuleList whole;
  torch::nn::BatchNorm1d norm(4);
  whole->push_back(norm);
  whole->push_back(torch::nn::Linear(4, 4));
  expect_as_with_names(*whole);
  norm->running_mean = norm->named_buffers()["running_mean"] = at::ones({4});
  whole->register_buffer("mask", at::zeros({2}));
  whole->push_back(torch::nn::BatchNorm1d(2));
  expect_as_with_names(*whole);
  EXPECT_EQ(buffers_of(*whole).size(), 7U);
}

TEST(ForEachModule, NeedsNoSharedPointerToTheWhole) {
  const torch::nn::BatchNorm1dImpl norm(4);
  EXPECT_EQ(buffers_of(norm).size(), 3U);
}

}  // namespace
}  // namespace lockstep
