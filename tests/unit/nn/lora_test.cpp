#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/checkpoint/module_state.h>
#include <lockstep/nn/freezing.h>
#include <lockstep/nn/lora.h>
#include <lockstep/tensor/tensor_file.h>
#include <lockstep/trainer/callbacks.h>

#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

template <class Layer>
struct BlockImpl : torch::nn::Cloneable<BlockImpl<Layer>> {
  BlockImpl() { reset(); }
  void reset() override {
    first = this->register_module("first", Layer(4, 6));
    second = this->register_module("second", Layer(6, 1));
  }
  at::Tensor forward(const at::Tensor& x) { return second(at::tanh(first(x))); }
  Layer first{nullptr}, second{nullptr};
};
using PlainBlock = BlockImpl<torch::nn::Linear>;
using Block = BlockImpl<LoraLinear>;

template <class Net>
std::shared_ptr<Net> seeded() {
  at::manual_seed(7);
  return std::make_shared<Net>();
}

at::Tensor input() { return at::sin(at::arange(20, at::kFloat)).view({5, 4}); }

/// An adapter that changes something.
std::shared_ptr<Block> adapted(const LoraOptions& settings = {.rank = 2}) {
  auto net = seeded<Block>();
  add_lora(*net, settings);
  const at::NoGradGuard no_grad;
  net->first->lora_b.fill_(0.3);
  return net;
}

std::vector<std::string> trained_names(const torch::nn::Module& module) {
  std::vector<std::string> trained;
  for (const auto& item : module.named_parameters()) {
    if (item.value().requires_grad()) {
      trained.push_back(item.key());
    }
  }
  return trained;
}

TEST(LoraLinear, WithoutAnAdapterIsALinear) {
  const auto plain = seeded<PlainBlock>();
  const auto ours = seeded<Block>();
  expect_equal(module_tensors(*ours), module_tensors(*plain));
  EXPECT_TRUE(at::equal(ours->forward(input()), plain->forward(input())));
  at::manual_seed(8);
  const Block other;  // control
  EXPECT_FALSE(at::equal(other.first->weight, plain->first->weight));
  EXPECT_EQ(load_module(*std::make_shared<Block>(), module_tensors(*plain)).loaded.size(), 4U);
}

TEST(AddLora, ChangesNoOutputAtFirst) {
  const auto net = seeded<Block>();
  const at::Tensor before = net->forward(input());
  EXPECT_EQ(add_lora(*net, {.rank = 2, .select = "f*"}), 1U);
  EXPECT_TRUE(at::equal(net->forward(input()), before));
  EXPECT_THAT(names(lora_tensors(*net)), ElementsAre("first.lora_a", "first.lora_b"));
  EXPECT_FALSE(at::equal(adapted()->forward(input()), before));  // control
}

TEST(AddLora, FreezesAllOtherParameters) {
  const auto net = adapted({.rank = 2, .select = "first"});
  unfreeze(*net, "second.bias");
  EXPECT_THAT(trained_names(*net), ElementsAre("first.lora_a", "first.lora_b", "second.bias"));
}

TEST(AddLora, KeepsEarlierAdaptersTrained) {
  const auto net = adapted({.rank = 2, .select = "first"});
  freeze(*net, "first.lora_b");
  add_lora(*net, {.rank = 3, .select = "second"});
  EXPECT_THAT(trained_names(*net), ElementsAre("first.lora_a", "second.lora_a", "second.lora_b"));
}

TEST(AddLora, RefusesWhatItCannotAdapt) {
  const auto net = seeded<Block>();
  EXPECT_THAT(message_of([&] { add_lora(*net, {.select = "third"}); }),
              AllOf(HasSubstr("'third' selects no LoraLinear"), HasSubstr("first, second")));
  EXPECT_THAT(message_of([&] { add_lora(*net, {.rank = 0, .alpha = 0, .dropout = 1}); }),
              AllOf(HasSubstr("rank is 0, expected 1 or more"), HasSubstr("alpha is 0, expected more than 0"),
                    HasSubstr("dropout is 1, expected 0 or more and less than 1")));
  EXPECT_TRUE(net->first->weight.requires_grad()) << "a refusal changes nothing";
  add_lora(*net, {.select = "first"});
  EXPECT_THAT(message_of([&] { add_lora(*net); }), HasSubstr("first has an adapter already"));
  EXPECT_THAT(message_of([&] { add_lora(*seeded<PlainBlock>()); }), HasSubstr("the module has no LoraLinear"));
}

