#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/tensor/named_tensors.h>

#include "support/message_of.h"

namespace lockstep {
namespace {

TEST(NamedTensors, AreFoundByName) {
  const NamedTensors results{{"ids", at::arange(3)}, {"output", at::ones({3, 2})}};
  EXPECT_TRUE(tensor_of(results, "output").is_same(results[1].second));
  EXPECT_EQ(message_of([&] { tensor_of(results, "outputs"); }), "found no tensor 'outputs' | use one of ids, output");
  EXPECT_EQ(message_of([] { tensor_of({}, "ids"); }), "found no tensor 'ids' | there are none");
}

}  // namespace
}  // namespace lockstep
