#include "trainer/pass_graphs.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>

#include "device/simulated_device.h"
#include "support/captured_stderr.h"
#include "tensor/replaced_values.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kFeatures = 6;

// Module::to cannot move to the simulated device.
at::Tensor values_on_device(at::IntArrayRef shape) {
  const at::Tensor values = at::cos(at::arange(c10::multiply_integers(shape), at::kFloat) * 1.3).view(shape) * 0.3;
  return values.to(simulated::device());
}

struct LayerImpl : torch::nn::Module {
  LayerImpl(std::int64_t in, std::int64_t out)
      : weight(register_parameter("weight", values_on_device({out, in}))),
        bias(register_parameter("bias", values_on_device({out}))) {}
  at::Tensor forward(const at::Tensor& input) { return at::linear(input, weight, bias); }
  at::Tensor weight;
  at::Tensor bias;
};
TORCH_MODULE(Layer);

struct NetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor hidden = at::relu(wide(input));
    if (is_training()) {
      const at::NoGradGuard no_grad;
      mean.lerp_(hidden.mean(0), 0.1);  // as the statistics of batch norm
    }
    return head(at::dropout(hidden - mean, 0.4, is_training()));
  }
  Layer wide = register_module("wide", Layer(kFeatures, 8));
  Layer head = register_module("head", Layer(8, 1));
  at::Tensor mean = register_buffer("mean", values_on_device({8}));
};
TORCH_MODULE(Net);

/// Trains on the simulated device, with or without graphs.
class Training {
 public:
  using Loss = std::function<StepOutput(Net&, const Batch&)>;

  Training(bool has_graphs, Loss loss) : loss_(std::move(loss)) {
    at::Generator random = at::globalContext().defaultGenerator(c10::kCPU);
    random.set_current_seed(1);
    optimizer_ = std::make_unique<torch::optim::SGD>(net_->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    if (has_graphs) {
      make_graphs();
    }
  }

  /// Another fit of the same module.
  void begin_again() {
    if (graphs_ != nullptr) {
      make_graphs();
    }
  }

  std::function<void(Batch&)> prepare = [](Batch&) {};                                ///< each batch
  std::function<void()> before_update = [] {};                                        ///< of the parameters
  double loss_factor = 1;                                                             ///< of the backward
  void note(const at::Tensor& value) { outputs_.push_back(value.detach().clone()); }  ///< as a result

  Net& net() { return net_; }
  PassGraphs& graphs() { return *graphs_; }
  DeviceClock& clock() { return clock_; }
  int graphs_made() const { return graphs_made_; }
  int passes() const { return passes_; }  ///< that ran on the host

  /// A step with micro-batches of these sizes.
  void step(const std::vector<std::int64_t>& sizes) {
    clock_.begin_step();
    optimizer_->zero_grad(/*set_to_none=*/true);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      Batch batch = next_batch(sizes[i]);
      prepare(batch);
      const StepOutput output =
          graphs_
              ? graphs_->run({.batch = batch, .weight = 0.5, .loss_factor = loss_factor, .begins_step = i == 0}, pass_)
              : pass_(batch);
      outputs_.push_back(output.loss.detach());
      for (const auto& [name, value] : output.metrics) {
        outputs_.push_back(value.detach());
      }
    }
    before_update();
    optimizer_->step();
    clock_.end_step();
  }
  void steps(int count, const std::vector<std::int64_t>& sizes) {
    for (int i = 0; i < count; ++i) {
      step(sizes);
    }
  }