TEST(MergeLora, KeepsTheOutputAndRemovesTheAdapters) {
  const auto net = adapted({.rank = 2, .alpha = 3});
  net->to(at::kDouble);
  const at::Tensor x = input().to(at::kDouble);
  const at::Tensor before = net->forward(x);
  const at::Tensor weight = net->first->weight.clone();
  EXPECT_EQ(merge_lora(*net), 2U);
  EXPECT_TRUE(at::allclose(net->forward(x), before, 1e-14, 1e-14));
  EXPECT_FALSE(at::equal(net->first->weight, weight));  // control
  EXPECT_THAT(names(module_tensors(*net)), ElementsAre("first.weight", "first.bias", "second.weight", "second.bias"));
  EXPECT_EQ(merge_lora(*net), 0U);
  EXPECT_EQ(add_lora(*net), 2U) << "a merged model takes another adapter";
}

TEST(LoraLinear, TheAdapterOfAHalfPrecisionWeightIsFp32) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const auto net = seeded<Block>();
    net->to(dtype);
    add_lora(*net, {.rank = 2});
    EXPECT_EQ(net->first->lora_a.scalar_type(), at::kFloat);
    {
      const at::NoGradGuard no_grad;
      net->first->lora_b.fill_(0.3);
    }
    const at::Tensor before = net->forward(input().to(dtype));
    EXPECT_EQ(before.scalar_type(), dtype);
    before.sum().backward();
    EXPECT_EQ(net->first->lora_b.grad().scalar_type(), at::kFloat);
    merge_lora(*net);
    EXPECT_EQ(net->first->weight.scalar_type(), dtype);
    EXPECT_TRUE(at::allclose(net->forward(input().to(dtype)), before, 0.02, 0.02));
  }
}

TEST(LoraTensors, AreSavedAndLoadedAlone) {
  const TempDir dir;
  const auto net = adapted();
  save_tensors(dir.path() / "adapter.safetensors", lora_tensors(*net));
  const auto other = seeded<Block>();
  EXPECT_THAT(message_of([&] { load_lora(*other, load_tensors(dir.path() / "adapter.safetensors")); }),
              AllOf(HasSubstr("4 unexpected"), HasSubstr("call add_lora() first")));
  add_lora(*other, {.rank = 2});
  EXPECT_FALSE(at::equal(other->forward(input()), net->forward(input())));  // control
  load_lora(*other, load_tensors(dir.path() / "adapter.safetensors"));
  EXPECT_TRUE(at::equal(other->forward(input()), net->forward(input())));

  NamedTensors rounded = copies(lora_tensors(*net));
  for (auto& [name, tensor] : rounded) {
    tensor = tensor.to(at::kBFloat16);
  }
  load_lora(*other, rounded);
  EXPECT_EQ(other->first->lora_a.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(other->first->lora_a, rounded.front().second.to(at::kFloat)));

  const auto larger = seeded<Block>();
  add_lora(*larger, {.rank = 3});
  EXPECT_THAT(message_of([&] { load_lora(*larger, lora_tensors(*net)); }),
              HasSubstr("first.lora_a is Float [2, 4], expected Float [3, 4]"));
}

TEST(LoraLinear, DropsInputsOfTheAdapterInTrainingOnly) {
  const auto net = adapted({.rank = 2, .dropout = 0.5});
  EXPECT_FALSE(at::equal(net->forward(input()), net->forward(input())));
  net->eval();
  EXPECT_TRUE(at::equal(net->forward(input()), net->forward(input())));
  const auto plain = adapted();
  EXPECT_TRUE(at::equal(net->forward(input()), plain->forward(input())));
}

TEST(LoraLinear, IsClonedWithItsAdapter) {
  const auto net = adapted();
  const auto copy = std::dynamic_pointer_cast<Block>(net->clone());
  expect_equal(module_tensors(*copy), module_tensors(*net));
  EXPECT_TRUE(at::equal(copy->forward(input()), net->forward(input())));
  EXPECT_FALSE(copy->first->lora_a.is_alias_of(net->first->lora_a));
}

