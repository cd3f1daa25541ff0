#include <string>

#include <gtest/gtest.h>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/nn/model_summary.h>
#include <lockstep/trainer/callbacks.h>

namespace lockstep {
namespace {

struct Tied : torch::nn::Module {
  Tied() {
    embed = register_module("embed", torch::nn::Linear(torch::nn::LinearOptions(100, 20).bias(false)));
    body = register_module("body", torch::nn::Sequential(torch::nn::Linear(20, 30), torch::nn::BatchNorm1d(30)));
    register_module("head", embed);
  }
  torch::nn::Linear embed{nullptr};
  torch::nn::Sequential body{nullptr};
};

TEST(ModelSummary, CountsParametersTrainedOnesAndSharedOnesOnce) {
  Tied model;
  freeze(model, "embed.*");
  const std::string text = model_summary(model);
  EXPECT_EQ(text,
            "name   type        parameters  trained\n"
            "embed  Linear           2,000        0\n"
            "body   Sequential         690      690\n"
            "head   Linear           2,000        0\n"
            "total  Tied             2,690      690\n"
            "parameters: 10.5 KiB\n");
}

TEST(ModelSummary, GoesDeeperOnRequest) {
  Tied model;
  const std::string text = model_summary(model, 2);
  EXPECT_NE(text.find("  body.1  BatchNorm1d          60       60\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep
