// A rank of exchange_bench.py and step_bench.py: trains an MLP or a CNN on the same batch. The main rank prints the
// time of each step in nanoseconds, and the last loss. The work is that of peers/step_model.py. --bare: with LibTorch's
// reducer over Gloo in a loop by hand, and nothing of lockstep in the step but the optimizer.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <torch/torch.h>

#include <lockstep/lockstep.h>

#include "one_batch.h"

namespace {

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return torch::cross_entropy_loss(output, target);
}

at::Tensor train(lockstep::Session& session, const torch::nn::Sequential& net,
                 const lockstep::OptimizerFactory& optimizer, OneBatch& data) {
  const auto task = lockstep::make_task(net, loss_of, optimizer);
  at::Tensor loss;
  lockstep::Trainer trainer(session);
  trainer.on(lockstep::Stage::fit_end, [&](const lockstep::StageContext& at) { loss = at.step.loss; });
  trainer.fit(*task, data);
  return loss;
}

/// A group of this program's own. The ranks are on one machine.
c10::intrusive_ptr<c10d::ProcessGroup> gloo_group(lockstep::World& world) {
  const auto mine = std::filesystem::temp_directory_path() / fmt::format("lockstep_exchange_{}", getpid());
  const auto store = c10::make_intrusive<c10d::FileStore>(world.broadcast_bytes(mine.string()), world.size());
  auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::minutes(1));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, world.rank(), world.size());
  constexpr auto kGloo = c10d::ProcessGroup::BackendType::GLOO;
  group->setBackend(c10::kCPU, kGloo,
                    c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>("gloo", store),
                                                                world.rank(), world.size(), options));
  group->setDefaultBackend(kGloo);
  group->setGroupName("bare");
  return group;
}

/// As PyTorch's DDP uses the reducer.
at::Tensor train_bare(lockstep::World& world, torch::nn::Sequential net, const lockstep::OptimizerFactory& factory,
                      OneBatch& data) {
  const std::vector<at::Tensor> parameters = net->parameters();
  const std::vector<bool> is_sparse(parameters.size(), false);
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      parameters, {c10d::kDefaultFirstBucketBytes, c10d::kDefaultBucketBytesCap}, is_sparse);
  std::reverse(buckets.begin(), buckets.end());  // the backward ends with the first parameters
  c10d::Reducer reducer(parameters, std::move(buckets), gloo_group(world), is_sparse, c10d::kDefaultBucketBytesCap,
                        /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/true, /*param_names=*/{},
                        c10d::kDefaultFirstBucketBytes, /*skip_all_reduce_unused_params=*/false,
                        /*use_python_reducer=*/false, /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
  const auto optimizer = factory({torch::optim::OptimizerParamGroup(parameters)});
  at::Tensor loss;
  while (const lockstep::StepBatches* step = data.next()) {
    const lockstep::Batch& batch = step->micro.at(0);
    for (const at::Tensor& parameter : parameters) {
      parameter.mutable_grad().reset();  // zero_grad() refuses gradients that are a part of a bucket
    }
    reducer.prepare_for_forward();
    loss = loss_of(net->forward(batch.input), batch.target);
    reducer.prepare_for_backward(std::vector<at::Tensor>{});
    loss.backward();
    optimizer->step();
  }
  return loss;
}

}  // namespace

int main(int argc, char** argv) {
  std::int64_t layers = 2;
  std::int64_t width = 32;
  std::int64_t steps = 300;
  bool images = false;
  bool bare = false;
  lockstep::Flags flags;
  flags.add("layers", &layers, "hidden layers").add("width", &width, "of each").add("steps", &steps, "to measure");
  flags.add("images", &images, "the layers are convolutions, each followed by pooling, on images of 32x32");
  flags.add("bare", &bare, "LibTorch's reducer in a loop by hand");
  const lockstep::TrainConfig defaults{
      .compute_setup = lockstep::ComputeSetup::cpu, .max_epochs = 0, .max_steps = 1'000'000'000, .barebones = true};
  return lockstep::run(defaults, flags, argc, argv, [&](lockstep::Session& session) {
    at::set_num_threads(1);
    torch::manual_seed(1);
    torch::nn::Sequential net;
    for (std::int64_t i = 0; i < layers; ++i) {
      if (images) {
        net->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(i == 0 ? 3 : width, width, 3).padding(1)));
        net->push_back(torch::nn::MaxPool2d(2));
      } else {
        net->push_back(torch::nn::Linear(width, width));
      }
      net->push_back(torch::nn::ReLU());
    }
    net->push_back(torch::nn::Flatten());
    const std::int64_t features = images ? width * (32 >> layers) * (32 >> layers) : width;
    net->push_back(torch::nn::Linear(features, 10));
    const at::Tensor input = images ? torch::randn({16, 3, 32, 32}) : torch::randn({16, width});
    OneBatch data({.input = input, .target = torch::randint(10, {16}), .samples = 16}, steps, session.world.size());
    const lockstep::OptimizerFactory optimizer = lockstep::adamw({.weight_decay = 0});
    const at::Tensor loss =
        bare ? train_bare(session.world, net, optimizer, data) : train(session, net, optimizer, data);
    if (session.world.is_main()) {
      for (const double time : data.times()) {
        fmt::print("step {:.0f}\n", 1e9 * time);
      }
      fmt::print("loss {}\n", loss.item<double>());
      std::fflush(stdout);
    }
  });
}