class LoraTask : public Task {
 public:
  explicit LoraTask(double dropout) {
    add_lora(*net_, {.rank = 2, .dropout = dropout});
    const at::NoGradGuard no_grad;
    for (auto& parameter : net_->parameters()) {
      parameter.copy_(at::cos(at::arange(parameter.numel(), at::kFloat)).view(parameter.sizes()) * 0.3);
    }
  }
  torch::nn::Module& module() override { return *net_; }
  std::vector<OptimizerSpec> optimizers() override { return {adamw({.lr = 0.02})}; }
  StepOutput training_step(const Batch& batch) override {
    return at::mse_loss(net_->forward(batch.input), batch.target);
  }

 private:
  std::shared_ptr<Block> net_ = std::make_shared<Block>();
};

/// The parameters after a training.
NamedTensors train(World& world, TrainConfig config, LoraTask task = LoraTask(0)) {
  config.global_batch_size = 4;
  config.batch_size = 4 / world.size();
  const Plan plan = plan_for(world.size(), config);
  DataLoader data(tiny_data(23), plan.loader, world);
  Trainer(plan, world).fit(task, data);
  return copies(module_tensors(task.module()));
}

TEST(LoraTraining, ChangesAdaptersOnlyAndAgreesOnRanks) {
  TrainConfig config = in_memory({.max_epochs = 2});
  config.precision = Precision::fp64;
  NamedTensors one;
  thread_world(1, [&](World& world) { one = train(world, config); });
  LoraTask untrained(0);
  untrained.module().to(at::kDouble);
  for (const auto& [name, tensor] : module_tensors(untrained.module())) {
    const auto found = std::find_if(one.begin(), one.end(), [&](const auto& entry) { return entry.first == name; });
    EXPECT_EQ(at::equal(found->second, tensor), name.find("lora") == std::string::npos) << name;
  }
  thread_world(2, [&](World& world) {
    const NamedTensors two = train(world, config);
    ASSERT_EQ(names(two), names(one));
    for (std::size_t i = 0; i < one.size(); ++i) {
      EXPECT_TRUE(at::allclose(two[i].second, one[i].second, 1e-10, 1e-10)) << one[i].first;
    }
  });
}

// A bias beside them is trained in half precision, so the gradients have two dtypes.
TEST(LoraTraining, KeepsAdaptersInFp32WhereThePrecisionIsHalf) {
  TrainConfig config = in_memory({.max_epochs = 2});
  config.precision = Precision::bf16;
  config.optim.max_grad_norm = 1;
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      LoraTask task(0);
      unfreeze(task.module(), "second.bias");
      for (const auto& [name, tensor] : train(world, config, task)) {
        const bool is_adapter = name.find("lora") != std::string::npos;
        EXPECT_EQ(tensor.scalar_type(), is_adapter ? at::kFloat : at::kBFloat16) << name;
        EXPECT_EQ(at::equal(tensor, tensor.to(at::kBFloat16).to(tensor.scalar_type())), !is_adapter)
            << name << ": its values have more digits than half precision";
      }
    });
  }
}

TEST(LoraTraining, AResumedRunHasTheBytesOfTheUndisturbedOne) {
  for (const auto& [ranks, precision] :
       {std::pair(1, Precision::fp32), std::pair(2, Precision::fp32), std::pair(2, Precision::bf16)}) {
    const TempDir dir;
    TrainConfig config = in_memory({.max_epochs = 2});
    config.precision = precision;
    NamedTensors straight;
    NamedTensors resumed;
    const auto run = [&](NamedTensors& result) {
      thread_world(ranks, [&](World& world) {
        // The ranks of this test share a random generator.
        const NamedTensors found = train(world, config, LoraTask(/*dropout=*/ranks == 1 ? 0.3 : 0));
        if (world.is_main()) {
          result = found;
        }
      });
    };
    run(straight);
    config.run_dir = (dir.path() / "run").string();
    config.checkpoint.enabled = true;
    for (const std::int64_t steps : {7, 0}) {
      config.max_steps = steps;
      run(resumed);
    }
    expect_equal(resumed, straight);
  }
}

}  // namespace
}  // namespace lockstep
