// Ranks that check what NCCL and Gloo give them, or train and fail on request. It ends with 1 and a text where
// something differs.
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <lockstep/lockstep.h>
#include <lockstep/parallel/sync_batch_norm.h>

#include "gpu/device_probe.h"
#include "support/at_stage.h"
#include "support/larger_or_nan.h"

namespace {

using namespace lockstep;

void expect(bool holds, const std::string& what) {
  if (!holds) {
    throw std::runtime_error("check failed: " + what);
  }
}

void expect_equal(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  expect(found.scalar_type() == expected.scalar_type(), what + ": another dtype");
  expect(at::equal(found.cpu(), expected.cpu()), what);
}

// --- collectives ---

void check_reductions(World& world) {
  const auto numbers = [](double rank) { return at::arange(1, 7, at::kDouble) * (rank + 1); };
  const double size = world.size();
  const at::Tensor sum = numbers(0) * (size * (size + 1) / 2);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte}) {
    const std::map<Reduce, at::Tensor> expected{
        {Reduce::sum, sum}, {Reduce::min, numbers(0)}, {Reduce::max, numbers(size - 1)}, {Reduce::mean, sum / size}};
    for (const auto& [reduce, values] : expected) {
      if (reduce == Reduce::mean && !at::isFloatingType(dtype)) {
        continue;
      }
      const at::Tensor mine = numbers(world.rank()).to(dtype).to(world.device());
      world.all_reduce(mine, reduce);
      expect_equal(mine, values.to(dtype),
                   fmt::format("all_reduce {} of {}", static_cast<int>(reduce), c10::toString(dtype)));
    }
  }
  const at::Tensor transposed = (at::arange(6, at::kFloat).view({2, 3}) * (world.rank() + 1)).to(world.device()).t();
  world.all_reduce(transposed, Reduce::sum);
  expect_equal(transposed, at::arange(6, at::kFloat).view({2, 3}).t() * (size * (size + 1) / 2),
               "all_reduce transposed");
}

void check_broadcasts(World& world) {
  for (int root = 0; root < world.size(); ++root) {
    for (const auto dtype :
         {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte, at::kBool}) {
      const at::Tensor mine = (at::arange(6) + world.rank()).to(dtype).to(world.device());
      world.broadcast(mine, root);
      expect_equal(mine, (at::arange(6) + root).to(dtype), fmt::format("broadcast of {}", c10::toString(dtype)));
    }
  }
}

void check_gathers(World& world) {
  for (const bool empty_first : {false, true}) {
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < world.size(); ++rank) {
      parts.push_back(at::full({empty_first ? rank : rank + 1, 3}, rank, at::kFloat));
    }
    const auto mine = parts[static_cast<std::size_t>(world.rank())].to(world.device());
    expect_equal(world.all_gather(mine), at::cat(parts), "all_gather of unequal parts");
  }
  std::vector<std::string> texts;
  for (int rank = 0; rank < world.size(); ++rank) {
    texts.push_back(std::string(static_cast<std::size_t>(rank), 'x'));
  }
  expect(world.gather(texts[static_cast<std::size_t>(world.rank())]) == texts, "gather");
}

void check_control_plane(World& world) {
  world.barrier("here");
  expect(world.any(world.rank() == 1) && !world.any(false), "any");
  expect(!world.all(world.rank() == 1) && world.all(true), "all");
  expect(world.broadcast_bytes(std::to_string(world.rank()), 1) == "1", "broadcast_bytes");
  world.main_first("main first", [] {});
  world.one_by_one("one by one", [] {});
  World channel = world.channel("second");
  expect(channel.device().is_cpu() && channel.size() == world.size(), "channel");
  const at::Tensor one = at::ones({3});
  channel.all_reduce(one, Reduce::sum);
  expect_equal(one, at::full({3}, static_cast<double>(world.size()), at::kFloat), "all_reduce of a channel");
  const auto store = world.store("numbers");
  store->add("ranks", 1);
  world.barrier("counted");
  expect(store->add("ranks", 0) == world.size(), "store");
}

