// lockstep/optim/optimizers.h
//
// Factories that build optimizers for given tensors. The fused updates are ordinary torch::optim::Optimizer classes.
#pragma once

#include <array>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/config/lr_schedule.h>
#include <lockstep/fwd.h>

namespace [[gnu::visibility("default")]] lockstep {

/// An optimizer of LibTorch, and its parameter groups.
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
  bool amsgrad = false;
};
/// Options of torch.optim.Adam, whose weight decay is added to the gradient.
struct AdamOptions {
  double lr = 1e-3;
  double weight_decay = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool no_decay_vectors = false;  ///< as in AdamWOptions
  bool amsgrad = false;
};
/// Options of torch.optim.SGD; `no_decay_vectors` is an addition.
struct SgdOptions {
  double lr = 1e-2;
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool no_decay_vectors = false;  ///< as in AdamWOptions
  double dampening = 0;
};
/// Options of torch.optim.RMSprop.
struct RmspropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
};
/// Options of torch.optim.Adagrad.
struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator = 0;
  double eps = 1e-10;
};
/// Options of torch.optim.Adadelta.
struct AdadeltaOptions {
  double lr = 1;
  double rho = 0.9;
  double eps = 1e-6;
  double weight_decay = 0;
};
/// Options of torch.optim.Adamax.
struct AdamaxOptions {
  double lr = 2e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
};
/// Options of torch.optim.NAdam.
struct NadamOptions {
  double lr = 2e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum_decay = 4e-3;
  bool decoupled_weight_decay = false;
};
/// Options of torch.optim.RAdam.
struct RadamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled_weight_decay = false;
};
/// Options of torch.optim.ASGD. The averaged parameters are the state "ax".
struct AsgdOptions {
  double lr = 1e-2;
  double lambd = 1e-4;
  double alpha = 0.75;
  double t0 = 1e6;
  double weight_decay = 0;
};
/// Options of torch.optim.Rprop. Only the first step uses the learning rate.
struct RpropOptions {
  double lr = 1e-2;
  double eta_minus = 0.5;
  double eta_plus = 1.2;
  double min_step = 1e-6;
  double max_step = 50;
};
/// Lion, Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2.
struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
};
/// Options of torch.optim.Adafactor.
struct AdafactorOptions {
  double lr = 1e-2;
  double beta2_decay = -0.8;
  double eps1 = 0;  ///< 0: the machine precision of the dtype in which it is calculated
  double eps2 = 1e-3;
  double d = 1;
  double weight_decay = 0;
};

/// How Muon adapts its learning rate to the shape of a matrix [rows, columns].
enum class MuonRate {
  original,         ///< lr x sqrt(max(1, rows / columns)), of Jordan's Muon
  match_rms_adamw,  ///< lr x 0.2 sqrt(max(rows, columns)): suits learning rates and weight decays of AdamW
};
/// Options of torch.optim.Muon (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"), which
/// updates matrices. `adamw` is an addition: what is no matrix gets AdamW with these options.
struct MuonOptions {
  double lr = 1e-3;
  double weight_decay = 0.1;
  double momentum = 0.95;
  bool nesterov = true;
  std::array<double, 3> ns_coefficients = {3.4445, -4.7750, 2.0315};  ///< of the Newton-Schulz iteration, in bfloat16
  double eps = 1e-7;
  int ns_steps = 5;
  MuonRate adjust_lr = MuonRate::original;
  AdamWOptions adamw{};  ///< of biases, norms, convolutions and complex parameters, and of groups with `muon = false`
};
/// Mishchenko and Defazio 2023, "Prodigy: An Expeditiously Adaptive Parameter-Free Learner", algorithm 4. It estimates
/// the learning rate: d, one number for all parameters.
struct ProdigyOptions {
  double lr = 1;  ///< a factor of d; schedules multiply it
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;                                       ///< decoupled; multiplied by d x lr
  double d0 = 1e-6;                                              ///< first value of d
  double d_coef = 1;                                             ///< factor of each estimate
  double growth_rate = std::numeric_limits<double>::infinity();  ///< d grows by at most this factor per step
  bool use_bias_correction = false;                              ///< as Adam has it
  bool safeguard_warmup = false;  ///< estimate d without the learning rate, for schedules that begin with a warm-up
};
/// AdamWScheduleFree of Defazio et al. 2024, "The Road Less Scheduled". It trains at y, between the iterate z and the
/// average x of all z, and evaluates x. Its only schedule should be a warm-up.
struct ScheduleFreeAdamWOptions {
  double lr = 2.5e-3;
  double beta1 = 0.9;  ///< y = beta1 x + (1 - beta1) z
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;  ///< of y
  /// Step t has the weight t^r x (largest learning rate so far)^weight_lr_power in the average.
  double r = 0;
  double weight_lr_power = 2;
};

