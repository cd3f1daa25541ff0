// The contestants of gpu_training_bench.py in C++: lockstep's Trainer, and a loop written by hand with LibTorch alone.
//
// Each says the losses of its first steps, then trains when it is told to, for a number of steps, and says how long
// they took. Lines on standard input: "steps N", "profile N FILE", "quit".
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <c10/core/CachingDeviceAllocator.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/torch.h>

#include <lockstep/checkpoint/module_state.h>
#include <lockstep/lockstep.h>
#include <lockstep/optim/precision.h>
#include <lockstep/tensor/tensor_file.h>

#include "gpu_models.h"

namespace {

using Clock = std::chrono::steady_clock;

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

struct Options {
  std::string contestant = "lockstep";  // lockstep, loop; loader: its batches alone; copy: one large pinned copy
  std::string model = "resnet18";       // resnet18, gpt2
  std::string shape = "64";
  std::string weights;  // safetensors file
  std::string data;     // safetensors file with "input" and "target"
  std::int64_t checked = 10;
  bool channels_last = false;
  bool tuned = true;  // TF32, and cuDNN measures its algorithms; else as the settings say
};

std::vector<std::int64_t> numbers(const std::string& text) {
  std::vector<std::int64_t> all;
  std::istringstream in(text);
  for (std::string word; std::getline(in, word, ',');) {
    all.push_back(std::stoll(word));
  }
  return all;
}

/// A model of gpu_models.h with its weights from the file.
struct Model {
  explicit Model(const Options& options) {
    const auto shape = numbers(options.shape);
    if (options.model == "resnet18") {
      gpu_bench::ResNet net(shape.at(0));
      module = net.ptr();
      loss = [net](const torch::Tensor& input, const torch::Tensor& target) mutable {
        return net->loss(input, target);
      };
    } else {
      gpu_bench::Gpt net(gpu_bench::GptShape{.vocabulary = shape.at(0),
                                             .context = shape.at(1),
                                             .width = shape.at(2),
                                             .heads = shape.at(3),
                                             .layers = shape.at(4)});
      module = net.ptr();
      loss = [net](const torch::Tensor& input, const torch::Tensor& target) mutable {
        return net->loss(input, target);
      };
    }
    lockstep::load_module(*module, lockstep::load_tensors(options.weights));
    if (options.channels_last) {
      for (auto& parameter : module->parameters()) {
        if (parameter.dim() == 4) {
          parameter.set_data(parameter.data().contiguous(torch::MemoryFormat::ChannelsLast));
        }
      }
    }
  }
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(const torch::Tensor&, const torch::Tensor&)> loss;
};

torch::Tensor in_format(const torch::Tensor& input, const Options& options) {
  return options.channels_last ? input.contiguous(torch::MemoryFormat::ChannelsLast) : input;
}

/// Tells when to train and for how long.
class Conductor {
 public:
  Conductor(std::int64_t checked, c10::Device device) : left_(checked), device_(device), start_(now()) {}

  void took_step(const torch::Tensor& loss) {
    if (!losses_said_) {
      if (losses_.empty()) {
        loss.item<double>();
        say(fmt::format("first {:.6f}", now()));
      }
      losses_.push_back(loss.detach().clone());
    }
  }

  /// Call it before each step. False: the end.
  bool wait() {
    if (left_-- > 0) {
      return true;
    }
    finish();
    for (std::string line; std::getline(std::cin, line);) {
      std::istringstream words(line);
      std::string what;
      words >> what >> steps_ >> trace_;
      if (what == "quit") {
        return false;
      }
      left_ = steps_ - 1;
      if (what == "profile") {
        profile();
      }
      start_ = now();
      return true;
    }
    return false;
  }

 private:
  using Activity = torch::profiler::impl::ActivityType;