/// No backend sends every dtype.
void check_buffers(Session& session) {
  World& world = session.world;
  const auto dtypes = {at::kShort, at::kBool,     at::kByte,  at::kChar,   at::kInt,          at::kLong,
                       at::kHalf,  at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat, at::kFloat8_e4m3fn};
  const auto values = [](int rank, at::ScalarType dtype) {
    return (at::arange(6) * (rank + 1)).to(at::kFloat).to(dtype);
  };
  torch::nn::Linear module(2, 1);
  for (const auto dtype : dtypes) {
    module->register_buffer(std::string("buffer_") + c10::toString(dtype), values(world.rank(), dtype));
  }
  module->to(world.device());
  const auto strategy = make_strategy(session.plan, world);
  const OptimizerSpec optimizer(sgd({.lr = 0.1}));
  strategy->prepare(*module, {&optimizer, 1});
  const auto check = [&](const std::string& when) {
    for (const auto dtype : dtypes) {
      const auto bytes = [](const at::Tensor& tensor) { return tensor.cpu().view(at::kByte); };
      const at::Tensor found = module->named_buffers()[std::string("buffer_") + c10::toString(dtype)];
      expect(found.scalar_type() == dtype && at::equal(bytes(found), bytes(values(0, dtype))),
             fmt::format("buffer of {} {}", c10::toString(dtype), when));
    }
  };
  check("after prepare()");
  for (auto& buffer : module->buffers()) {
    if (!world.is_main()) {
      buffer.zero_();
    }
  }
  strategy->begin_step(0);
  strategy->optimizer().begin_forward(Gradients::reduce);
  check("in a step");
}

// --- gradients ---

at::Tensor wave(at::IntArrayRef shape, double shift) {
  return at::sin(at::arange(c10::multiply_integers(shape), at::kFloat) * 0.7 + shift).view(shape);
}

struct Net : torch::nn::Module {
  explicit Net(c10::Device device) {
    a = register_module("a", torch::nn::Linear(4, 8));
    b = register_module("b", torch::nn::Linear(8, 8));
    c = register_module("c", torch::nn::Linear(8, 1));
    const at::NoGradGuard no_grad;
    double shift = 0;
    for (auto& parameter : parameters()) {
      parameter.copy_(wave(parameter.sizes(), shift += 1) * 0.5);
    }
    to(device);
  }
  at::Tensor forward(const at::Tensor& x, bool skip_b) {
    const auto h = at::relu(a(x));
    return c(skip_b ? h : at::relu(b(h)));
  }
  torch::nn::Linear a{nullptr}, b{nullptr}, c{nullptr};
};

struct Reduction {
  std::string name;
  DistConfig options{};
  bool skips_b_sometimes = false;  // in steps 1, 3, ... the loss does not reach b
  int micro = 1;
  bool counts = false;  // the number of samples is known to the device only
  double tolerance = 1e-5;
};

constexpr std::int64_t kBatch = 12;

