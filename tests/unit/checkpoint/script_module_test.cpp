#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/module_state.h>
#include <lockstep/checkpoint/script_module.h>
#include <lockstep/tensor/tensor_file.h>
#include <lockstep/trainer/trainer.h>

#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/runs.h"
#include "support/script_model.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class ScriptModules : public testing::Test {
 protected:
  void SetUp() override { write_script_model(file_); }

  TempDir dir_{};
  std::filesystem::path file_ = dir_.path() / "model.pt";
  at::Tensor input_ = waves({8, 4});
};

TEST_F(ScriptModules, HaveTheNamesOfPython) {
  const auto net = script_module(file_);
  EXPECT_THAT(names(module_tensors(*net)), ElementsAre("a.weight", "a.bias", "bn.weight", "bn.bias", "b.weight",
                                                       "b.bias", "bn.running_mean", "bn.running_var"));
  EXPECT_THAT(net->named_parameters().keys(),
              ElementsAre("a.weight", "a.bias", "bn.weight", "bn.bias", "b.weight", "b.bias"));
}

TEST_F(ScriptModules, ComputeWithTheTensorsThatTheModuleShows) {
  const auto net = script_module(file_);
  net->eval();
  const at::NoGradGuard no_grad;
  net->named_parameters()["b.weight"].zero_();
  net->named_parameters()["b.bias"].fill_(7);
  EXPECT_TRUE(at::equal(net->forward(input_), at::full({8, 1}, 7.0F)));
  EXPECT_TRUE(at::equal(net->call({input_}).toTensor(), at::full({8, 1}, 7.0F)));
}

TEST_F(ScriptModules, HaveTheModeOfEachPart) {
  const auto net = script_module(file_);
  const at::Tensor mean = net->named_buffers()["bn.running_mean"];
  net->forward(input_);
  const at::Tensor after_training = mean.clone();
  EXPECT_GT(after_training.abs().sum().item<float>(), 0) << "batch norm learns in training";
  net->eval();
  net->forward(input_);
  EXPECT_TRUE(at::equal(mean, after_training));
  net->train();
  net->named_children()["bn"]->eval();
  net->forward(input_);
  EXPECT_TRUE(at::equal(mean, after_training)) << "only the part is in evaluation mode";

  net->save(file_);
  const auto again = script_module(file_);
  EXPECT_TRUE(again->is_training());
  EXPECT_FALSE(again->named_children()["bn"]->is_training());
}

TEST_F(ScriptModules, ChangeTheirDtype) {
  const auto net = script_module(file_);
  const at::Tensor expected = net->forward(input_);
  net->to(at::kDouble);
  EXPECT_TRUE(at::allclose(net->forward(input_.to(at::kDouble)), expected.to(at::kDouble), 1e-5, 1e-6));
}

TEST_F(ScriptModules, GiveGradientsToTheTensorsThatTheModuleShows) {
  const auto net = script_module(file_);
  for (int i = 0; i < 4; ++i) {  // the third call runs optimized code
    net->zero_grad();
    net->forward(input_).sum().backward();
    for (const auto& parameter : net->named_parameters()) {
      EXPECT_TRUE(parameter.value().grad().defined()) << parameter.key();
    }
  }
}

TEST_F(ScriptModules, AreSavedWithTheWeightsOfNow) {
  const auto net = script_module(file_);
  NamedTensors weights = copies(module_tensors(*net));
  for (auto& [name, tensor] : weights) {
    tensor.add_(1);
  }
  EXPECT_EQ(load_module(*net, weights).loaded.size(), 8U);
  net->save(dir_.path() / "trained.pt");
  expect_equal(module_tensors(*script_module(dir_.path() / "trained.pt")), weights);
  net->eval();
  const auto again = script_module(dir_.path() / "trained.pt");
  again->eval();
  EXPECT_TRUE(at::equal(again->forward(input_), net->forward(input_)));
}

