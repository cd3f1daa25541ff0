#include "parallel/tensor_digest.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

namespace lockstep {
namespace {

at::ScalarType integer_of(std::int64_t bytes) {
  return bytes == 8 ? at::kLong : bytes == 4 ? at::kInt : bytes == 2 ? at::kShort : at::kByte;
}

at::Tensor digest_by_operations(const at::Tensor& tensor) {
  const auto reals = tensor.is_complex() ? at::view_as_real(tensor) : tensor;
  return reals.view(integer_of(reals.element_size())).to(at::kLong).sum();
}

TEST(TensorDigest, IsTheSumOfTheBitsInEveryDtypeAndLayout) {
  const auto numbers = at::sin(at::arange(64 * 60, at::kFloat)) * 100;
  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong,
        at::kBool, at::kComplexFloat, at::kComplexDouble}) {
    const auto values = numbers.view({64, 60}).to(at::kInt).to(dtype);
    const std::vector<at::Tensor> layouts{values,
                                          values.t(),
                                          values.slice(1, 3, 50),  // with gaps
                                          values.view({8, 8, 6, 10}).contiguous(at::MemoryFormat::ChannelsLast),
                                          values[0][1],
                                          at::zeros({0}, dtype)};
    for (const at::Tensor& tensor : layouts) {
      const auto found = digest_of(tensor);
      EXPECT_EQ(found.scalar_type(), at::kLong);
      EXPECT_EQ(found.dim(), 0);
      EXPECT_TRUE(at::equal(found, digest_by_operations(tensor))) << dtype << " of " << tensor.sizes();
    }
  }
}

TEST(TensorDigest, HasNoSmallerRangeThanItsSum) {
  for (const at::ScalarType dtype : {at::kInt, at::kShort}) {
    const std::int64_t largest = dtype == at::kInt ? 0x7fffffff : 0x7fff;
    EXPECT_EQ(digest_of(at::full({100'000}, largest, dtype)).item<std::int64_t>(), largest * 100'000);
    EXPECT_EQ(digest_of(at::full({100'000}, -largest, dtype)).item<std::int64_t>(), -largest * 100'000);
  }
}

TEST(TensorDigest, SeesEveryBit) {
  const auto values = at::sin(at::arange(1001, at::kFloat));
  const auto before = digest_of(values);
  for (const std::int64_t index : {0, 500, 1000}) {
    const auto changed = values.clone();
    changed.view(at::kInt)[index].bitwise_xor_(1);
    EXPECT_FALSE(at::equal(digest_of(changed), before)) << index;
  }
}

}  // namespace
}  // namespace lockstep