void check_gradients(Session& session, const Reduction& way) {
  World& world = session.world;
  const c10::Device device = world.device();
  Net net(device);
  Net whole(device);
  Plan plan = session.plan;
  plan.config.dist.bucket_mib = way.options.bucket_mib;
  plan.config.dist.find_unused_parameters = way.options.find_unused_parameters;
  plan.config.dist.static_graph = way.options.static_graph;
  plan.config.dist.compression = way.options.compression;
  const auto strategy = make_strategy(plan, world);
  const OptimizerSpec spec(sgd({.lr = 0.1}));
  strategy->prepare(net, {&spec, 1});
  torch::optim::SGD reference(whole.parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < 6; ++step) {
    const bool skip = way.skips_b_sometimes && step % 2 == 1;
    const at::Tensor inputs = wave({kBatch, 4}, step * 3.1).to(device);
    const at::Tensor targets = wave({kBatch, 1}, step * 1.3).to(device);
    reference.zero_grad();
    at::mse_loss(whole.forward(inputs, skip), targets).backward();

    StrategyOptimizer& optimizer = strategy->optimizer();
    strategy->begin_step(step, {.stop = step == 3 && world.rank() == 1});
    optimizer.zero_grad();
    const std::int64_t share = kBatch / world.size() / way.micro;
    for (int micro = 0; micro < way.micro; ++micro) {
      optimizer.begin_forward(micro == way.micro - 1 ? Gradients::reduce : Gradients::accumulate);
      const std::int64_t begin = world.rank() * (kBatch / world.size()) + micro * share;
      const auto loss =
          at::mse_loss(net.forward(inputs.narrow(0, begin, share), skip), targets.narrow(0, begin, share));
      if (way.counts) {
        const at::Tensor count = at::full({}, static_cast<double>(share), loss.options().requires_grad(false));
        optimizer.add_count(count);
        optimizer.backward(loss, count);
      } else {
        optimizer.backward(loss, 1.0 / way.micro);
      }
    }
    optimizer.finish();
    if (way.counts) {
      optimizer.scale_grads(optimizer.mean_count().reciprocal());
    }
    for (const auto& item : net.named_parameters()) {
      const at::Tensor expected = whole.named_parameters()[item.key()].grad();
      if (expected.defined()) {
        const double difference = (item.value().grad() - expected).abs().max().item<double>();
        expect(difference <= way.tolerance,
               fmt::format("{}: gradient of {} in step {} differs by {}", way.name, item.key(), step, difference));
      }
    }
    optimizer.step();
    reference.step();
    const int heard = device.is_cuda() ? 4 : 3;  // on a GPU a request is known a step later
    expect(strategy->agreed().stop == (step == heard), fmt::format("{}: agreed() in step {}", way.name, step));
  }
}

void check_all_gradients(Session& session) {
  const std::vector<Reduction> ways{
      {.name = "plain"},
      {.name = "small buckets", .options = {.bucket_mib = 1e-4}},
      {.name = "accumulation", .micro = 2},
      {.name = "static graph", .options = {.static_graph = true}},
      {.name = "all used, searched", .options = {.find_unused_parameters = true}},
      {.name = "unused", .options = {.find_unused_parameters = true}, .skips_b_sometimes = true},
      {.name = "counts", .counts = true},
      {.name = "counts, accumulated", .micro = 2, .counts = true},
      {.name = "fp16", .options = {.compression = GradCompression::fp16}, .tolerance = 1e-2},
      {.name = "bf16", .options = {.compression = GradCompression::bf16}, .tolerance = 5e-2},
      {.name = "bf16 with counts",
       .options = {.compression = GradCompression::bf16},
       .counts = true,
       .tolerance = 5e-2},
      {.name = "bf16_stochastic with counts",
       .options = {.compression = GradCompression::bf16_stochastic},
       .counts = true,
       .tolerance = 5e-2},
      {.name = "fp32", .options = {.compression = GradCompression::fp32}},
      {.name = "fp32_stochastic", .options = {.compression = GradCompression::fp32_stochastic}},
  };
  for (const Reduction& way : ways) {
    check_gradients(session, way);
    session.print("checked: " + way.name);
  }
}

// --- batch norm over ranks ---

/// How the 24 features of a sample are given to the batch norm: CUDA has other kernels for each of these.
enum class Layout { channels_first, flat, channels_last };