  void finish() {
    if (device_.is_cuda()) {
      torch::cuda::synchronize();
    }
    const double seconds = now() - start_;
    if (profiles_) {
      torch::autograd::profiler::disableProfiler()->save(trace_);
      profiles_ = false;
    }
    if (!losses_said_) {
      std::string line = "losses";
      for (const auto& loss : losses_) {
        line += fmt::format(" {:.7f}", loss.item<double>());
      }
      losses_said_ = true;
      say(line);
    } else {
      say(fmt::format("took {:.6f} {}", seconds, peak_bytes()));
    }
  }

  /// Of LibTorch's tensors on the GPU.
  std::int64_t peak_bytes() const {
    if (!device_.is_cuda()) {
      return 0;
    }
    const auto stats = c10::getDeviceAllocator(device_.type())->getDeviceStats(device_.index());
    return stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak;
  }

  void profile() {
    std::set<Activity> activities{Activity::CPU};
    if (device_.is_cuda()) {
      activities.insert(Activity::CUDA);
    }
    const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
    torch::autograd::profiler::prepareProfiler(config, activities);
    torch::autograd::profiler::enableProfiler(config, activities);
    profiles_ = true;
  }

  std::int64_t left_;
  c10::Device device_;
  double start_;
  std::int64_t steps_ = 0;
  std::string trace_;
  bool profiles_ = false;
  bool losses_said_ = false;
  std::vector<torch::Tensor> losses_;
};

struct Samples {
  explicit Samples(const Options& options) {
    for (auto& [name, tensor] : lockstep::load_tensors(options.data)) {
      (name == "input" ? input : target) = tensor;
    }
  }
  torch::Tensor input, target;
};

// --- lockstep ---

class BenchTask final : public lockstep::Task {
 public:
  explicit BenchTask(const Options& options) : options_(options), model_(options) {}
  torch::nn::Module& module() override { return *model_.module; }
  std::vector<lockstep::OptimizerSpec> optimizers() override {
    if (options_.model == "resnet18") {
      return {lockstep::sgd({.lr = 0.05, .momentum = 0.9, .weight_decay = 5e-4})};
    }
    return {lockstep::adamw({.lr = 3e-4, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.95})};
  }
  lockstep::StepOutput training_step(const lockstep::Batch& batch) override {
    return model_.loss(in_format(batch.input, options_), batch.target);
  }

 private:
  Options options_;
  Model model_;
};

class Conducted final : public lockstep::BatchSource {
 public:
  Conducted(lockstep::BatchSource& source, Conductor& conductor) : source_(source), conductor_(conductor) {}
  const lockstep::StepBatches* next() override { return conductor_.wait() ? source_.next() : nullptr; }
  std::optional<std::int64_t> steps_per_epoch() const override { return std::nullopt; }
  lockstep::LoaderPosition position() const override { return source_.position(); }
  void seek(const lockstep::LoaderPosition& position) override { source_.seek(position); }

 private:
  lockstep::BatchSource& source_;
  Conductor& conductor_;
};

class TellLosses final : public lockstep::Callback {
 public:
  explicit TellLosses(Conductor& conductor) : conductor_(conductor) {}
  std::string name() const override { return "tell_losses"; }
  std::uint32_t stages() const override { return static_cast<std::uint32_t>(lockstep::Stage::step_end); }
  void on(const lockstep::StageContext& context) override { conductor_.took_step(context.step.loss); }