  /// What a checkpoint has, on the CPU.
  struct Saved {
    std::vector<at::Tensor> values{};   ///< parameters and statistics
    std::vector<at::Tensor> momenta{};  ///< of the parameters
    at::Tensor random{};                ///< state of the generator
    std::vector<at::Tensor> outputs{};
    int seen = 0;
  };
  Saved save() {
    Saved saved{.outputs = outputs_, .seen = seen_};
    for (const at::Tensor& parameter : net_->parameters()) {
      const auto& state = *optimizer_->state().at(parameter.unsafeGetTensorImpl());
      saved.momenta.push_back(static_cast<const torch::optim::SGDParamState&>(state).momentum_buffer().cpu());
    }
    for (const at::Tensor& value : values()) {
      saved.values.push_back(value.detach().cpu().clone());
    }
    saved.random = at::globalContext().defaultGenerator(c10::kCPU).get_state();
    return saved;
  }
  void load(const Saved& saved) {
    const at::NoGradGuard no_grad;
    const std::vector<at::Tensor> mine = values();
    for (std::size_t i = 0; i < mine.size(); ++i) {
      mine[i].copy_(saved.values[i].to(simulated::device()));
    }
    const std::vector<at::Tensor> parameters = net_->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      auto state = std::make_unique<torch::optim::SGDParamState>();
      state->momentum_buffer(saved.momenta[i].to(simulated::device()));
      optimizer_->state()[parameters[i].unsafeGetTensorImpl()] = std::move(state);
    }
    at::Generator random = at::globalContext().defaultGenerator(c10::kCPU);
    random.set_state(saved.random);
    outputs_ = saved.outputs;
    seen_ = saved.seen;
  }

  /// Losses and metrics of all micro-batches, parameters and statistics, on the CPU.
  std::vector<at::Tensor> results() {
    std::vector<at::Tensor> results = outputs_;
    std::ranges::copy(values(), std::back_inserter(results));
    for (at::Tensor& tensor : results) {
      tensor = tensor.detach().cpu();
    }
    return results;
  }

 private:
  std::vector<at::Tensor> values() {
    std::vector<at::Tensor> values = net_->parameters();
    std::ranges::copy(net_->buffers(), std::back_inserter(values));
    return values;
  }
  void make_graphs() {
    graphs_ = std::make_unique<PassGraphs>(*net_, simulated::device(), clock_, [this](DeviceGraph* beside) {
      ++graphs_made_;
      return simulated::make_graph(beside);
    });
  }
  Batch next_batch(std::int64_t size) {
    const at::Tensor input = at::sin(at::arange(size * kFeatures, at::kFloat) * 0.7 + seen_++).view({size, kFeatures});
    Batch batch{.input = input, .target = input.sum(1, /*keepdim=*/true), .samples = size};
    return batch.to(simulated::device());
  }

  Loss loss_;
  Net net_{};
  std::unique_ptr<torch::optim::SGD> optimizer_{};
  DeviceClock clock_{simulated::device(), /*pause=*/std::chrono::milliseconds(0)};
  std::unique_ptr<PassGraphs> graphs_{};
  std::vector<at::Tensor> outputs_{};
  int seen_ = 0;
  int graphs_made_ = 0;
  int passes_ = 0;
  const PassGraphs::Pass pass_ = [this](const Batch& batch) {
    ++passes_;
    StepOutput output = loss_(net_, batch);
    clock_.enter(Phase::backward);
    torch::autograd::backward({output.loss},
                              {at::full({}, 0.5 * loss_factor, output.loss.options().requires_grad(false))});
    return output;
  };
};

StepOutput plain_loss(Net& net, const Batch& batch) {
  const at::Tensor output = net->forward(batch.input);
  StepOutput result((output - batch.target).square().mean());
  result.metrics.emplace_back("largest", output.detach().abs().max());
  return result;
}

std::string bitwise_difference(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  if (found.size() != expected.size()) {
    return "other numbers of tensors";
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!at::equal(found[i], expected[i])) {
      return "tensor " + std::to_string(i) + " of " + std::to_string(found.size()) + " differs";
    }
  }
  return {};
}

using Course = std::function<void(Training&)>;

std::vector<at::Tensor> results_of(bool has_graphs, const Training::Loss& loss, const Course& course,
                                   const std::function<void(Training&)>& look = {}) {
  Training training(has_graphs, loss);
  course(training);
  if (look) {
    look(training);
  }
  return training.results();
}

