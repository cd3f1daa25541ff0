#include <any>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/data/batch.h>

#include "support/message_of.h"

namespace lockstep {
namespace {

using testing::StartsWith;

Batch sample_batch() {
  return {.input = at::ones({2, 3}),
          .target = at::zeros({2}),
          .fields = {{"mask", at::ones({2})}, {"meta.length", at::arange(2)}},
          .extra = std::string("kept"),
          .ids = {4, 9},
          .samples = 2};
}

TEST(Batch, FindsFieldsByName) {
  const Batch batch = sample_batch();
  EXPECT_TRUE(batch.has("meta.length"));
  EXPECT_FALSE(batch.has("meta"));
  EXPECT_EQ(batch["meta.length"].data_ptr(), batch.fields[1].second.data_ptr());
}

TEST(Batch, NamesItsFieldsWhenOneIsMissing) {
  const auto message = [](const Batch& batch) {
    return message_of<DataError>([&] { static_cast<void>(batch["maks"]); });
  };
  EXPECT_THAT(message(sample_batch()), StartsWith("batch: found no field 'maks' | use one of mask, meta.length; "));
  EXPECT_THAT(message(Batch{}), StartsWith("batch: found no field 'maks' | there are none; "));
}

TEST(Batch, SharesTensorsThatAreOnTheDeviceAlready) {
  const Batch batch = sample_batch();
  const Batch moved = batch.to(at::kCPU);
  EXPECT_EQ(moved.input.data_ptr(), batch.input.data_ptr());
  EXPECT_EQ(moved["mask"].data_ptr(), batch["mask"].data_ptr());
  EXPECT_FALSE(moved.weight.defined());
}

TEST(Batch, MovesEveryTensorAndKeepsTheRest) {
  Batch batch = sample_batch();
  batch.weight = at::ones({2});
  const Batch moved = batch.to(at::kMeta);  // a device that every build has
  for (const at::Tensor& tensor : {moved.input, moved.target, moved.weight, moved["mask"], moved["meta.length"]}) {
    EXPECT_TRUE(tensor.is_meta());
  }
  EXPECT_TRUE(batch.input.is_cpu());
  EXPECT_EQ(moved["meta.length"].scalar_type(), at::kLong);
  EXPECT_THAT(moved.ids, testing::ElementsAre(4, 9));
  EXPECT_EQ(moved.samples, 2);
  EXPECT_EQ(std::any_cast<std::string>(moved.extra), "kept");
}

}  // namespace
}  // namespace lockstep