template <class Norm>
struct NormNet : torch::nn::Module {
  NormNet(c10::Device device, Layout of_input) : layout(of_input) {
    first = register_module("first", torch::nn::Linear(4, 24));
    norm = register_module("norm", Norm(layout == Layout::flat ? 24 : 6));
    second = register_module("second", torch::nn::Linear(24, 1));
    const at::NoGradGuard no_grad;
    double shift = 0;
    for (auto& parameter : parameters()) {
      parameter.copy_(wave(parameter.sizes(), shift += 1) * 0.5 + 0.3);
    }
    to(device);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor features = first(x);
    if (layout == Layout::channels_first) {
      features = features.view({-1, 6, 4});
    } else if (layout == Layout::channels_last) {
      features = features.view({-1, 6, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast);
    }
    return second(at::relu(norm(features)).flatten(1));
  }
  Layout layout;
  torch::nn::Linear first{nullptr};
  Norm norm{nullptr};
  torch::nn::Linear second{nullptr};
};

/// Samples of two ranks, one pair per micro-batch.
using Samples = std::vector<std::array<std::int64_t, 2>>;

/// Trains on two ranks, and in each of them a second net on the samples of both. Returns the largest difference of
/// their parameters and statistics.
template <class Norm>
double difference_from_whole_batch(Session& session, const Samples& samples, Layout layout = Layout::channels_first) {
  World& world = session.world;
  NormNet<Norm> net(world.device(), layout);
  // BatchNorm1d takes no images; it computes the same from their pixels in a row.
  NormNet<torch::nn::BatchNorm1d> whole(world.device(), layout == Layout::flat ? layout : Layout::channels_first);
  const auto strategy = make_strategy(session.plan, world);
  const OptimizerSpec spec(sgd({.lr = 0.1}));
  strategy->prepare(net, {&spec, 1});
  StrategyOptimizer& optimizer = strategy->optimizer();
  torch::optim::SGD reference(whole.parameters(), torch::optim::SGDOptions(0.1));
  std::int64_t all = 0;
  for (const auto& [first, second] : samples) {
    all += first + second;
  }
  for (int step = 0; step < 6; ++step) {
    reference.zero_grad();
    strategy->begin_step(step);
    optimizer.zero_grad();
    for (std::size_t micro = 0; micro < samples.size(); ++micro) {
      const auto& shares = samples[micro];
      const std::int64_t both = shares[0] + shares[1];
      const double shift = step * 3.1 + static_cast<double>(micro);
      const at::Tensor x = wave({both, 4}, shift).to(world.device());
      const at::Tensor y = wave({both, 1}, shift * 0.4).to(world.device());
      const auto part_of_step = [&](std::int64_t count) {
        return static_cast<double>(count) / static_cast<double>(all);
      };
      (at::mse_loss(whole.forward(x), y) * part_of_step(both)).backward();

      optimizer.begin_forward(micro + 1 == samples.size() ? Gradients::reduce : Gradients::accumulate);
      const std::int64_t mine = shares.at(static_cast<std::size_t>(world.rank()));
      if (mine == 0) {
        optimizer.backward_nothing();
        continue;
      }
      const std::int64_t begin = world.is_main() ? 0 : shares[0];
      optimizer.backward(at::mse_loss(net.forward(x.narrow(0, begin, mine)), y.narrow(0, begin, mine)),
                         part_of_step(mine) * world.size());
    }
    optimizer.finish();
    optimizer.step();
    reference.step();
  }
  double largest = 0;
  const auto compare = [&](const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
    for (std::size_t i = 0; i < expected.size(); ++i) {
      largest = larger_or_nan(largest, (found[i] - expected[i]).abs().to(at::kDouble).max().template item<double>());
    }
  };
  compare(net.parameters(), whole.parameters());
  compare(net.buffers(), whole.buffers());
  return largest;
}

void check_batch_norm(Session& session) {
  const std::map<std::string, Samples> ways{{"two ranks", {{4, 4}}},
                                            {"unequal", {{5, 3}}},
                                            {"accumulation", {{4, 4}, {2, 1}}},
                                            {"an idle rank", {{4, 0}}},
                                            {"the main rank idle", {{4, 4}, {0, 3}}}};
  for (const auto& [name, samples] : ways) {
    const double difference = difference_from_whole_batch<SyncBatchNorm>(session, samples);
    expect(difference <= 1e-4, fmt::format("SyncBatchNorm, {}: differs by {}", name, difference));
    session.print("checked: " + name);
  }
  for (const auto& [name, layout] :
       {std::pair("[N, C]", Layout::flat), std::pair("channels last", Layout::channels_last)}) {
    const double difference = difference_from_whole_batch<SyncBatchNorm>(session, {{5, 3}}, layout);
    expect(difference <= 1e-4, fmt::format("SyncBatchNorm, {}: differs by {}", name, difference));
    session.print(fmt::format("checked: {}", name));
  }
  const double control = difference_from_whole_batch<torch::nn::BatchNorm1d>(session, {{4, 4}});
  expect(control > 1e-3, fmt::format("batch norm of each rank differs by {} only: the checks prove nothing", control));
}

// --- sharded optimizer state ---

class ShardedOrNot {
 public:
  ShardedOrNot(Session& session, const OptimizerSpec& spec, bool is_sharded)
      : world_(session.world), net_(world_.device()) {
    Plan plan = session.plan;
    plan.config.dist.shard_optimizer = is_sharded;
    strategy_ = make_strategy(plan, world_);
    strategy_->prepare(net_, {&spec, 1});
  }
  void train(int first_step, int steps) {
    StrategyOptimizer& optimizer = strategy_->optimizer();
    for (int step = first_step; step < first_step + steps; ++step) {
      strategy_->begin_step(step);
      optimizer.zero_grad();
      optimizer.begin_forward(Gradients::reduce);
      const double shift = step * 3.1 + world_.rank();
      const at::Tensor x = wave({kBatch, 4}, shift).to(world_.device());
      const at::Tensor y = wave({kBatch, 1}, shift * 0.4).to(world_.device());
      optimizer.backward(at::mse_loss(net_.forward(x, false), y), 1);
      optimizer.finish();
      optimizer.step();
    }
  }
  NamedTensors state() const { return strategy_->optimizer_state(); }
  void continue_from(const ShardedOrNot& other, const NamedTensors& state) {
    const at::NoGradGuard no_grad;
    const auto values = other.net_.parameters();
    auto mine = net_.parameters();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      mine[i].copy_(values[i]);
    }
    strategy_->load_optimizer_state(state);
  }
  bool has_weights_of(const ShardedOrNot& other) const {
    const auto mine = net_.parameters();
    const auto others = other.net_.parameters();
    return std::equal(mine.begin(), mine.end(), others.begin(), others.end(),
                      [](const at::Tensor& a, const at::Tensor& b) { return at::equal(a, b); });
  }