/// Trains with and without graphs, with work of the device at several times. Returns what the log said.
std::string compare(const Course& course, int graphs, int passes, const Training::Loss& loss = plain_loss) {
  std::string told;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE(seed);
    simulated::begin(seed);
    const auto expected = results_of(/*has_graphs=*/false, loss, course);
    CapturedStderr captured;
    const auto found = results_of(/*has_graphs=*/true, loss, course, [&](const Training& training) {
      EXPECT_EQ(training.graphs_made(), graphs);
      EXPECT_EQ(training.passes(), passes);
    });
    told = captured.text();
    EXPECT_EQ(bitwise_difference(found, expected), "");
    simulated::begin(1);  // all memory is free again
  }
  return told;
}

TEST(PassGraphsOnASimulatedDevice, GiveTheBitsOfTheWorkItself) {
  const auto told = compare([](Training& training) { training.steps(12, {4}); }, /*graphs=*/1, /*passes=*/4);
  EXPECT_THAT(told, HasSubstr("replayed as a CUDA graph, which keeps "));
}

// As when a ReloadedLoader changes the global batch.
TEST(PassGraphsOnASimulatedDevice, HaveTheirFactorOfTheLoss) {
  const auto course = [](Training& training) {
    training.steps(8, {4});
    training.loss_factor = 2;
    training.steps(8, {4});
  };
  compare(course, /*graphs=*/2, /*passes=*/2 * 4);
}

TEST(PassGraphsOnASimulatedDevice, HaveNoEventsOfTheClock) {
  simulated::begin(0);
  Training training(/*has_graphs=*/true, plain_loss);
  for (int i = 0; i < 8; ++i) {
    training.step({4});
    simulated::finish();
  }
  EXPECT_EQ(training.graphs_made(), 1);
  EXPECT_EQ(training.clock().steps(), 8) << "an event that a graph has recorded can be asked for nothing";
}

TEST(PassGraphsOnASimulatedDevice, AddTheGradientsOfSeveralMicroBatches) {
  // Three to warm up, the last one of the second step by itself, one for each graph.
  compare([](Training& training) { training.steps(8, {4, 4}); }, /*graphs=*/2, /*passes=*/6);
}

TEST(PassGraphsOnASimulatedDevice, LeaveOtherShapesToTheHost) {
  const auto course = [](Training& training) {
    for (int epoch = 0; epoch < 3; ++epoch) {
      training.steps(3, {4, 4});
      training.step({4, 2});
      training.step({3, 4});
    }
  };
  // Also a micro-batch of a known shape whose step began with another one.
  compare(course, /*graphs=*/2, /*passes=*/3 + 1 + 2 + 3 * 3);
}

TEST(PassGraphsOnASimulatedDevice, FollowAShapeThatStays) {
  const auto course = [](Training& training) {
    training.steps(6, {4});
    training.steps(6, {5});
    training.steps(6, {4});
  };
  compare(course, /*graphs=*/3, /*passes=*/3 * 4);
}

TEST(PassGraphsOnASimulatedDevice, TellIfNoShapeStays) {
  simulated::begin(1);
  Training training(/*has_graphs=*/true, plain_loss);
  CapturedStderr captured;
  training.steps(50, {4, 3});
  EXPECT_THAT(captured.text(), HasSubstr("no 4 in a row had the same shapes"));
  EXPECT_EQ(training.graphs_made(), 0);
}

TEST(PassGraphsOnASimulatedDevice, AreRecordedAnewAfterFreezing) {
  const auto course = [](Training& training) {
    training.steps(6, {4});
    training.net()->wide->weight.requires_grad_(false);
    training.steps(6, {4});
    training.net()->wide->weight.requires_grad_(true);
    training.steps(6, {4});
  };
  compare(course, /*graphs=*/3, /*passes=*/3 * 4);
}

TEST(PassGraphsOnASimulatedDevice, AreRecordedAnewInAnotherMode) {
  const auto course = [](Training& training) {
    training.steps(6, {4});
    training.net()->eval();
    training.steps(6, {4});
  };
  compare(course, /*graphs=*/2, /*passes=*/2 * 4);
}

