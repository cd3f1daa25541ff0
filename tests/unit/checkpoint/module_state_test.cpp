#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/module_state.h>

#include "checkpoint/tied_names.h"
#include "support/message_of.h"
#include "support/tensors.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

/// A tied weight, two views of one storage, a buffer, an absent bias and a child that is really called "module".
struct Net : torch::nn::Module {
  explicit Net(float value) {
    const at::Tensor storage = at::full({6}, value);
    embed = register_parameter("embed", at::full({2, 3}, value));
    register_parameter("head", embed);
    register_parameter("left", storage.narrow(0, 0, 3));
    register_parameter("right", storage.narrow(0, 3, 3));
    register_parameter("bias", {}, /*requires_grad=*/false);
    count = register_buffer("count", at::full({}, static_cast<std::int64_t>(value), at::kLong));
    register_module("module", child);
    weight = child->register_parameter("weight", at::full({2}, value));
  }
  std::shared_ptr<torch::nn::Module> child = std::make_shared<torch::nn::Module>("child");
  at::Tensor embed, weight, count;
};

void expect_all(const torch::nn::Module& module, double value) {
  for (const auto& [name, tensor] : module_tensors(module)) {
    EXPECT_TRUE(at::all(tensor == value).item<bool>()) << name;
  }
}

TEST(ModuleTensors, NamesEachStorageOnce) {
  EXPECT_THAT(names(module_tensors(Net(1))), ElementsAre("embed", "left", "right", "module.weight", "count"));
}

TEST(ModuleTensors, HaveTheirOtherNamesApart) {
  EXPECT_THAT(tied_names(Net(1)), ElementsAre(testing::Pair("head", "embed")));
}

TEST(ModuleTensors, AreDetachedAliases) {
  const Net net(1);
  const NamedTensors tensors = module_tensors(net);
  EXPECT_FALSE(tensors[0].second.requires_grad());
  tensors[0].second.fill_(4);
  EXPECT_EQ(net.embed.sum().item<float>(), 24);
}

TEST(LoadModule, CopiesInPlace) {
  Net net(1);
  const at::Tensor before = net.embed;
  load_module(net, copies(module_tensors(Net(2))));
  expect_all(net, 2);
  EXPECT_TRUE(net.embed.is_same(before));
  EXPECT_TRUE(net.embed.requires_grad());
  EXPECT_EQ(net.count.item<std::int64_t>(), 2);
}

TEST(LoadModule, AcceptsEitherNameOfATiedWeight) {
  NamedTensors both = copies(module_tensors(Net(2)));
  both.emplace_back("head", both[0].second.clone());
  Net net(1);
  load_module(net, both);
  expect_all(net, 2);

  NamedTensors second = copies(module_tensors(Net(3)));
  second[0].first = "head";
  load_module(net, second);
  expect_all(net, 3);
}

TEST(LoadModule, RemovesThePrefixesOfPythonsWrappers) {
  for (const std::string prefix : {"module.", "_orig_mod.", "module._orig_mod."}) {
    Net net(1);
    load_module(net, rename(copies(module_tensors(Net(2))), [&](const std::string& name) { return prefix + name; }));
    expect_all(net, 2);
  }
}

TEST(LoadModule, ReportsMismatchesAndChangesNothing) {
  Net net(1);
  NamedTensors tensors = copies(module_tensors(Net(2)));
  tensors[0].second = at::zeros({3, 2});
  tensors[1].first = "middle";
  tensors[4].second = tensors[4].second.to(at::kInt);
  EXPECT_THAT([&] { load_module(net, tensors); },
              ThrowsMessage<CheckpointError>(
                  AllOf(HasSubstr("checkpoint does not match the model: 1 missing (left); 1 unexpected (middle)"),
                        HasSubstr("embed is Float [3, 2], expected Float [2, 3]"),
                        HasSubstr("count is Int [], expected Long []"), Not(HasSubstr("right")))));
  expect_all(net, 1);
}

TEST(LoadModule, NamesThePrefixThatAllNamesHave) {
  Net net(1);
  const NamedTensors given = copies(module_tensors(Net(2)));
  const auto with_prefix = [&](const std::string& prefix) {
    return rename(given, [&](const std::string& name) { return prefix + name; });
  };
  const auto hint = [&](const NamedTensors& tensors) {
    return error_of<CheckpointError>([&] { load_module(net, tensors); }).hint();
  };
  EXPECT_THAT(hint(with_prefix("model.")), HasSubstr("rename(tensors, without_prefix(\"model.\"))"));
  EXPECT_THAT(hint(with_prefix("net.model.")), HasSubstr("without_prefix(\"net.model.\")"));
  EXPECT_THAT(hint(with_prefix("x")), AllOf(HasSubstr("rename()"), Not(HasSubstr("allow_partial"))));
  load_module(net, rename(with_prefix("model."), without_prefix("model.")));
  expect_all(net, 2);
}

TEST(LoadModule, LoadsWhatMatchesWhenAllowed) {
  Net net(1);
  NamedTensors tensors = copies(module_tensors(Net(2)));
  tensors[0].second = at::zeros({3, 2});
  tensors[1].first = "middle";
  const LoadReport report = load_module(net, tensors, /*allow_partial=*/true);
  EXPECT_EQ(net.embed.sum().item<float>(), 6);
  EXPECT_EQ(net.weight.sum().item<float>(), 4);
  EXPECT_THAT(report.loaded, ElementsAre("right", "module.weight", "count"));
  EXPECT_THAT(report.missing, ElementsAre("left"));
  EXPECT_THAT(report.unexpected, ElementsAre("middle"));
  EXPECT_THAT(report.different, ElementsAre("embed is Float [3, 2], expected Float [2, 3]"));
}

TEST(LoadModule, ReportsWhatItLoaded) {
  Net net(1);
  const LoadReport report = load_module(net, copies(module_tensors(Net(2))));
  EXPECT_EQ(report.loaded, names(module_tensors(net)));
  EXPECT_TRUE(report.missing.empty() && report.unexpected.empty() && report.different.empty());
}

TEST(Rename, MapsNamesAndLeavesTensorsOut) {
  const NamedTensors tensors{{"model.a", at::ones({1})}, {"b", at::ones({2})}, {"model.c", at::ones({3})}};
  EXPECT_THAT(names(rename(tensors, without_prefix("model."))), ElementsAre("a", "b", "c"));
  const NamedTensors kept = rename(tensors, [](const std::string& name) { return name == "b" ? "" : name; });
  EXPECT_THAT(names(kept), ElementsAre("model.a", "model.c"));
  EXPECT_TRUE(kept[1].second.is_same(tensors[2].second));
  EXPECT_THAT([&] { static_cast<void>(rename(tensors, [](const std::string&) { return "same"; })); },
              ThrowsMessage<CheckpointError>(HasSubstr("found the new name same twice")));
}

}  // namespace
}  // namespace lockstep