 private:
  World& world_;
  Net net_;
  std::unique_ptr<Strategy> strategy_{};
};

/// Everything but the place of the state is the same, bit for bit.
void check_shards(Session& session) {
  const std::map<std::string, OptimizerFactory> optimizers{
      {"adamw", adamw({.lr = 0.01})}, {"sgd", sgd({.lr = 0.1, .momentum = 0.9})}, {"rmsprop", rmsprop({.lr = 0.01})}};
  for (const auto& [name, factory] : optimizers) {
    const OptimizerSpec spec(factory);
    ShardedOrNot sharded(session, spec, true);
    ShardedOrNot plain(session, spec, false);
    sharded.train(0, 6);
    plain.train(0, 6);
    expect(sharded.has_weights_of(plain), name + ": other weights");
    const NamedTensors part = sharded.state();
    const NamedTensors whole = plain.state();
    if (session.world.is_main()) {
      expect(part.size() == whole.size(), name + ": number of tensors in the state");
      for (std::size_t i = 0; i < whole.size(); ++i) {
        expect_equal(part[i].second, whole[i].second, name + ": state " + whole[i].first);
      }
    } else {
      expect(part.size() < whole.size(), name + ": this rank keeps the state of all parameters");
    }
    ShardedOrNot resumed(session, spec, true);
    resumed.continue_from(plain, whole);
    resumed.train(6, 3);
    plain.train(6, 3);
    expect(resumed.has_weights_of(plain), name + ": other weights after a resume");
    sharded.train(7, 3);
    expect(!sharded.has_weights_of(plain), name + ": the weights of other steps are the same, so nothing was checked");
    session.print("checked: " + name);
  }
}