TEST(PassGraphsOnASimulatedDevice, AreRecordedAnewIfAParameterMoves) {
  const auto course = [](Training& training) {
    training.steps(6, {4});
    const at::NoGradGuard no_grad;
    at::Tensor& weight = training.net()->head->weight;
    weight.set_data(weight.clone());
    const at::AutoGradMode with_gradients(true);
    training.steps(6, {4});
  };
  compare(course, /*graphs=*/2, /*passes=*/2 * 4);
}

// The recording fails in the middle of a forward: nothing of it may be left.
TEST(PassGraphsOnASimulatedDevice, AreGivenUpIfTheHostWaits) {
  const auto loss = [](Net& net, const Batch& batch) {
    const at::Tensor output = net->forward(batch.input);
    const at::Tensor error = (output - batch.target).square().mean();
    return StepOutput(error.item<float>() > 1 ? error * 0.5 : error);
  };
  for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{4}, std::vector<std::int64_t>{4, 4}}) {
    const int micro_batches = 10 * static_cast<int>(sizes.size());
    const auto told = compare([&](Training& training) { training.steps(10, sizes); }, /*graphs=*/1,
                              /*passes=*/micro_batches + 1, loss);
    EXPECT_THAT(told, HasSubstr("steps run without a CUDA graph, with the same results: training_step cannot be "
                                "recorded: the host waits"));
  }
}

TEST(PassGraphsOnASimulatedDevice, AreGivenUpIfAMetricIsOnTheHost) {
  const auto loss = [](Net& net, const Batch& batch) {
    StepOutput output = plain_loss(net, batch);
    output.metrics.emplace_back("constant", at::ones({}));
    return output;
  };
  const auto told = compare([](Training& training) { training.steps(10, {4}); }, /*graphs=*/1, /*passes=*/11, loss);
  EXPECT_THAT(told, HasSubstr("the metric constant is on cpu"));
}

TEST(PassGraphsOnASimulatedDevice, AreKeptWhileParametersHaveOtherValues) {
  const auto course = [](Training& training) {
    for (int i = 0; i < 3; ++i) {
      training.steps(4, {4});
      at::Tensor& weight = training.net()->wide->weight;
      const ReplacedValues average({{weight, weight.detach() * 0.5}});  // as in a validation
      training.note(training.net()->forward(values_on_device({3, kFeatures})));
    }
  };
  compare(course, /*graphs=*/1, /*passes=*/4);
}

TEST(PassGraphsOnASimulatedDevice, AreRecordedAnewIfABufferIsReplaced) {
  at::Tensor* scale = nullptr;
  const auto course = [&](Training& training) {
    scale = &training.net()->register_buffer("scale", values_on_device({1}));
    training.steps(6, {4});
    *scale = *scale * 3;
    training.steps(6, {4});
  };
  const auto loss = [&](Net& net, const Batch& batch) {
    return StepOutput((net->forward(batch.input) * *scale - batch.target).square().mean());
  };
  compare(course, /*graphs=*/2, /*passes=*/2 * 4, loss);
}

TEST(PassGraphsOnASimulatedDevice, AreRecordedAnewIfAPartIsRemoved) {
  const auto course = [](Training& training) {
    Layer adapter = training.net()->register_module("adapter", Layer(kFeatures, 1));
    for (const at::Tensor& parameter : adapter->parameters()) {
      parameter.requires_grad_(false);
    }
    training.steps(6, {4});
    training.net()->unregister_module("adapter");
    training.steps(6, {4});
  };
  const auto loss = [](Net& net, const Batch& batch) {
    at::Tensor output = net->forward(batch.input);
    if (const auto parts = net->named_children(); parts.contains("adapter")) {
      output = output + parts["adapter"]->as<Layer>()->forward(batch.input);
    }
    return StepOutput((output - batch.target).square().mean());
  };
  compare(course, /*graphs=*/2, /*passes=*/2 * 4, loss);
}

TEST(PassGraphsOnASimulatedDevice, AreGivenUpIfRecordingTakesMoreThanItSaves) {
  simulated::begin(1);
  Training training(/*has_graphs=*/true, plain_loss);
  CapturedStderr captured;
  for (int i = 0; i < 7; ++i) {
    training.steps(5, {4});
    training.steps(5, {5});
  }
  EXPECT_THAT(captured.text(), HasSubstr("10 graphs were recorded and replayed only 20 times in all"));
  EXPECT_EQ(training.graphs_made(), 10);
  EXPECT_EQ(training.passes(), 10 * 4 + 4 * 5);
}

