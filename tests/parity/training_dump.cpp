// Trains a small net as told and prints what came out. Reads lines "DTYPE OPTIMIZER name=value ...", writes one JSON
// object for each: loss and learning rate of every step, the parameters, and the average, the loss scales and the
// statistics of batch norm if there are any. With the variables of a launcher it is one of several ranks. Each of them
// gets the same lines and writes the same objects.
#include <cstdio>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/optim/lbfgs.h>

#include <lockstep/nn/lora.h>
#include <lockstep/parallel/sync_batch_norm.h>
#include <lockstep/trainer/callbacks.h>

#include "support/at_stage.h"
#include "support/tiny_task.h"

namespace {

using namespace lockstep;

class Words {
 public:
  explicit Words(std::istringstream& in) {
    for (std::string word; in >> word;) {
      const auto equals = word.find('=');
      values_[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }
  /// Replaces `value` if the name was given.
  template <class T>
  void take(const std::string& name, T& value) {
    if (const auto found = values_.extract(name); !found.empty()) {
      std::istringstream(found.mapped()) >> value;
    }
  }
  bool has(const std::string& name) const { return values_.contains(name); }
  void expect_empty() const {
    if (!values_.empty()) {
      throw std::runtime_error("unknown option " + values_.begin()->first);
    }
  }

 private:
  std::map<std::string, std::string> values_{};
};

template <class Options>
Options common(Words& words) {
  Options options;
  words.take("lr", options.lr);
  if constexpr (requires { options.weight_decay; }) {
    words.take("weight_decay", options.weight_decay);
  }
  if constexpr (requires { options.eps; }) {
    words.take("eps", options.eps);
  }
  if constexpr (requires { options.beta1; }) {
    words.take("beta1", options.beta1);
    words.take("beta2", options.beta2);
  }
  if constexpr (requires { options.amsgrad; }) {
    words.take("amsgrad", options.amsgrad);
  }
  if constexpr (requires { options.momentum; }) {
    words.take("momentum", options.momentum);
  }
  if constexpr (requires { options.decoupled_weight_decay; }) {
    words.take("decoupled_weight_decay", options.decoupled_weight_decay);
  }
  return options;
}

OptimizerFactory make_optimizer(const std::string& name, Words& words) {
  if (name == "sgd") {
    auto options = common<SgdOptions>(words);
    words.take("nesterov", options.nesterov);
    words.take("dampening", options.dampening);
    return sgd(options);
  }
  if (name == "adam") {
    return adam(common<AdamOptions>(words));
  }
  if (name == "adamw") {
    return adamw(common<AdamWOptions>(words));
  }
  if (name == "rmsprop") {
    auto options = common<RmspropOptions>(words);
    words.take("alpha", options.alpha);
    words.take("centered", options.centered);
    return rmsprop(options);
  }
  if (name == "adagrad") {
    auto options = common<AdagradOptions>(words);
    words.take("lr_decay", options.lr_decay);
    words.take("initial_accumulator_value", options.initial_accumulator);
    return adagrad(options);
  }
  if (name == "adadelta") {
    auto options = common<AdadeltaOptions>(words);
    words.take("rho", options.rho);
    return adadelta(options);
  }
  if (name == "adamax") {
    return adamax(common<AdamaxOptions>(words));
  }
  if (name == "nadam") {
    auto options = common<NadamOptions>(words);
    words.take("momentum_decay", options.momentum_decay);
    return nadam(options);
  }
  if (name == "radam") {
    return radam(common<RadamOptions>(words));
  }
  if (name == "asgd") {
    auto options = common<AsgdOptions>(words);
    words.take("lambd", options.lambd);
    words.take("alpha", options.alpha);
    words.take("t0", options.t0);
    return asgd(options);
  }
  if (name == "rprop") {
    auto options = common<RpropOptions>(words);
    words.take("eta_minus", options.eta_minus);
    words.take("eta_plus", options.eta_plus);
    words.take("max_step", options.max_step);
    return rprop(options);
  }
  if (name == "lion") {
    return lion(common<LionOptions>(words));
  }
  if (name == "adafactor") {
    auto options = common<AdafactorOptions>(words);
    words.take("beta2_decay", options.beta2_decay);
    words.take("eps2", options.eps2);
    words.take("d", options.d);
    return adafactor(options);
  }
  if (name == "muon") {
    auto options = common<MuonOptions>(words);
    words.take("nesterov", options.nesterov);
    words.take("ns_steps", options.ns_steps);
    bool match = false;
    words.take("match_rms_adamw", match);
    options.adjust_lr = match ? MuonRate::match_rms_adamw : MuonRate::original;
    words.take("adamw_lr", options.adamw.lr);
    words.take("adamw_weight_decay", options.adamw.weight_decay);
    words.take("adamw_amsgrad", options.adamw.amsgrad);
    return muon(options);
  }
  if (name == "prodigy") {
    auto options = common<ProdigyOptions>(words);
    words.take("d0", options.d0);
    words.take("d_coef", options.d_coef);
    words.take("growth_rate", options.growth_rate);
    words.take("use_bias_correction", options.use_bias_correction);
    words.take("safeguard_warmup", options.safeguard_warmup);
    return prodigy(options);
  }
  if (name == "schedule_free_adamw") {
    auto options = common<ScheduleFreeAdamWOptions>(words);
    words.take("r", options.r);
    words.take("weight_lr_power", options.weight_lr_power);
    return schedule_free_adamw(options);
  }
  if (name == "lbfgs") {
    torch::optim::LBFGSOptions options;
    words.take("lr", options.lr());
    words.take("max_iter", options.max_iter());
    words.take("history_size", options.history_size());
    bool strong_wolfe = false;
    words.take("strong_wolfe", strong_wolfe);
    if (strong_wolfe) {
      options.line_search_fn("strong_wolfe");
    }
    return [options](ParamGroups all) -> OptimizerPtr {
      return std::make_unique<torch::optim::LBFGS>(std::move(all), options);
    };
  }
  throw std::runtime_error("unknown optimizer " + name);
}

at::Tensor first_values(const at::Tensor& parameter) {
  return at::cos(at::arange(parameter.numel(), at::kDouble)).view(parameter.sizes()).mul(0.4).to(at::kFloat);
}

/// The squares of the absolute values of a complex linear layer.
struct ComplexLayerImpl : torch::nn::Module {
  ComplexLayerImpl() {
    const auto values = [](at::IntArrayRef shape) {
      const at::Tensor real = first_values(at::empty(shape));
      return at::complex(real, real.flip(0) * 0.5);
    };
    weight = register_parameter("weight", values({8, 6}));
    bias = register_parameter("bias", values({8}));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor sums = at::matmul(x.to(weight.scalar_type()), weight.t()) + bias;
    return at::real(sums).square() + at::imag(sums).square();
  }
  at::Tensor weight{}, bias{};
};
TORCH_MODULE(ComplexLayer);

struct NetParts {
  bool is_complex = false;
  bool batch_norm = false;
  bool sync_batch_norm = false;
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const NetParts& parts) {
    if (parts.is_complex) {
      squares = register_module("squares", ComplexLayer());
    } else {
      first = register_module("first", LoraLinear(6, 8));
    }
    if (parts.batch_norm) {
      norm = register_module("norm", torch::nn::BatchNorm1d(8));
    }
    if (parts.sync_batch_norm) {
      sync_norm = register_module("norm", SyncBatchNorm(8));
    }
    second = register_module("second", LoraLinear(8, 1));
    const at::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      if (!parameter.is_complex()) {
        parameter.set_data(first_values(parameter));
      }
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor hidden = squares.is_empty() ? first(x) : squares(x);
    if (!norm.is_empty()) {
      hidden = norm(hidden);
    } else if (!sync_norm.is_empty()) {
      hidden = sync_norm(hidden);
    }
    return second(at::tanh(hidden));
  }
  ComplexLayer squares{nullptr};
  LoraLinear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  SyncBatchNorm sync_norm{nullptr};
};
TORCH_MODULE(Net);

void print_list(const char* name, const std::vector<double>& values, const char* end) {
  std::printf("\"%s\": [", name);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::printf("%s%.17g", i == 0 ? "" : ", ", values[i]);
  }
  std::printf("]%s", end);
}

void append(std::vector<double>& values, const at::Tensor& tensor) {
  const at::Tensor reals = tensor.is_complex() ? at::view_as_real(tensor.detach()) : tensor.detach();
  const at::Tensor flat = reals.to(at::kDouble).contiguous();
  values.insert(values.end(), flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel());
}

/// Looks at the loss of all samples, or at a score that is better when it is higher.
ReduceOnPlateauOptions plateau_options(Words& words) {
  ReduceOnPlateauOptions options;
  std::string mode;
  words.take("plateau", mode);
  if (mode != "min" && mode != "max") {
    throw std::runtime_error("plateau is \"" + mode + "\", expected min or max");
  }
  options.mode = mode == "min" ? MonitorMode::min : MonitorMode::max;
  options.metric = mode == "min" ? "val_loss" : "val_score";
  words.take("factor", options.factor);
  words.take("patience", options.patience);
  words.take("threshold", options.threshold);
  words.take("threshold_is_relative", options.threshold_is_relative);
  words.take("cooldown", options.cooldown);
  words.take("min_lr", options.min_lr);
  words.take("plateau_eps", options.eps);
  return options;
}

StepOutput loss_and_score(const at::Tensor& output, const at::Tensor& target) {
  StepOutput result(at::mse_loss(output, target));
  result.metrics.emplace_back("score", 2 - result.loss.detach());
  return result;
}

class DumpTask final : public Task {
 public:
  DumpTask(Net net, OptimizerSpec optimizer, bool has_closure)
      : net_(std::move(net)), optimizer_(std::move(optimizer)), has_closure_(has_closure) {}
  torch::nn::Module& module() override { return *net_; }
  std::vector<OptimizerSpec> optimizers() override { return {optimizer_}; }
  StepOutput training_step(const Batch& batch) override {
    return loss_and_score(net_->forward(batch.input), batch.target);
  }
  void optimize(Step& step) override {
    if (!has_closure_) {
      Task::optimize(step);
      return;
    }
    OptimizerStep& optimizer = step.optimizer();
    step.add(optimizer.minimize([&] {
      optimizer.zero_grad();
      StepOutput out;
      for (const Batch& batch : step.batches()) {
        out = optimizer.forward(batch, [this](const Batch& one) { return training_step(one); });
        optimizer.backward(out);
      }
      return out;
    }));
  }