// --- training ---

struct Options {
  std::string what;
  std::string fail = "";     // throw, kill, hang, memory, full, assert; more: one more collective than the others
  std::string fail_in = "";  // forward, backward, optimizer, collective
  std::int64_t fail_rank = 1;
  std::int64_t fail_step = 20;
  std::int64_t sample_mib = 0;  // that a sample takes in a forward
};

/// Takes all memory of a GPU and asks for more. The CPU's stays: it is that of the whole machine.
void fill(c10::Device device) {
  static std::vector<at::Tensor> held;  // until the process ends: what ends the run has no memory either
  for (std::int64_t bytes = std::int64_t{1} << 30; device.is_cuda() && bytes >= 1 << 9; bytes /= 2) {
    try {
      while (true) {
        held.push_back(at::empty({bytes}, at::device(device).dtype(at::kByte)));
      }
    } catch (const c10::OutOfMemoryError&) {
    }
  }
  at::empty({std::int64_t{1} << 50}, at::device(device));
}

/// A label that does not exist. On a GPU the kernel notices it, and no call of CUDA succeeds any more.
void give_wrong_label(c10::Device device) {
  const at::Tensor label = at::full({1}, 1'000'000, at::device(device).dtype(at::kLong));
  at::cross_entropy_loss(at::zeros({1, 10}, at::device(device)), label).item<float>();
}

void fail(const std::string& how, c10::Device device) {
  const std::map<std::string, std::function<void()>> ways{
      {"throw", [] { throw std::runtime_error("cannot decode sample 4411"); }},
      {"kill", [] { std::raise(SIGKILL); }},
      {"hang", [] { std::this_thread::sleep_for(std::chrono::hours(1)); }},
      {"memory", [&] { at::empty({std::int64_t{1} << 50}, at::device(device)); }},
      {"full", [&] { fill(device); }},
      {"assert", [&] { give_wrong_label(device); }},
  };
  ways.at(how)();
}

class FailingTask final : public Task {
 public:
  FailingTask(const Options& options, World& world) : options_(options), world_(world) {}
  torch::nn::Module& module() override { return net_; }
  std::vector<OptimizerSpec> optimizers() override { return {sgd({.lr = 0.01})}; }
  StepOutput training_step(const Batch& batch) override {
    reach("forward");
    const at::Tensor activations =
        at::empty({batch.samples * options_.sample_mib << 20}, at::device(world_.device()).dtype(at::kByte));
    auto loss = at::mse_loss(net_.forward(batch.input, false), batch.target);
    if (is_due("backward")) {
      loss.register_hook([this](const at::Tensor&) { fail(options_.fail, world_.device()); });
    }
    return loss;
  }
  void optimize(Step& step) override {
    step_ = step.number();
    reach("optimizer");
    collective();
    Task::optimize(step);
  }