TEST(PassGraphsOnASimulatedDevice, AreNotConfusedByTheGraphsOfAnEarlierFit) {
  const auto course = [](Training& training) {
    training.steps(6, {4, 4});
    training.begin_again();
    training.steps(6, {4, 4});
  };
  compare(course, /*graphs=*/4, /*passes=*/2 * 6);
}

// A training of its own, as in another process.
TEST(PassGraphsOnASimulatedDevice, GiveTheBitsOfAStraightRunAfterAResume) {
  constexpr int kStepsInAll = 14;
  for (const std::vector<std::int64_t>& sizes : {std::vector<std::int64_t>{4}, std::vector<std::int64_t>{4, 4}}) {
    const auto all_steps = [&](Training& training) { training.steps(kStepsInAll, sizes); };
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      for (const int stop : {2, 8}) {  // before and after the graphs are recorded
        SCOPED_TRACE(testing::Message() << sizes.size() << " micro-batches, seed " << seed << ", stop " << stop);
        simulated::begin(seed);
        const CapturedStderr captured;
        const auto without = results_of(/*has_graphs=*/false, plain_loss, all_steps);
        const auto straight = results_of(/*has_graphs=*/true, plain_loss, all_steps);
        Training::Saved saved{};
        results_of(/*has_graphs=*/true, plain_loss, [&](Training& training) {
          training.steps(stop, sizes);
          saved = training.save();
        });
        const auto resumed = [&] {
          return results_of(
              /*has_graphs=*/true, plain_loss,
              [&](Training& training) {
                training.load(saved);
                training.steps(kStepsInAll - stop, sizes);
              },
              [&](const Training& training) { EXPECT_EQ(training.graphs_made(), static_cast<int>(sizes.size())); });
        };
        const auto found = resumed();
        EXPECT_EQ(bitwise_difference(found, straight), "");
        EXPECT_EQ(bitwise_difference(found, without), "");
        saved.momenta.front() = saved.momenta.front() * 2;
        EXPECT_NE(bitwise_difference(resumed(), straight), "") << "the control";
        simulated::begin(1);  // all memory is free again
      }
    }
  }
}

TEST(PassGraphsOnASimulatedDevice, TakeGradientsThatWereReplacedOrChanged) {
  const auto course = [](Training& training) {
    training.before_update = [&training] {
      Net& net = training.net();
      net->wide->weight.mutable_grad() = net->wide->weight.grad() * 0.5;
      net->head->weight.mutable_grad().mul_(2);
      net->head->bias.mutable_grad().reset();
    };
    training.steps(8, {4, 4});
  };
  compare(course, /*graphs=*/2, /*passes=*/6);
}

TEST(PassGraphsOnASimulatedDevice, ShareAParameterAsTheModuleDoes) {
  const auto course = [](Training& training) {
    training.net()->register_parameter("tied", training.net()->wide->weight);
    training.steps(8, {4, 4});
  };
  const auto loss = [](Net& net, const Batch& batch) {
    StepOutput output = plain_loss(net, batch);
    output.loss = output.loss + at::linear(batch.input, net->named_parameters()["tied"]).square().mean();
    return output;
  };
  compare(course, /*graphs=*/2, /*passes=*/6, loss);
}

TEST(PassGraphsOnASimulatedDevice, GiveNoGradientToAParameterThatIsNotUsed) {
  const auto course = [](Training& training) {
    training.before_update = [&training] { EXPECT_FALSE(training.net()->head->weight.grad().defined()); };
    training.steps(8, {4, 4});
  };
  const auto loss = [](Net& net, const Batch& batch) {
    return StepOutput(net->wide->forward(batch.input).square().mean());
  };
  compare(course, /*graphs=*/2, /*passes=*/6, loss);
}