 private:
  Net net_;
  OptimizerSpec optimizer_;
  bool has_closure_;
};

void train(World& world, const std::string& precision, const std::string& optimizer, Words& words) {
  int ranks = 1;
  words.take("ranks", ranks);
  if (ranks != world.size()) {
    throw std::runtime_error("this training needs another number of ranks");
  }
  std::int64_t samples = 60;
  words.take("samples", samples);
  TrainConfig config = in_memory({.max_epochs = 0, .max_steps = 100, .batch_size = 8, .report = {.every_steps = 1}});
  words.take("steps", config.max_steps);
  words.take("accumulate", config.accumulation);
  words.take("shard_optimizer", config.dist.shard_optimizer);
  config.sampler.shuffle = false;
  config.precision = precision == "fp64"         ? Precision::fp64
                     : precision == "fp16_mixed" ? Precision::fp16_mixed
                     : precision == "bf16_mixed" ? Precision::bf16_mixed
                                                 : Precision::fp32;
  words.take("max_grad_norm", config.optim.max_grad_norm);
  words.take("max_grad_value", config.optim.max_grad_value);
  if (std::string steps; words.has("warmup_steps")) {
    words.take("warmup_steps", steps);
    config.optim.schedule = "warmup:" + steps;
  }
  std::int64_t huge_sample = -1;  // its values overflow in half precision
  words.take("huge_sample", huge_sample);
  NetParts parts{.batch_norm = words.has("batch_norm_steps")};
  words.take("complex", parts.is_complex);
  words.take("batch_norm", parts.batch_norm);
  words.take("sync_batch_norm", parts.sync_batch_norm);
  std::shared_ptr<WeightAverage> average;
  if (words.has("decay")) {
    WeightAverageOptions options;
    words.take("decay", options.decay);
    words.take("warmup", options.warmup);
    words.take("every_steps", options.every_steps);
    words.take("first_step", options.first_step);
    words.take("batch_norm_steps", options.batch_norm_steps);
    options.at_end = options.batch_norm_steps > 0;
    average = std::make_shared<WeightAverage>(options);
  }
  std::shared_ptr<ReduceOnPlateau> plateau;
  if (words.has("plateau")) {
    plateau = std::make_shared<ReduceOnPlateau>(plateau_options(words));
    config.validate.every_epochs = 0;
    config.validate.every_steps = 2;
  }
  Net net(parts);
  if (words.has("lora_rank")) {
    LoraOptions options;
    words.take("lora_rank", options.rank);
    words.take("lora_alpha", options.alpha);
    add_lora(*net, options);
    net->first->lora_a.set_data(first_values(net->first->lora_a));
    net->second->lora_a.set_data(first_values(net->second->lora_a));
  }
  std::vector<GroupSpec> groups{{.select = named("*.weight")}, {}};
  words.take("weights_norm", groups[0].max_grad_norm);
  words.take("rest_norm", groups[1].max_grad_norm);
  OptimizerSpec spec(make_optimizer(optimizer, words));
  if (groups[0].max_grad_norm > 0 || groups[1].max_grad_norm > 0) {
    spec.groups = groups;
  }
  DumpTask task(net, spec, /*has_closure=*/optimizer == "lbfgs");
  words.expect_empty();

  const auto x = at::sin(at::arange(samples * 6, at::kDouble) * 0.37).view({samples, 6});
  auto inputs = x.clone();
  if (huge_sample >= 0) {
    inputs[huge_sample].fill_(1e9);
  }
  const auto y = x.sum(1, true) * 0.3 + at::cos(x.select(1, 0)).unsqueeze(1);
  const auto dataset = tensor_dataset(inputs.to(at::kFloat), y.to(at::kFloat));
  const Plan plan = plan_for(world.size(), config);
  DataLoader data(dataset, plan.loader, world);
  DataLoader validation(dataset, plan.eval_loader, world);
  std::vector<double> losses;
  std::vector<double> rates;
  std::vector<double> scales;
  Trainer trainer(plan, world);
  trainer.add(at_stage(
      Stage::report, [&](const StageContext& context) { losses.push_back(context.metrics->front().second); },
      "losses"));
  trainer.add(at_stage(Stage::step_end, [&](const StageContext& context) {
    if (plateau) {
      rates.push_back(context.step.lr);
    }
    if (const auto scale = context.strategy->optimizer().loss_scale(); scale.defined()) {
      scales.push_back(scale.item<double>());
    }
  }));
  if (average) {
    trainer.add(average);
  }
  if (plateau) {
    trainer.add(plateau);
  }
  trainer.fit(task, data, plateau ? &validation : nullptr);

  std::vector<double> parameters;
  for (const auto& parameter : net->parameters()) {
    append(parameters, parameter);
  }
  std::vector<double> averaged;
  if (average) {
    for (const auto& [name, tensor] : average->average()) {
      append(averaged, tensor);
    }
  }
  std::vector<double> statistics;
  std::vector<double> counts;
  for (const auto& buffer : net->buffers()) {
    append(buffer.is_floating_point() ? statistics : counts, buffer);
  }
  std::printf("{");
  print_list("losses", losses, ", ");
  print_list("rates", rates, ", ");
  print_list("scales", scales, ", ");
  print_list("average", averaged, ", ");
  print_list("statistics", statistics, ", ");
  print_list("counts", counts, ", ");
  print_list("parameters", parameters, "}\n");
}

}  // namespace

int main() {
  try {
    Session session = Session::connect(in_memory({}));
    for (std::string line; std::getline(std::cin, line);) {
      std::istringstream in(line);
      std::string precision;
      std::string optimizer;
      in >> precision >> optimizer;
      Words words(in);
      train(session.world, precision, optimizer, words);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