OptimizerFactory adamw(AdamWOptions options = {});  ///< at::_fused_adamw_: one kernel per device and dtype
OptimizerFactory adam(AdamOptions options = {});    ///< at::_fused_adam_
OptimizerFactory sgd(SgdOptions options = {});      ///< at::_fused_sgd_
/// The following run a few kernels for all parameters of one device and dtype together, and give complex parameters the
/// update of their real and imaginary parts. Adafactor takes its parameters one by one.
OptimizerFactory rmsprop(RmspropOptions options = {});
OptimizerFactory adagrad(AdagradOptions options = {});
OptimizerFactory adadelta(AdadeltaOptions options = {});
OptimizerFactory adamax(AdamaxOptions options = {});
OptimizerFactory nadam(NadamOptions options = {});
OptimizerFactory radam(RadamOptions options = {});
OptimizerFactory asgd(AsgdOptions options = {});
OptimizerFactory rprop(RpropOptions options = {});
OptimizerFactory lion(LionOptions options = {});
OptimizerFactory adafactor(AdafactorOptions options = {});
OptimizerFactory muon(MuonOptions options = {});  ///< matrices one by one, the rest as above
OptimizerFactory prodigy(ProdigyOptions options = {});
/// In fit() the parameters are y, and x during validations and from Stage::fit_end on. At other places
/// Strategy::evaluation_scope() gives x.
OptimizerFactory schedule_free_adamw(ScheduleFreeAdamWOptions options = {});

/// Whether a parameter is selected.
using ParameterFilter = std::function<bool(std::string_view name, const at::Tensor& parameter)>;
/// Selects parameters by name: `*` stands for any characters, also dots, `?` for one. "encoder.*" selects all
/// parameters of encoder.
ParameterFilter named(std::string pattern);
/// The same with a regular expression (ECMAScript) that the whole name must match. Throws: ConfigError (no valid one).
ParameterFilter matching(const std::string& expression);

/// Parameters with common options. A parameter belongs to the first group that selects it.
struct GroupSpec {
  ParameterFilter select{};  ///< empty: all remaining parameters
  double lr_scale = 1;
  std::optional<double> weight_decay{};  ///< for all of them, vectors included; nullopt: the factory's value
  LrSchedule schedule{};                 ///< of its learning rate; not set: the optimizer's
  double max_grad_norm = 0;  ///< of its gradients together, before optim.max_grad_norm of the run; 0: no limit
  bool muon = true;          ///< false: muon() gives its matrices AdamW too, as embeddings and output layers need it
};

/// Groups for fine-tuning, in which layers near the input learn more slowly (Howard and Ruder 2018, "Universal Language
/// Model Fine-tuning for Text Classification"). `layers`: patterns as for named(), from the input to the output. The
/// last one has lr_scale 1, each other one `decay` times that of the next. Append {} for the parameters that none
/// selects. Throws: ConfigError (no pattern; `decay` not more than 0 and at most 1).
std::vector<GroupSpec> layerwise_groups(const std::vector<std::string>& layers, double decay);

/// An optimizer of a task: how it is made, which parameters it has, and its schedule.
struct OptimizerSpec {
  OptimizerFactory make{};
  /// Empty: one group with all parameters. A parameter that no group selects is not trained by this optimizer.
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