TEST(PassGraphsOnASimulatedDevice, GiveMetricsThatAreViewsOfTheBatch) {
  const auto loss = [](Net& net, const Batch& batch) {
    StepOutput output = plain_loss(net, batch);
    output.metrics.emplace_back("first", batch.target.select(0, 0).select(0, 0));
    return output;
  };
  compare([](Training& training) { training.steps(8, {4, 4}); }, /*graphs=*/2, /*passes=*/6, loss);
}

// The gradient of an input is that of this micro-batch only.
TEST(PassGraphsOnASimulatedDevice, LetAPassChangeItsBatch) {
  const auto loss = [](Net& net, const Batch& batch) {
    const at::Tensor target = batch.target.mul_(2);
    batch.input.requires_grad_(true);
    torch::autograd::backward({net->forward(batch.input).square().mean()});
    const at::Tensor moved = batch.input.detach() + batch.input.grad();
    return StepOutput((net->forward(moved) - target).square().mean());
  };
  compare([](Training& training) { training.steps(8, {4, 4}); }, /*graphs=*/2, /*passes=*/6, loss);
}

TEST(PassGraphsOnASimulatedDevice, LeaveWhatATaskKeepsOfItsLastPass) {
  at::Tensor last;
  const auto course = [&](Training& training) {
    training.before_update = [&] { training.note(last); };
    training.steps(8, {4, 4});
    last.reset();
  };
  const auto loss = [&](Net& net, const Batch& batch) {
    last = net->forward(batch.input);
    return StepOutput((last - batch.target).square().mean());
  };
  compare(course, /*graphs=*/2, /*passes=*/6, loss);
}

TEST(PassGraphsOnASimulatedDevice, AreGivenUpIfATensorOfTheBatchIsSparseOrNotOnTheDevice) {
  const std::map<std::string, at::Tensor> fields{{"is on cpu", at::ones({2})}, {"is sparse", at::eye(2).to_sparse()}};
  for (const auto& [problem, field] : fields) {
    const auto course = [&, &lengths = field](Training& training) {
      training.prepare = [&](Batch& batch) { batch.fields = {{"lengths", lengths}}; };
      training.steps(6, {4});
    };
    EXPECT_THAT(compare(course, /*graphs=*/0, /*passes=*/6), HasSubstr("a tensor of the batch " + problem));
  }
}

TEST(PassGraphsOnASimulatedDevice, AreGivenUpForAGradientThatNothingClears) {
  const auto course = [](Training& training) {
    Layer unused = training.net()->register_module("unused", Layer(1, 1));
    unused->weight.mutable_grad() = at::zeros_like(unused->weight);
    training.steps(6, {4});
  };
  EXPECT_THAT(compare(course, /*graphs=*/0, /*passes=*/6),
              HasSubstr("a parameter has a gradient before the first backward of a step"));
}

TEST(PassGraphsOnASimulatedDevice, TellWhyOnlyOnce) {
  simulated::begin(1);
  Training training(/*has_graphs=*/true, plain_loss);
  CapturedStderr captured;
  training.graphs().stop("of a first reason");
  training.graphs().stop("of a second reason");
  training.steps(6, {4});
  const std::string told = captured.text();
  EXPECT_THAT(told, HasSubstr("of a first reason"));
  EXPECT_THAT(told, testing::Not(HasSubstr("of a second reason")));
  EXPECT_EQ(training.graphs_made(), 0);
}

// The control: a graph that reads the batch where the first one was.
TEST(PassGraphsOnASimulatedDevice, AreCheckedByADeviceThatNoticesOldAddresses) {
  simulated::begin(1);
  const auto guard = c10::impl::VirtualGuardImpl(simulated::device().type());
  at::Tensor sum = at::zeros({2}, at::device(simulated::device()));
  const auto graph = simulated::make_graph(nullptr);
  {
    const at::Tensor value = at::ones({2}, at::device(simulated::device()));
    const c10::StreamGuard on_side(guard.getNewStream(simulated::device()));
    graph->record([&] { sum.add_(value); });
  }
  graph->replay();
  EXPECT_FALSE(at::equal(sum.cpu(), at::ones({2})));
}

}  // namespace
}  // namespace lockstep
