#include "tensor/replaced_values.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace lockstep {
namespace {

TEST(ReplacedValues, AreThereWhileTheObjectExists) {
  const at::Tensor a = at::ones({2});
  {
    const ReplacedValues scope({{a, at::full({2}, 3, at::kDouble)}});
    EXPECT_TRUE(at::equal(a, at::full({2}, 3.0F)));
  }
  EXPECT_TRUE(at::equal(a, at::ones({2})));
}

// As a device without memory for one of them.
TEST(ReplacedValues, ReplaceNothingIfOneCannotBeMade) {
  const at::Tensor a = at::ones({2});
  const at::Tensor b = at::ones({2});
  EXPECT_ANY_THROW(ReplacedValues({{a, at::zeros({2})}, {b, at::Tensor()}}));
  EXPECT_TRUE(at::equal(a, at::ones({2})));
  EXPECT_TRUE(at::equal(b, at::ones({2})));
}

}  // namespace
}  // namespace lockstep