 private:
  bool is_due(const std::string& where) const {
    return options_.fail_in == where && step_ == options_.fail_step && world_.rank() == options_.fail_rank;
  }
  void reach(const std::string& where) {
    if (is_due(where)) {
      fail(options_.fail, world_.device());
    }
  }
  // The failing rank waits in a collective in which the others are late, and fails there, in another thread.
  void collective() {
    if (options_.fail_in != "collective" || step_ != options_.fail_step) {
      return;
    }
    const at::Tensor one = at::ones({1}, at::device(world_.device()));
    if (!is_due("collective")) {
      if (options_.fail == "more") {
        return;
      }
      std::this_thread::sleep_for(std::chrono::seconds(3));  // late, as a slow rank is
    } else if (options_.fail != "more") {
      std::thread([how = options_.fail, device = world_.device()] {
        std::this_thread::sleep_for(std::chrono::milliseconds(500));  // no event tells that NCCL waits
        fail(how, device);
      }).detach();
    }
    world_.all_reduce(one, Reduce::sum);
    one.cpu();
  }

  Options options_;
  World& world_;
  Net net_{c10::kCPU};
  std::int64_t step_ = 0;
};

std::shared_ptr<Dataset> waves() { return tensor_dataset(wave({96, 4}, 0), wave({96, 1}, 1)); }

/// The steps between two reports make no rank wait for its GPU.
void check_steady_steps(Session& session, const Options& options, const std::string& name,
                        const std::function<void(TrainConfig&)>& configure) {
  Plan plan = session.plan;
  configure(plan.config);
  plan.config.max_steps = 60;
  plan.config.max_epochs = 0;
  plan.config.checkpoint.enabled = false;
  plan.config.report.every_steps = 0;
  FailingTask task(options, session.world);
  DataLoader data(waves(), plan.loader, session.world);
  Trainer(plan, session.world)
      .add(at_stage(Stage::step_end,
                    [](const StageContext& context) {
                      const auto step = context.state.step;
                      fail_on_synchronization(step >= 43 && step < 57);
                    }))
      .fit(task, data);
  session.print("checked: " + name);
}

void check_all_steady_steps(Session& session, const Options& options) {
  const auto check = [&](const std::string& name, const std::function<void(TrainConfig&)>& configure) {
    check_steady_steps(session, options, name, configure);
  };
  check("plain", [](TrainConfig&) {});
  check("bf16, clipped", [](TrainConfig& config) {
    config.precision = Precision::bf16_mixed;
    config.optim.max_grad_norm = 0.1;
  });
  check("compressed", [](TrainConfig& config) { config.dist.compression = GradCompression::bf16; });
  check("searched for unused parameters", [](TrainConfig& config) { config.dist.find_unused_parameters = true; });
  check("static graph", [](TrainConfig& config) { config.dist.static_graph = true; });
  check("sharded optimizer state", [](TrainConfig& config) { config.dist.shard_optimizer = true; });
}

void train(Session& session, const Options& options) {
  FailingTask task(options, session.world);
  DataLoader data(waves(), session.plan.loader, session.world);
  Trainer(session).fit(task, data);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  Flags flags;
  flags.positional("what", &options.what, "collectives, gradients, batch_norm, shards, steady or train")
      .add("fail", &options.fail, "how")
      .add("fail_in", &options.fail_in, "phase to fail in")
      .add("fail_rank", &options.fail_rank, "rank that fails")
      .add("fail_step", &options.fail_step, "step in which it fails")
      .add("sample_mib", &options.sample_mib, "memory of a sample in a forward");
  const TrainConfig defaults{.max_epochs = 0, .max_steps = 60, .batch_size = 4, .report = {.every_steps = 1}};
  return run(defaults, flags, argc, argv, [&](Session& session) {
    const std::map<std::string, std::function<void()>> tasks{
        {"collectives",
         [&] {
           check_reductions(session.world);
           check_broadcasts(session.world);
           check_gathers(session.world);
           check_control_plane(session.world);
           check_buffers(session);
         }},
        {"gradients", [&] { check_all_gradients(session); }},
        {"batch_norm", [&] { check_batch_norm(session); }},
        {"shards", [&] { check_shards(session); }},
        {"steady", [&] { check_all_steady_steps(session, options); }},
        {"train", [&] { train(session, options); }},
    };
    tasks.at(options.what)();
    session.print("all checks passed");
  });
}
