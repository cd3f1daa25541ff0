// lockstep/optim/optimizers.h
//
// Factories that build optimizers for given tensors. The fused updates are ordinary torch::optim::Optimizer classes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/config/lr_schedule.h>
#include <lockstep/fwd.h>

namespace [[gnu::visibility("default")]] lockstep {

using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;
using ParamGroups = std::vector<torch::optim::OptimizerParamGroup>;
/// Builds an optimizer for the given groups. A group without options gets the factory's; the library sets learning
/// rates through the options of the groups (`set_lr`). The factory may divide a group; it must not join groups or leave
/// parameters out.
using OptimizerFactory = std::function<OptimizerPtr(ParamGroups)>;

/// Options and defaults of torch.optim.AdamW; `no_decay_vectors` is an addition.
struct AdamWOptions {
  double lr = 1e-3;
  double weight_decay = 0.01;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool no_decay_vectors = false;  ///< apply weight_decay to matrices only, not to biases, norms and other vectors
};
/// Options of torch.optim.SGD; `no_decay_vectors` is an addition.
struct SgdOptions {
  double lr = 1e-2;
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool no_decay_vectors = false;  ///< as in AdamWOptions
};

OptimizerFactory adamw(AdamWOptions options = {});  ///< at::_fused_adamw_: one kernel per device and dtype
OptimizerFactory sgd(SgdOptions options = {});      ///< at::_fused_sgd_

/// Parameters with common options. A parameter belongs to the first group that selects it.
struct GroupSpec {
  std::function<bool(std::string_view name, const at::Tensor& parameter)>
      select{};  ///< empty: all remaining parameters
  double lr_scale = 1;
  double weight_decay = -1;  ///< for all of them, vectors included; -1: the factory's value
  LrSchedule schedule{};     ///< of its learning rate; not set: the optimizer's
};

struct OptimizerSpec {
  OptimizerFactory make{};
  /// Empty: one group with all parameters.
  std::vector<GroupSpec> groups{};
  std::string name = "main";
  torch::nn::Module* module =
      nullptr;            ///< its parameters; nullptr: the task's module. A GAN sets its two networks here.
  LrSchedule schedule{};  ///< of its learning rate; optim.schedule of the configuration replaces it

  OptimizerSpec() = default;
  /// `return {{adamw({.lr = 3e-4}), "warmup:500+cosine"}};`
  OptimizerSpec(OptimizerFactory factory, LrSchedule lr_schedule = {})  // NOLINT(google-explicit-constructor)
      : make(std::move(factory)), schedule(std::move(lr_schedule)) {}
};

}  // namespace lockstep