 private:
  Conductor& conductor_;
};

void train_with_lockstep(lockstep::Session& session, const Options& options) {
  const Samples samples(options);
  BenchTask task(options);
  lockstep::DataLoader data(lockstep::tensor_dataset(samples.input, samples.target), session.plan.loader,
                            session.world);
  Conductor conductor(options.checked, session.world.device());
  Conducted source(data, conductor);
  lockstep::Trainer(session).add(std::make_shared<TellLosses>(conductor)).fit(task, source);
}

// --- by hand ---

/// What LibTorch's tutorials show: its own optimizers, a pinned copy, autocast where it is asked for.
void train_by_hand(lockstep::Session& session, const Options& options) {
  const c10::Device device = session.world.device();
  const Samples samples(options);
  Model model(options);
  model.module->to(device);
  model.module->train();
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (options.model == "resnet18") {
    optimizer = std::make_unique<torch::optim::SGD>(model.module->parameters(),
                                                    torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(5e-4));
  } else {
    optimizer = std::make_unique<torch::optim::AdamW>(
        model.module->parameters(), torch::optim::AdamWOptions(3e-4).weight_decay(0.1).betas({0.9, 0.95}));
  }
  const auto pinned = [&](const torch::Tensor& rows) { return device.is_cuda() ? rows.pin_memory() : rows; };
  const auto inputs = pinned(samples.input);
  const auto targets = pinned(samples.target);
  const std::int64_t batch = session.plan.loader.batch.batch_size;
  Conductor conductor(options.checked, device);
  for (std::int64_t step = 0; conductor.wait(); ++step) {
    const std::int64_t begin = step * batch % samples.input.size(0);
    const auto input = inputs.narrow(0, begin, batch).to(device, /*non_blocking=*/true);
    const auto target = targets.narrow(0, begin, batch).to(device, /*non_blocking=*/true);
    optimizer->zero_grad();
    torch::Tensor loss;
    {
      const lockstep::AutocastScope precision(session.plan.config.precision, device.type());
      loss = model.loss(in_format(input, options), target);
    }
    loss.backward();
    optimizer->step();
    conductor.took_step(loss);
  }
}

// --- the way to the device alone ---

void load_only(lockstep::Session& session, const Options& options) {
  const Samples samples(options);
  lockstep::DataLoader data(lockstep::tensor_dataset(samples.input, samples.target), session.plan.loader,
                            session.world);
  const std::int64_t batch = session.plan.loader.batch.batch_size;
  say(fmt::format("bytes {}", static_cast<std::int64_t>(samples.input.nbytes()) / samples.input.size(0) * batch));
  Conductor conductor(options.checked, session.world.device());
  while (conductor.wait()) {
    conductor.took_step(data.next()->micro.front().input.flatten()[0]);
  }
}

void copy_only(lockstep::Session& session, const Options& options) {
  const c10::Device device = session.world.device();
  const auto host = torch::zeros({std::int64_t{64} << 20}, torch::TensorOptions().pinned_memory(device.is_cuda()));
  auto there = torch::empty(host.sizes(), device);
  say(fmt::format("bytes {}", host.nbytes()));
  Conductor conductor(options.checked, device);
  while (conductor.wait()) {
    there.copy_(host, /*non_blocking=*/true);
    conductor.took_step(there[0]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  lockstep::Flags flags;
  flags.add("contestant", &options.contestant, "lockstep or loop")
      .add("model", &options.model, "resnet18 or gpt2")
      .add("shape", &options.shape, "of the model: numbers with commas between them")
      .add("weights", &options.weights, "safetensors file")
      .add("samples", &options.data, "safetensors file with input and target")
      .add("checked", &options.checked, "steps whose losses are told")
      .add("channels_last", &options.channels_last, "images and convolutions in this memory format")
      .add("tuned", &options.tuned, "TF32 and cuDNN's benchmark for every contestant");
  const lockstep::TrainConfig defaults{.max_epochs = 1'000'000,
                                       .data = {.workers = 2},
                                       .sampler = {.shuffle = false},
                                       .checkpoint = {.enabled = false},
                                       .report = {.every_steps = 0, .progress = false, .jsonl = false, .csv = false}};
  return lockstep::run(defaults, flags, argc, argv, [&](lockstep::Session& session) {
    if (options.tuned) {
      at::globalContext().setFloat32MatmulPrecision("high");
      at::globalContext().setBenchmarkCuDNN(true);
    }
    const std::map<std::string, std::function<void(lockstep::Session&, const Options&)>> contestants{
        {"lockstep", train_with_lockstep}, {"loop", train_by_hand}, {"loader", load_only}, {"copy", copy_only}};
    contestants.at(options.contestant)(session, options);
  });
}