TEST_F(ScriptModules, TrainAlikeOnAnyNumberOfRanks) {
  std::vector<NamedTensors> trained;
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      const auto net = script_module(file_);
      net->named_children()["bn"]->eval();  // in training its statistics are those of a rank
      const Plan plan = plan_for(ranks, in_memory({.max_epochs = 3, .global_batch_size = 4}));
      DataLoader data(tensor_dataset(waves({10, 4}), waves({10, 1})), plan.loader, world);
      const auto task = make_task(
          net, [](const at::Tensor& y, const at::Tensor& target) { return at::mse_loss(y, target); },
          adamw({.lr = 0.01}));
      Trainer(plan, world).fit(*task, data);
      if (world.is_main()) {
        trained.push_back(copies(module_tensors(*net)));
      }
    });
  }
  ASSERT_EQ(trained.size(), 2U);
  for (std::size_t i = 0; i < trained[0].size(); ++i) {
    EXPECT_TRUE(at::allclose(trained[0][i].second, trained[1][i].second, 1e-5, 1e-6)) << trained[0][i].first;
  }
  EXPECT_FALSE(at::equal(trained[0][0].second, module_tensors(*script_module(file_))[0].second)) << "it was trained";
}

TEST_F(ScriptModules, ThatAreFrozenCanBeEvaluatedAndSayThatTheyCannotBeTrained) {
  torch::jit::Module script = torch::jit::load(file_.string());
  script.eval();
  torch::jit::freeze(script).save(file_.string());
  CapturedStderr captured;
  const auto net = script_module(file_);
  EXPECT_THAT(captured.text(), HasSubstr("model.pt: torch.jit.freeze() made its parameters constants"));
  EXPECT_THAT(net->parameters(), testing::IsEmpty());
  net->eval();
  EXPECT_TRUE(at::allclose(net->forward(input_), script.forward({input_}).toTensor()));
}

TEST_F(ScriptModules, SayNothingOfFreezingOtherwise) {
  torch::jit::Module plain("Plain");  // without parameters
  plain.register_attribute("training", c10::BoolType::get(), true);
  plain.define("def forward(self, x: Tensor) -> Tensor:\n  return torch.neg(x)\n");
  plain.save((dir_.path() / "plain.pt").string());
  CapturedStderr captured;
  script_module(file_);
  script_module(dir_.path() / "plain.pt");
  EXPECT_THAT(captured.text(), testing::Not(HasSubstr("freeze")));
}

TEST_F(ScriptModules, ReturnWhatIsNoTensorFromCall) {
  torch::jit::Module pair("Pair");
  pair.define("def forward(self, x: Tensor) -> Tuple[Tensor, int]:\n  return torch.neg(x), 3\n");
  ScriptModule net(pair);
  const auto result = net.call({input_}).toTuple();
  EXPECT_TRUE(at::equal(result->elements()[0].toTensor(), -input_));
  EXPECT_EQ(result->elements()[1].toInt(), 3);
  EXPECT_THAT(message_of([&] { net.forward({input_}); }),
              HasSubstr("the model returned a Tuple, expected a tensor | use call({input})"));
}

TEST_F(ScriptModules, RefuseOtherFiles) {
  const auto other = dir_.path() / "other.pt";
  EXPECT_THROW(script_module(other), IoError);
  std::filesystem::copy_file(std::filesystem::path(TORCH_SAVE_DIR) / "state_dict.pt", other);
  EXPECT_THAT(message_of<CheckpointError>([&] { script_module(other); }),
              AllOf(HasSubstr("other.pt: found no TorchScript model"), HasSubstr("torch.jit.script(model).save")));
  EXPECT_THAT(message_of<CheckpointError>([&] { load_tensors(file_); }),
              AllOf(HasSubstr("model.pt: found a TorchScript model"), HasSubstr("script_module(file)")));
  torch::nn::Linear saved(4, 1), loaded(4, 1);
  torch::save(saved, other.string());
  EXPECT_THAT(message_of<CheckpointError>([&] { load_tensors(other); }), HasSubstr("torch::load(net, file)"));
  load_module(*loaded, module_tensors(*script_module(other)));
  EXPECT_TRUE(at::equal(loaded->weight, saved->weight)) << "it has the tensors, and no forward()";
  std::string damaged = read_text(file_);
  const auto code = damaged.find("data.pkl") + 64;
  damaged.replace(code, 64, std::string(64, 'x'));
  std::ofstream(other, std::ios::binary) << damaged;
  EXPECT_THAT(message_of<CheckpointError>([&] { script_module(other); }), HasSubstr("other.pt: "));
}

}  // namespace
}  // namespace lockstep
