#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/tensor/named_tensors.h>

#include "support/message_of.h"
#include "tensor/prefixed.h"

namespace lockstep {
namespace {

TEST(NamedTensors, AreFoundByName) {
  const NamedTensors results{{"ids", at::arange(3)}, {"output", at::ones({3, 2})}};
  EXPECT_TRUE(tensor_of(results, "output").is_same(results[1].second));
  EXPECT_EQ(message_of([&] { tensor_of(results, "outputs"); }), "found no tensor 'outputs' | use one of ids, output");
  EXPECT_EQ(message_of([] { tensor_of({}, "ids"); }), "found no tensor 'ids' | there are none");
}

TEST(NamedTensors, OfOneOwnerHaveAPrefix) {
  NamedTensors all{{"mean.loss", at::zeros(1)}};
  append_with_prefix(all, "epoch.", NamedTensors{{"mean.loss", at::ones(1)}, {"", at::ones(2)}});
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[1].first, "epoch.mean.loss");
  const NamedTensors found = under_prefix(all, "epoch.");
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].first, "mean.loss");
  EXPECT_TRUE(found[0].second.is_same(all[1].second));
  EXPECT_EQ(found[1].first, "");
  EXPECT_EQ(under_prefix(all, "mean.").size(), 1U) << "a prefix stands at the begin of a name";
}

}  // namespace
}  // namespace lockstep
