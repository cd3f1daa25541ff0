#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <lockstep/base/error.h>
#include <lockstep/parallel/strategy.h>

#include "optim/grad_norm.h"
#include "parallel/ddp.h"
#include "parallel/parameter_sync.h"
#include "parallel/single_device.h"
#include "support/message_of.h"
#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;

// Deterministic without the global generator, which threads share.
at::Tensor wave(at::IntArrayRef shape, double shift) {
  const std::int64_t n = c10::multiply_integers(shape);
  return at::sin(at::arange(n, at::kFloat) * 0.7 + shift).view(shape);
}

struct Net : torch::nn::Module {
  explicit Net(bool has_empty = false) {
    if (has_empty) {
      none = register_parameter("none", at::zeros({0}));
    }
    a = register_module("a", torch::nn::Linear(4, 8));
    b = register_module("b", torch::nn::Linear(8, 8));
    c = register_module("c", torch::nn::Linear(8, 1));
    at::NoGradGuard no_grad;
    double shift = 0;
    for (auto& parameter : parameters()) {
      parameter.copy_(wave(parameter.sizes(), shift += 1) * 0.5);
    }
  }
  at::Tensor forward(const at::Tensor& x, bool skip_b = false) {
    const auto h = at::relu(a(x));
    const auto y = c(skip_b ? h : at::relu(b(h)));
    return none.defined() ? y + none.sum() : y;
  }
  at::Tensor none;
  torch::nn::Linear a{nullptr}, b{nullptr}, c{nullptr};
};

at::Tensor loss_of(const at::Tensor& y, const at::Tensor& target) { return at::mse_loss(y, target); }

NamedTensors grads_of(const torch::nn::Module& module) {
  NamedTensors grads;
  for (const auto& item : module.named_parameters()) {
    if (item.value().grad().defined()) {
      grads.emplace_back(item.key(), item.value().grad().clone());
    }
  }
  return grads;
}

void expect_close(const NamedTensors& found, const NamedTensors& expected, double tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].first, expected[i].first);
    ASSERT_LE(largest_difference(found[i].second, expected[i].second), tolerance) << found[i].first;
  }
}

constexpr std::int64_t kBatch = 12;
at::Tensor inputs(std::int64_t step) { return wave({kBatch, 4}, static_cast<double>(step) * 3.1); }
at::Tensor targets(std::int64_t step) { return wave({kBatch, 1}, static_cast<double>(step) * 1.3); }

struct Case {
  std::string name;
  int ranks;
  DistConfig options{};
  bool skip_b_sometimes = false;  // in steps 1, 3, ... the loss does not reach b
  int micro = 1;
  double tolerance = 1e-6;
  bool has_empty = false;  // the first parameter has no elements
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

class DdpGradients : public testing::TestWithParam<Case> {};

// The gradient of N ranks is the gradient of the whole batch on one.
void expect_gradients_of_the_whole_batch(const Case& c, Backend backend) {
  const auto compare = [&](World& world) {
    Net net(c.has_empty);
    Net whole(c.has_empty);
    Ddp strategy({}, c.options, world);
    const OptimizerSpec spec(sgd({.lr = 0.1}));
    strategy.prepare(net, {&spec, 1});
    torch::optim::SGD reference(whole.parameters(), torch::optim::SGDOptions(0.1));
    for (std::int64_t step = 0; step < 5; ++step) {
      const bool skip = c.skip_b_sometimes && step % 2 == 1;
      reference.zero_grad();
      loss_of(whole.forward(inputs(step), skip), targets(step)).backward();

      strategy.optimizer().zero_grad();
      const std::int64_t mine = kBatch / c.ranks / c.micro;
      for (int m = 0; m < c.micro; ++m) {
        strategy.optimizer().begin_forward(m == c.micro - 1 ? Gradients::reduce : Gradients::accumulate);
        const std::int64_t begin = world.rank() * (kBatch / c.ranks) + m * mine;
        const auto loss =
            loss_of(net.forward(inputs(step).narrow(0, begin, mine), skip), targets(step).narrow(0, begin, mine));
        strategy.optimizer().backward(loss, 1.0 / c.micro);
      }
      strategy.optimizer().finish();
      ASSERT_FALSE(strategy.optimizer().mean_count().defined());  // nobody counts
      expect_close(grads_of(net), grads_of(whole), c.tolerance);
      strategy.optimizer().step();
      reference.step();
    }
  };
  thread_world(c.ranks, compare, std::chrono::seconds(30), /*nodes=*/1, backend);
}

TEST_P(DdpGradients, AreThoseOfTheWholeBatch) {
  expect_gradients_of_the_whole_batch(GetParam(), Backend::gloo);
  expect_gradients_of_the_whole_batch(GetParam(), Backend::shm);
}

INSTANTIATE_TEST_SUITE_P(
    Modes, DdpGradients,
    testing::Values(Case{"plain", 2}, Case{"four_ranks", 4}, Case{"tiny_buckets", 3, {.bucket_mib = 0.0001}},
                    Case{"empty_bucket", 3, {.bucket_mib = 0.0001}, false, 1, 1e-6, /*has_empty=*/true},
                    Case{"accumulation", 2, {}, false, 3}, Case{"static_graph", 2, {.static_graph = true}},
                    Case{"static_graph_tiny_buckets", 3, {.bucket_mib = 0.0001, .static_graph = true}},
                    Case{"unused", 2, {.find_unused_parameters = true}, true},
                    Case{"unused_accumulated", 3, {.find_unused_parameters = true}, true, 2},
                    Case{"bf16", 2, {.compression = GradCompression::bf16}, false, 1, 2e-2},
                    Case{"fp16", 2, {.compression = GradCompression::fp16}, false, 1, 2e-3},
                    Case{"bf16_stochastic", 3, {.compression = GradCompression::bf16_stochastic}, false, 2, 4e-2},
                    Case{"bf16_stochastic_static",
                         2,
                         {.static_graph = true, .compression = GradCompression::bf16_stochastic},
                         false,
                         1,
                         4e-2},
                    Case{"fp32", 3, {.compression = GradCompression::fp32}, false, 2},
                    Case{"fp32_stochastic_unused",
                         2,
                         {.find_unused_parameters = true, .compression = GradCompression::fp32_stochastic},
                         true}),
    [](const auto& test) { return test.param.name; });

// In some steps rank 1 has no samples. A static graph may have parameters that are never used, here those of b.
TEST(Ddp, TakesPartWithNothing) {
  const std::vector<std::vector<bool>> without_samples{{true, true, true}, {false, true, true}, {true, false, true}};
  const auto train = [&](World& world, const DistConfig& options, const std::vector<bool>& is_idle) {
    Net net;
    Net whole;
    Ddp strategy({}, options, world);
    const OptimizerSpec spec(sgd());
    strategy.prepare(net, {&spec, 1});
    for (std::int64_t step = 0; step < std::ssize(is_idle); ++step) {
      const bool idle = is_idle[static_cast<std::size_t>(step)];
      const auto loss_of_step = [&](Net& of) {
        return loss_of(of.forward(inputs(step).narrow(0, 0, 9), /*skip_b=*/options.static_graph),
                       targets(step).narrow(0, 0, 9));
      };
      whole.zero_grad();
      loss_of_step(whole).backward();
      strategy.optimizer().zero_grad();
      strategy.optimizer().begin_forward(Gradients::reduce);
      if (world.rank() == 1 && idle) {
        strategy.optimizer().backward_nothing();
      } else {
        strategy.optimizer().backward(loss_of_step(net), idle ? 2 : 1);
      }
      strategy.optimizer().finish();
      expect_close(grads_of(net), grads_of(whole), 1e-6);
    }
  };
  const std::vector<DistConfig> modes{{}, {.find_unused_parameters = true}, {.static_graph = true}};
  for (const DistConfig& options : modes) {
    for (const Backend backend : {Backend::gloo, Backend::shm}) {
      for (const std::vector<bool>& is_idle : without_samples) {
        thread_world(
            2, [&](World& world) { train(world, options, is_idle); }, std::chrono::seconds(30), /*nodes=*/1, backend);
      }
    }
  }
}

// The backward of each optimizer goes through the parameters of all. In steps 1 and 3 rank 1 has no samples, and from
// step 2 on the loss of the optimizer of b does not reach b.
TEST(Ddp, FindsTheUnusedParametersOfEachOptimizer) {
  thread_world(2, [](World& world) {
    Net net;
    Net whole;
    std::vector<OptimizerSpec> specs;
    for (torch::nn::Module* part : std::vector<torch::nn::Module*>{net.a.get(), net.b.get(), net.c.get()}) {
      OptimizerSpec spec(sgd());
      spec.name = fmt::format("of part {}", specs.size());
      spec.module = part;
      specs.push_back(spec);
    }
    Ddp strategy({}, {.find_unused_parameters = true}, world);
    strategy.prepare(net, specs);
    for (std::int64_t step = 0; step < 4; ++step) {
      const bool is_alone = step % 2 == 1;
      const std::int64_t mine = is_alone ? kBatch : kBatch / 2;
      for (std::size_t i = 0; i < specs.size(); ++i) {
        const bool skip_b = i == 1 && step >= 2;
        whole.zero_grad();
        loss_of(whole.forward(inputs(step), skip_b), targets(step)).backward();
        StrategyOptimizer& optimizer = strategy.optimizer(i);
        optimizer.zero_grad();
        optimizer.begin_forward(Gradients::reduce);
        if (is_alone && world.rank() == 1) {
          optimizer.backward_nothing();
        } else {
          const std::int64_t begin = is_alone ? 0 : world.rank() * mine;
          optimizer.backward(
              loss_of(net.forward(inputs(step).narrow(0, begin, mine), skip_b), targets(step).narrow(0, begin, mine)),
              is_alone ? 2.0 : 1.0);
        }
        optimizer.finish();
        expect_close(grads_of(*net.children()[i]), grads_of(*whole.children()[i]), 1e-6);
      }
    }
  });
}

TEST(Ddp, NamesUnusedParametersBeforeAnyUpdate) {
  thread_world(2, [](World& world) {
    Net net;
    Ddp strategy({}, {}, world);
    const OptimizerSpec spec(sgd());
    strategy.prepare(net, {&spec, 1});
    strategy.optimizer().begin_forward(Gradients::reduce);
    strategy.optimizer().backward(loss_of(net.forward(inputs(0), /*skip_b=*/true), targets(0)));
    const auto error = error_of([&] { strategy.optimizer().finish(); });
    ASSERT_THAT(error.what(), HasSubstr("2 of 6 parameters got no gradient on rank"));
    ASSERT_THAT(error.what(), HasSubstr("b.weight, b.bias"));
    ASSERT_THAT(error.hint(), HasSubstr("--dist.find_unused_parameters true"));
  });
}

// An earlier micro-batch used part b, so it has a gradient; the last one reduces the gradients and does not reach it.
TEST(Ddp, NamesParametersThatTheLastMicroBatchDoesNotUse) {
  thread_world(2, [](World& world) {
    Net net;
    Ddp strategy({}, {}, world);
    const OptimizerSpec spec(sgd());
    strategy.prepare(net, {&spec, 1});
    strategy.optimizer().zero_grad();
    for (const bool is_last : {false, true}) {
      strategy.optimizer().begin_forward(is_last ? Gradients::reduce : Gradients::accumulate);
      strategy.optimizer().backward(loss_of(net.forward(inputs(0), /*skip_b=*/is_last), targets(0)));
    }
    const auto error = error_of([&] { strategy.optimizer().finish(); });
    ASSERT_THAT(error.what(), HasSubstr("the last backward of the step did not reach 2 of 6 parameters on rank"));
    ASSERT_THAT(error.what(), HasSubstr(": b.weight, b.bias"));
    ASSERT_THAT(error.what(), Not(HasSubstr("find_unused_parameters=True")));
    ASSERT_THAT(error.hint(), HasSubstr("--dist.find_unused_parameters true"));
  });
}

// Same shapes under swapped names would train on, silently wrong.
struct OtherModel {
  const char* name;
  std::function<void(torch::nn::Module&, bool odd)> build;
  const char* text;
};

TEST(Ddp, RefusesAnotherModelOnAnotherRank) {
  const OtherModel cases[] = {
      {"extra",
       [](auto& module, bool odd) {
         module.register_parameter("w", at::ones({3}));
         if (odd) {
           module.register_parameter("extra", at::ones({3}));
         }
       },
       "entry 1 is parameter extra [3] Float, 2 of 3 ranks have nothing"},
      {"swapped",
       [](auto& module, bool odd) {
         module.register_parameter(odd ? "b" : "a", at::ones({3}));
         module.register_parameter(odd ? "a" : "b", at::ones({3}));
       },
       "entry 0 is parameter b [3] Float, 2 of 3 ranks have parameter a [3] Float"},
      {"shape", [](auto& module, bool odd) { module.register_parameter("w", at::ones({odd ? 4 : 3})); }, "w [4] Float"},
      {"dtype",
       [](auto& module, bool odd) { module.register_parameter("w", at::ones({3}, odd ? at::kDouble : at::kFloat)); },
       "w [3] Double"},
      {"frozen",
       [](auto& module, bool odd) {
         module.register_parameter("w", at::ones({3}));
         module.register_parameter("v", at::ones({3}), !odd);
       },
       "v [3] Float frozen"},
      {"buffer",
       [](auto& module, bool odd) {
         module.register_parameter("w", at::ones({3}));
         module.register_buffer("mean", at::ones({odd ? 2 : 1}));
       },
       "buffer mean [2] Float"},
  };
  for (const auto& [name, build, text] : cases) {
    SCOPED_TRACE(name);
    const auto error = error_of<CommError>([&] {
      thread_world(3, [&](World& world) {
        torch::nn::Module module;
        build(module, /*odd=*/world.rank() == 1);
        Ddp strategy({}, {}, world);
        const OptimizerSpec spec(sgd());
        strategy.prepare(module, {&spec, 1});
      });
    });
    EXPECT_EQ(error.exit_code(), ExitCode::disagree);
    EXPECT_THAT(error.what(), HasSubstr("rank 1 has another model: its entry "));
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

TEST(Ddp, IsInItsRankRecord) {
  thread_world(2, [](World& world) {
    Net net;
    Ddp ddp({}, {}, world);
    Strategy& strategy = ddp;
    const OptimizerSpec spec(sgd());
    strategy.prepare(net, {&spec, 1});
    const ProgressRecord& record = WorldAccess::progress(world);
    strategy.optimizer().begin_forward(Gradients::reduce);
    ASSERT_EQ(view(record).phase, Phase::forward);
    const auto loss = net.forward(at::ones({2, 4})).sum();
    ProgressView inside;
    ProgressView behind;
    loss.register_hook([&](const at::Tensor&) {
      inside = view(record);
      torch::autograd::Engine::get_default_engine().queue_callback([&] { behind = view(record); });
    });
    const auto collectives = view(record).collectives;
    strategy.optimizer().backward(loss);
    ASSERT_EQ(inside.phase, Phase::backward);
    ASSERT_EQ(inside.operation, Operation::none) << "the others do not wait in here";
    ASSERT_EQ(behind.phase, Phase::backward);
    ASSERT_EQ(behind.operation, Operation::all_reduce);
    ASSERT_GT(behind.bytes, 0);
    ASSERT_EQ(view(record).collectives, collectives + 1);
    ASSERT_EQ(view(record).operation, Operation::none);
    strategy.optimizer().finish();
    strategy.optimizer().step();
    ASSERT_EQ(view(record).phase, Phase::optimizer);
  });
}

TEST(Ddp, StartsFromRankZeroEverywhere) {
  thread_world(3, [](World& world) {
    Net net;
    {
      at::NoGradGuard no_grad;
      for (auto& parameter : net.parameters()) {
        parameter.add_(world.rank());
      }
    }
    const Net expected;
    Ddp strategy({}, {}, world);
    const OptimizerSpec spec(sgd());
    strategy.prepare(net, {&spec, 1});
    for (std::size_t i = 0; i < net.parameters().size(); ++i) {
      ASSERT_TRUE(at::equal(net.parameters()[i], expected.parameters()[i]));
    }
  });
}

// Requests ride with the gradients: every rank learns them after the same step.
TEST(Ddp, AgreesOnRequestsAtTheSameStep) {
  thread_world(3, [](World& world) {
    Net net;
    Ddp strategy({}, {}, world);
    const OptimizerSpec spec(sgd());
    strategy.prepare(net, {&spec, 1});
    for (std::int64_t step = 0; step < 40; ++step) {
      const bool i_ask = step % 7 == 3 && world.rank() == static_cast<int>(step % 3);
      const bool i_save = step % 5 == 1 && world.rank() == 2;
      strategy.begin_step(step, {.stop = i_ask, .save = i_save});
      strategy.optimizer().zero_grad();
      strategy.optimizer().begin_forward(Gradients::reduce);
      strategy.optimizer().backward(loss_of(net.forward(inputs(step)), targets(step)));
      strategy.optimizer().finish();
      ASSERT_EQ(strategy.agreed().stop, step % 7 == 3) << step;
      ASSERT_EQ(strategy.agreed().save, step % 5 == 1) << step;
    }
  });
}

// Sent, but not read: on a GPU it is read one step later.
TEST(Ddp, KeepsARequestOverASecondPrepare) {
  thread_world(2, [](World& world) {
    Net net;
    Ddp strategy({}, {}, world);
    const OptimizerSpec spec(sgd());
    strategy.prepare(net, {&spec, 1});
    const auto reduce = [&](std::int64_t step) {
      strategy.optimizer().zero_grad();
      strategy.optimizer().begin_forward(Gradients::reduce);
      strategy.optimizer().backward(loss_of(net.forward(inputs(step)), targets(step)));
      strategy.optimizer().finish();
    };
    strategy.begin_step(0, {.save = world.rank() == 1});
    reduce(0);
    strategy.prepare(net, {&spec, 1});
    ASSERT_TRUE(strategy.agreed().save);
    strategy.begin_step(1, {.stop = world.rank() == 0});
    strategy.prepare(net, {&spec, 1});
    reduce(1);
    ASSERT_TRUE(strategy.agreed().stop) << "not sent before the second prepare";
    ASSERT_FALSE(strategy.agreed().save) << "seen once";
  });
}

// Ranks with different numbers of tokens: the gradient is the mean over all tokens.
TEST(Ddp, WeighsByCountsThatOnlyTheDeviceKnows) {
  thread_world(2, [](World& world) {
    Net net;
    Net whole;
    Ddp strategy({}, {}, world);
    const OptimizerSpec spec(sgd());
    strategy.prepare(net, {&spec, 1});
    for (std::int64_t step = 0; step < 3; ++step) {
      whole.zero_grad();
      loss_of(whole.forward(inputs(step)), targets(step)).backward();
      strategy.optimizer().zero_grad();
      const std::int64_t begin = world.rank() == 0 ? 0 : 5;
      const std::int64_t mine = world.rank() == 0 ? 5 : 7;
      strategy.optimizer().begin_forward(Gradients::reduce);
      const auto loss = loss_of(net.forward(inputs(step).narrow(0, begin, mine)), targets(step).narrow(0, begin, mine));
      const auto count = at::full({}, static_cast<float>(mine));
      strategy.optimizer().add_count(count);
      strategy.optimizer().backward(loss, count);
      strategy.optimizer().finish();
      ASSERT_NEAR(strategy.optimizer().mean_count().item<float>(), 6, 1e-6);
      at::NoGradGuard no_grad;
      strategy.optimizer().scale_grads(strategy.optimizer().mean_count().reciprocal());
      expect_close(grads_of(net), grads_of(whole), 1e-6);
    }
  });
}

// The ranks would divide their gradients differently.
TEST(Ddp, RefusesACountOfSomeRanksOnly) {
  const auto error = error_of<CommError>([] {
    thread_world(3, [](World& world) {
      Net net;
      Ddp strategy({}, {}, world);
      const OptimizerSpec spec(sgd());
      strategy.prepare(net, {&spec, 1});
      StrategyOptimizer& optimizer = strategy.optimizer();
      optimizer.zero_grad();
      optimizer.begin_forward(Gradients::reduce);
      if (world.rank() == 0) {
        optimizer.backward_nothing();
      } else {
        if (world.rank() == 1) {
          optimizer.add_count(at::full({}, 4.0F));
        }
        optimizer.backward(loss_of(net.forward(inputs(0)), targets(0)));
      }
      optimizer.finish();
      ASSERT_NEAR(optimizer.mean_count().item<float>(), 4.0 / 3, 1e-6) << world.rank();
    });
  });
  EXPECT_EQ(error.exit_code(), ExitCode::disagree);
  EXPECT_THAT(error.what(), HasSubstr("rank 2 has samples without a count in this step, another rank has a count"));
}

// The control lane travels as it is: a count of 17 bits does not fit into half precision, and gradients of sums over so
// many tokens neither.
TEST(Ddp, WeighsByLargeCountsWhenGradientsAreCompressed) {
  for (const auto compression : {GradCompression::fp16, GradCompression::bf16, GradCompression::bf16_stochastic,
                                 GradCompression::fp32, GradCompression::fp32_stochastic}) {
    thread_world(3, [&](World& world) {
      Net net;
      Net whole;
      Ddp strategy({}, {.bucket_mib = 0.0002, .compression = compression}, world);
      const OptimizerSpec spec(sgd());
      strategy.prepare(net, {&spec, 1});
      for (std::int64_t step = 0; step < 3; ++step) {
        const std::int64_t mine = kBatch / 2;
        const double tokens[] = {131073, 262147, 0};
        whole.zero_grad();
        for (int rank = 0; rank < 2; ++rank) {
          const auto part = loss_of(whole.forward(inputs(step).narrow(0, rank * mine, mine)),
                                    targets(step).narrow(0, rank * mine, mine));
          (part * (tokens[rank] / (tokens[0] + tokens[1]))).backward();
        }
        strategy.optimizer().zero_grad();
        strategy.optimizer().begin_forward(Gradients::reduce);
        if (world.rank() < 2) {
          const auto loss = loss_of(net.forward(inputs(step).narrow(0, world.rank() * mine, mine)),
                                    targets(step).narrow(0, world.rank() * mine, mine));
          const auto count = at::full({}, tokens[world.rank()]);
          strategy.optimizer().add_count(count);
          strategy.optimizer().backward(loss, count.to(at::kFloat));
        } else {
          strategy.optimizer().backward_nothing();  // and does not know that the others count
        }
        strategy.optimizer().finish();
        ASSERT_NEAR(strategy.optimizer().mean_count().item<double>(), (tokens[0] + tokens[1]) / 3, 0.05);
        strategy.optimizer().scale_grads(strategy.optimizer().mean_count().reciprocal());
        const bool half = compression == GradCompression::bf16 || compression == GradCompression::bf16_stochastic;
        expect_close(grads_of(net), grads_of(whole), half ? 1e-2 : 1e-3);
      }
    });
  }
}

struct Pair : torch::nn::Module {
  Pair() {
    g = register_module("g", std::make_shared<Net>());
    d = register_module("d", std::make_shared<Net>());
  }
  std::shared_ptr<Net> g, d;
};

TEST(PrepareAgain, LeavesNoGradientToFrozenParameters) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      Net net;
      const auto strategy = make_strategy(plan_for(ranks, {}), world);
      const OptimizerSpec spec(sgd());
      strategy->prepare(net, {&spec, 1});
      strategy->optimizer().begin_forward(Gradients::reduce);
      strategy->optimizer().backward(loss_of(net.forward(inputs(0)), targets(0)));
      strategy->optimizer().finish();
      const at::Tensor kept = net.c->weight.grad().clone();
      net.a->weight.requires_grad_(false);
      strategy->prepare_again();
      EXPECT_FALSE(net.a->weight.grad().defined());
      EXPECT_TRUE(at::equal(net.c->weight.grad(), kept));
    });
  }
}

// While the layer is frozen, it is no mistake that both have it: neither updates it.
TEST(PrepareAgain, RefusesAnUnfrozenParameterOfTwoOptimizers) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      Net net;
      for (at::Tensor& parameter : net.c->parameters()) {
        parameter.requires_grad_(false);
      }
      OptimizerSpec head(sgd());
      head.name = "head";
      head.module = net.c.get();
      const auto strategy = make_strategy(plan_for(ranks, {}), world);
      strategy->prepare(net, std::vector<OptimizerSpec>{OptimizerSpec(sgd()), head});
      net.c->bias.requires_grad_(true);
      const auto error = error_of<ConfigError>([&] { strategy->prepare_again(); });
      EXPECT_THAT(error.what(),
                  HasSubstr("optimizer 0 ('main') and optimizer 1 ('head') both have the parameter c.bias"));
    });
  }
}

// Two optimizers: one's backward neither reduces nor touches the other's gradients.
TEST(Ddp, KeepsTwoOptimizersApart) {
  thread_world(2, [](World& world) {
    Pair pair;
    Pair whole;
    OptimizerSpec d(sgd());
    d.module = pair.d.get();
    OptimizerSpec g(sgd());
    g.module = pair.g.get();
    Ddp strategy({}, {}, world);
    strategy.prepare(pair, std::vector<OptimizerSpec>{d, g});
    const std::int64_t mine = kBatch / 2;
    const std::int64_t begin = world.rank() * mine;
    for (std::int64_t step = 0; step < 4; ++step) {
      const auto x = inputs(step);
      const auto y = targets(step);
      whole.zero_grad();
      loss_of(whole.d->forward(x), y).backward();
      loss_of(whole.g->forward(x), y).backward();
      strategy.optimizer().zero_grad();
      strategy.optimizer().begin_forward(Gradients::reduce);
      strategy.optimizer().backward(loss_of(pair.d->forward(x.narrow(0, begin, mine)), y.narrow(0, begin, mine)), 1);
      strategy.optimizer().finish();
      expect_close(grads_of(*pair.d), grads_of(*whole.d), 1e-6);
      strategy.optimizer(1).zero_grad();
      strategy.optimizer(1).begin_forward(Gradients::reduce);
      strategy.optimizer(1).backward(loss_of(pair.g->forward(x.narrow(0, begin, mine)), y.narrow(0, begin, mine)), 1);
      strategy.optimizer(1).finish();
      expect_close(grads_of(*pair.g), grads_of(*whole.g), 1e-6);
      expect_close(grads_of(*pair.d), grads_of(*whole.d), 1e-6);
    }
  });
}

// Rank 1 has no samples and must not take the first optimizer's count for the second one's.
TEST(Ddp, KeepsTheCountsOfTwoOptimizersApart) {
  thread_world(2, [](World& world) {
    Pair pair;
    OptimizerSpec d(sgd());
    d.module = pair.d.get();
    OptimizerSpec g(sgd());
    g.module = pair.g.get();
    Ddp strategy({}, {}, world);
    strategy.prepare(pair, std::vector<OptimizerSpec>{d, g});
    for (std::int64_t step = 0; step < 2; ++step) {
      for (std::size_t set = 0; set < 2; ++set) {
        const auto& part = set == 0 ? pair.d : pair.g;
        strategy.optimizer(set).zero_grad();
        strategy.optimizer(set).begin_forward(Gradients::reduce);
        if (world.rank() == 1) {
          strategy.optimizer(set).backward_nothing();
        } else if (set == 0) {
          const auto count = at::full({}, 6.0F);
          strategy.optimizer(set).add_count(count);
          strategy.optimizer(set).backward(loss_of(part->forward(inputs(step)), targets(step)), count);
        } else {
          strategy.optimizer(set).backward(loss_of(part->forward(inputs(step)), targets(step)), 2);
        }
        strategy.optimizer(set).finish();
      }
      ASSERT_EQ(strategy.optimizer().mean_count().item<float>(), 3);
      if (world.rank() == 0) {
        ASSERT_FALSE(strategy.optimizer(1).mean_count().defined());
      } else {
        ASSERT_EQ(strategy.optimizer(1).mean_count().item<float>(), 1);
      }
    }
  });
}

TEST(Ddp, SendsTheLossesAndInputsOfTwoOptimizersWithTheirGradients) {
  for (const int ranks : {1, 3}) {
    thread_world(ranks, [&](World& world) {
      Pair pair;
      OptimizerSpec d(sgd());
      d.module = pair.d.get();
      OptimizerSpec g(sgd());
      g.module = pair.g.get();
      const auto strategy = make_strategy(plan_for(ranks, {}), world);
      strategy->prepare(pair, std::vector<OptimizerSpec>{d, g});
      for (std::int64_t step = 0; step < 3; ++step) {
        for (std::size_t set = 0; set < 2; ++set) {
          StrategyOptimizer& optimizer = strategy->optimizer(set);
          const auto& part = set == 0 ? pair.d : pair.g;
          optimizer.zero_grad();
          optimizer.begin_forward(Gradients::reduce);
          if (world.rank() > 0) {  // without samples
            optimizer.backward_nothing();
          } else {
            if (set == 0 && step != 1) {
              optimizer.add_loss(at::full({}, step == 0 ? 6.0 : NAN, at::kDouble));
              optimizer.add_loss(at::full({}, 1.5));
            }
            if (set == 1 && step != 1) {
              optimizer.add_inputs(at::full({}, 4.5, at::kDouble));
            }
            optimizer.backward(loss_of(part->forward(inputs(step)), targets(step)), 2);
          }
          optimizer.finish();
        }
        const float sent = strategy->optimizer(0).mean_loss().item<float>();
        EXPECT_TRUE(step == 2 ? std::isnan(sent) : sent == (step == 0 ? 7.5F / static_cast<float>(ranks) : 0)) << sent;
        EXPECT_EQ(strategy->optimizer(1).mean_loss().item<float>(), 0);
        EXPECT_EQ(strategy->optimizer(0).mean_inputs().item<float>(), 0);
        EXPECT_EQ(strategy->optimizer(1).mean_inputs().item<float>(), step == 1 ? 0 : 4.5F / static_cast<float>(ranks));
        EXPECT_EQ(strategy->agreed(), StepRequests{}) << "a loss is no request";
      }
    });
  }
}

struct Rows : torch::nn::Module {
  explicit Rows(bool sparse) {
    e = register_module("e", torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 3).sparse(sparse)));
    c = register_module("c", torch::nn::Linear(3, 1));
    at::NoGradGuard no_grad;
    double shift = 0;
    for (auto& parameter : parameters()) {
      parameter.copy_(wave(parameter.sizes(), shift += 1) * 0.5);
    }
  }
  at::Tensor forward(const at::Tensor& ids) { return c(e(ids)); }
  torch::nn::Embedding e{nullptr};
  torch::nn::Linear c{nullptr};
};

// Some ids are there twice in a batch, and the last rank has no samples.
TEST(Ddp, ReducesSparseGradients) {
  for (const auto compression : {GradCompression::none, GradCompression::fp16, GradCompression::fp32_stochastic}) {
    for (const bool find_unused : {false, true}) {
      for (const int ranks : {2, 3}) {
        thread_world(ranks, [&](World& world) {
          Rows rows(/*sparse=*/true);
          Rows whole(/*sparse=*/false);
          Ddp strategy({}, {.find_unused_parameters = find_unused, .compression = compression}, world);
          const OptimizerSpec spec([](ParamGroups groups) -> OptimizerPtr {
            return std::make_unique<torch::optim::SGD>(std::move(groups), torch::optim::SGDOptions(0.1));
          });
          strategy.prepare(rows, {&spec, 1});
          for (std::int64_t step = 0; step < 3; ++step) {
            const auto ids = (at::arange(6) * 4 + step).remainder(9).remainder(5);
            whole.zero_grad();
            loss_of(whole.forward(ids), targets(step).narrow(0, 0, 6)).backward();
            const std::int64_t mine = 6 / (ranks - 1);
            strategy.optimizer().zero_grad();
            strategy.optimizer().begin_forward(Gradients::reduce);
            if (world.rank() < ranks - 1) {
              const std::int64_t begin = world.rank() * mine;
              const auto loss = loss_of(rows.forward(ids.narrow(0, begin, mine)), targets(step).narrow(0, begin, mine));
              strategy.optimizer().backward(loss, static_cast<double>(ranks) / (ranks - 1));
            } else {
              strategy.optimizer().backward_nothing();
            }
            strategy.optimizer().finish();
            ASSERT_TRUE(rows.e->weight.grad().is_sparse());
            double squares = 0;
            for (const auto& [name, gradient] : grads_of(whole)) {
              squares += gradient.square().sum().item<double>();
            }
            const double tolerance = compression == GradCompression::fp16 ? 1e-3 : 1e-6;
            ASSERT_NEAR(strategy.optimizer().grad_norm().item<double>(), std::sqrt(squares), tolerance);
            strategy.optimizer().scale_grads(at::full({}, 0.5));
            ASSERT_LE((rows.e->weight.grad().to_dense() - whole.e->weight.grad() * 0.5).abs().max().item<double>(),
                      tolerance);
          }
        });
      }
    }
  }
}

TEST(Ddp, RefusesSparseGradientsWhereTheBackendHasNone) {
  const std::vector<std::string> sparse{"e.weight", "f.weight"};
  check_sparse_backend(sparse, "gloo");
  check_sparse_backend({}, "nccl");
  const auto error = error_of<ConfigError>([&] { check_sparse_backend(sparse, "nccl"); });
  EXPECT_THAT(error.what(), HasSubstr("e.weight, f.weight"));
  EXPECT_THAT(error.hint(), HasSubstr("--backend gloo"));
}

TEST(ComplexParameters, AreTrainedByEveryNumberOfRanks) {
  struct Wave : torch::nn::Module {
    Wave() {
      w = register_parameter("w", at::complex(wave({4, 2}, 1), wave({4, 2}, 2)));
      b = register_parameter("b", wave({2}, 3));
    }
    at::Tensor forward(const at::Tensor& x) {
      const auto y = at::matmul(x.to(w.scalar_type()), w);
      return (at::real(y).square() + at::imag(y).square() + b).sum(1, true);
    }
    at::Tensor w, b;
  };
  for (const bool compressed : {false, true}) {
    for (const int ranks : {1, 2}) {
      thread_world(ranks, [&](World& world) {
        Wave found;
        Wave whole;
        torch::optim::SGD reference(whole.parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
        const DistConfig options{.compression = compressed ? GradCompression::fp16 : GradCompression::none};
        const std::unique_ptr<SingleDevice> strategy =
            ranks == 1 ? std::make_unique<SingleDevice>(OptimConfig{}, DistConfig{}, world)
                       : std::make_unique<Ddp>(OptimConfig{}, options, world);
        const OptimizerSpec spec(sgd({.lr = 0.01, .momentum = 0.9}));
        strategy->prepare(found, {&spec, 1});
        const std::int64_t mine = kBatch / ranks;
        for (std::int64_t step = 0; step < 4; ++step) {
          reference.zero_grad();
          loss_of(whole.forward(inputs(step)), targets(step)).backward();
          strategy->optimizer().zero_grad();
          strategy->optimizer().begin_forward(Gradients::reduce);
          strategy->optimizer().backward(loss_of(found.forward(inputs(step).narrow(0, world.rank() * mine, mine)),
                                                 targets(step).narrow(0, world.rank() * mine, mine)));
          strategy->optimizer().finish();
          ASSERT_NEAR(strategy->optimizer().grad_norm().item<double>(),
                      std::sqrt(whole.w.grad().abs().square().sum().item<double>() +
                                whole.b.grad().square().sum().item<double>()),
                      compressed ? 1e-2 : 1e-5);
          strategy->optimizer().step();
          reference.step();
        }
        const double tolerance = compressed && ranks > 1 ? 1e-3 : 1e-6;
        ASSERT_LE(largest_difference(found.w, whole.w), tolerance);
        ASSERT_LE(largest_difference(found.b, whole.b), tolerance);
      });
    }
  }
}

/// What happens to the gradients between finish() and step().
enum class Clipping { none, norm, value, group };

struct SkipCase {
  at::ScalarType dtype = at::kFloat;
  double value = 0;  // of two gradients
  Clipping clipping = Clipping::none;
};

/// Whether the step was skipped. `parameter`: set to the values after it, which were zeros.
bool is_skipped(SingleDevice& strategy, const SkipCase& c, at::Tensor& parameter) {
  struct Two : torch::nn::Module {
    explicit Two(at::ScalarType dtype) {
      first = register_parameter("first", at::zeros({40}, dtype));
      second = register_parameter("second", at::zeros({3}, dtype));
    }
    at::Tensor first, second;
  } two(c.dtype);
  OptimizerSpec spec(sgd({.lr = 0.25}));
  if (c.clipping == Clipping::group) {
    spec.groups = {{.select = named("first"), .max_grad_norm = 1}, {.select = named("second")}};
  }
  strategy.prepare(two, {&spec, 1});
  StrategyOptimizer& optimizer = strategy.optimizer();
  optimizer.zero_grad();
  optimizer.begin_forward(Gradients::reduce);
  optimizer.backward(two.first.sum() + two.second.sum());
  two.first.mutable_grad().slice(0, 7, 9).fill_(c.value);
  optimizer.finish();
  optimizer.clip_groups();
  if (c.clipping == Clipping::norm) {
    optimizer.scale_grads(clip_factor(optimizer.grad_norm(), 1));
  } else if (c.clipping == Clipping::value) {
    optimizer.clamp_grads(1);
  }
  optimizer.step();
  parameter = at::cat({two.first, two.second}).detach().clone();
  return optimizer.skipped().item<float>() == 1;
}

// A norm that is not finite is not enough: squares overflow.
TEST(NonFiniteSkip, SkipsIfAndOnlyIfAGradientIsNotFinite) {
  const std::vector<std::pair<at::ScalarType, double>> largest{{at::kFloat, 0x1.fffffep127},
                                                               {at::kDouble, 0x1.fffffffffffffp1023},
                                                               {at::kHalf, 65504},
                                                               {at::kBFloat16, 0x1.fep127}};
  const OptimConfig config{.non_finite = NonFinitePolicy::skip};
  const auto check = [&](World& world, at::ScalarType dtype, double value, Clipping clipping, bool sharded) {
    const std::unique_ptr<SingleDevice> strategy =
        world.size() == 1 ? std::make_unique<SingleDevice>(config, DistConfig{}, world)
                          : std::make_unique<Ddp>(config, DistConfig{.shard_optimizer = sharded}, world);
    at::Tensor parameter;
    const bool skipped = is_skipped(*strategy, {dtype, value, clipping}, parameter);
    const auto text = fmt::format("{} of {}, clipping {}, {} ranks, sharded {}", value, c10::toString(dtype),
                                  static_cast<int>(clipping), world.size(), sharded);
    EXPECT_EQ(skipped, !std::isfinite(value)) << text;
    EXPECT_TRUE(parameter.isfinite().all().item<bool>()) << text;
    if (skipped) {
      EXPECT_TRUE(at::equal(parameter, at::zeros_like(parameter))) << text;
    } else if (clipping == Clipping::none || clipping == Clipping::value) {
      EXPECT_TRUE(parameter.ne(0).all().item<bool>()) << text;
    }
  };
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [&](World& world) {
      for (const auto& [dtype, most] : largest) {
        for (const double value : {0.5, 1e4, most, -most, HUGE_VAL, -HUGE_VAL, std::nan("")}) {
          for (const Clipping clipping : {Clipping::none, Clipping::norm, Clipping::value, Clipping::group}) {
            check(world, dtype, value, clipping, /*sharded=*/false);
            if (ranks > 1) {
              check(world, dtype, value, clipping, /*sharded=*/true);
            }
          }
        }
      }
    });
  }
}

std::vector<std::string>& operations() {
  static std::vector<std::string> names;
  return names;
}

/// LibTorch's check for NaN and infinity, which also writes, in a step of one thread whose first gradient is `value`.
std::ptrdiff_t checks_that_write(double value, double max_norm) {
  torch::nn::Linear model(3, 2);
  World world = World::single(c10::Device(c10::kCPU));
  SingleDevice strategy({.non_finite = NonFinitePolicy::skip}, {}, world);
  const OptimizerSpec spec(sgd({.lr = 0.1}));
  strategy.prepare(*model, {&spec, 1});
  StrategyOptimizer& optimizer = strategy.optimizer();
  optimizer.begin_forward(Gradients::reduce);
  optimizer.backward(model(at::ones({1, 3})).sum());
  model->weight.mutable_grad()[0][0] = value;
  operations().clear();
  const auto callback = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
        operations().emplace_back(function.name());
        return nullptr;
      }));
  optimizer.finish();
  if (max_norm > 0) {
    optimizer.scale_grads(clip_factor(optimizer.grad_norm(), max_norm));
  }
  optimizer.step();
  at::removeCallback(callback);
  return std::ranges::count(operations(), "aten::_amp_foreach_non_finite_check_and_unscale_");
}

TEST(NonFiniteSkip, OnlyReadsFiniteGradients) {
  for (const double max_norm : {0.0, 1e-3}) {
    EXPECT_EQ(checks_that_write(1, max_norm), 0) << max_norm;
    EXPECT_EQ(checks_that_write(HUGE_VAL, max_norm), 1) << "control, " << max_norm;
  }
}

at::Tensor bytes_of(const at::Tensor& tensor) { return tensor.contiguous().view({-1}).view(at::kByte); }

// Not every backend sends every dtype.
TEST(Broadcast, CarriesEveryDtypeAndLayout) {
  thread_world(2, [](World& world) {
    torch::nn::Module module;
    const bool main = world.is_main();
    std::vector<at::Tensor> expected;
    for (const auto dtype : {at::kShort, at::kBool, at::kByte, at::kChar, at::kInt, at::kLong, at::kHalf, at::kBFloat16,
                             at::kFloat, at::kDouble, at::kComplexFloat, at::kFloat8_e4m3fn, at::kUInt16}) {
      const auto values = at::arange(6).to(at::kFloat).to(dtype);
      expected.push_back(values);
      module.register_buffer(std::string("b") + c10::toString(dtype), main ? values.clone() : at::zeros({6}, dtype));
    }
    expected.push_back(at::arange(6).view({2, 3}).t());
    module.register_buffer("transposed", main ? expected.back().clone() : at::zeros({2, 3}, at::kLong).t());
    expected.push_back(at::full({}, 5));
    module.register_buffer("scalar", main ? expected.back().clone() : at::zeros({}, at::kLong));
    module.register_buffer("empty", at::zeros({0}));
    broadcast_buffers(module, world);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto found = module.buffers()[i];
      ASSERT_EQ(found.scalar_type(), expected[i].scalar_type());
      ASSERT_TRUE(at::equal(bytes_of(found), bytes_of(expected[i]))) << found.scalar_type();
    }
  });
}

TEST(Broadcast, SaysThatAPeerIsLost) {
  const auto error = error_of<CommError>([&] {
    thread_world(2, [](World& world) {
      torch::nn::BatchNorm1d norm(4);
      broadcast_buffers(*norm, world);
      if (world.rank() == 1) {
        broadcast_buffers(*norm, world);  // rank 0 is gone
      }
    });
  });
  EXPECT_EQ(error.exit_code(), ExitCode::peer_lost);
  EXPECT_THAT(error.what(), HasSubstr("broadcast of parameters or buffers failed on rank 1 of 2"));
}

TEST(Ddp, SendsRankZerosBuffersOncePerStep) {
  thread_world(2, [](World& world) {
    torch::nn::BatchNorm1d norm(4);
    Ddp strategy({}, {}, world);
    const OptimizerSpec spec(sgd());
    strategy.prepare(*norm, {&spec, 1});
    for (std::int64_t step = 0; step < 2; ++step) {
      strategy.begin_step(step, {});
      strategy.optimizer().zero_grad();
      strategy.optimizer().begin_forward(Gradients::reduce);
      const auto mean = norm->running_mean.clone();
      world.broadcast(mean);
      ASSERT_TRUE(at::equal(mean, norm->running_mean));
      strategy.optimizer().backward(norm(inputs(step) + world.rank()).square().mean());
      strategy.optimizer().finish();
    }
  });
}

TEST(Ddp, LeavesAnOrdinaryModule) {
  thread_world(2, [](World& world) {
    Net net;
    {
      Ddp strategy({}, {}, world);
      const OptimizerSpec spec(sgd());
      strategy.prepare(net, {&spec, 1});
      strategy.optimizer().begin_forward(Gradients::reduce);
      strategy.optimizer().backward(loss_of(net.forward(inputs(0)), targets(0)));
      strategy.optimizer().finish();
    }
    ASSERT_FALSE(net.a->weight.grad().defined());
    torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1));
    optimizer.zero_grad();
    loss_of(net.forward(inputs(1)), targets(1)).backward();  // no hook waits for a peer
  });
}

TEST(SingleDevice, IsPlainTraining) {
  Net net;
  Net whole;
  World world = World::single(c10::Device(c10::kCPU));
  SingleDevice strategy({}, {}, world);
  const OptimizerSpec spec(sgd({.lr = 0.1}));
  strategy.prepare(net, {&spec, 1});
  loss_of(whole.forward(inputs(0)), targets(0)).backward();
  strategy.begin_step(0, {.stop = true});
  strategy.optimizer().begin_forward(Gradients::reduce);
  strategy.optimizer().backward(loss_of(net.forward(inputs(0)), targets(0)));
  EXPECT_FALSE(strategy.agreed().stop);
  strategy.optimizer().finish();
  EXPECT_TRUE(strategy.agreed().stop);
  expect_close(grads_of(net), grads_of(whole), 0);
  EXPECT_NEAR(strategy.optimizer().grad_norm().item<double>(), std::sqrt([&] {
                double sum = 0;
                for (const auto& [name, grad] : grads_of(net)) {
                  sum += grad.square().sum().item<double>();
                }
                return sum;
              }()),
              1e-6);
  strategy.optimizer().zero_grad();
  EXPECT_TRUE(grads_of(net).empty());
}

// The supervisor judges stalls and restarts by it.
TEST(Ddp, NotesWhereALoopByHandIs) {
  for (const bool shards : {false, true}) {
    thread_world(2, [shards](World& world) {
      Net net;
      Ddp strategy({}, {.shard_optimizer = shards}, world);
      const OptimizerSpec spec(adamw({.lr = 0.1}));
      strategy.prepare(net, {&spec, 1});
      const ProgressRecord& record = WorldAccess::progress(world);
      for (const std::int64_t step : {7, 8}) {
        strategy.begin_step(step, {});
        ASSERT_EQ(place_of(view(record)), fmt::format("at step {} in the program's own code", step));
        ASSERT_EQ(record.has_trained(), step == 8) << "step 7 is not complete yet";
        strategy.optimizer().zero_grad();
        strategy.optimizer().begin_forward(Gradients::reduce);
        ASSERT_EQ(place_of(view(record)), fmt::format("at step {} in forward", step));
        strategy.optimizer().backward(loss_of(net.forward(inputs(step)), targets(step)));
        strategy.optimizer().finish();
        ASSERT_EQ(place_of(view(record)), fmt::format("at step {} in backward", step));
        strategy.optimizer().step();
        ASSERT_EQ(place_of(view(record)), fmt::format("at step {} in optimizer", step));
        static_cast<void>(strategy.agreed());
        ASSERT_EQ(place_of(view(record)), fmt::format("at step {} in the program's own code", step + 1));
        ASSERT_EQ(record.all_steps(), step + 1);
      }
      ASSERT_EQ(record.training_start()->step, 7);
    });
  }
}

TEST(SingleDevice, NotesTheStepsOfALoopByHandOnlyOutsideOfAFit) {
  Net net;
  World world = World::single(c10::Device(c10::kCPU));
  SingleDevice strategy({}, {}, world);
  const OptimizerSpec spec(sgd({.lr = 0.1}));
  strategy.prepare(net, {&spec, 1});
  ProgressRecord& record = WorldAccess::progress(world);
  const auto run_step = [&](std::int64_t step) {
    strategy.begin_step(step, {});
    strategy.optimizer().begin_forward(Gradients::reduce);
    strategy.optimizer().backward(loss_of(net.forward(inputs(step)), targets(step)));
    strategy.optimizer().finish();
    strategy.optimizer().step();
    static_cast<void>(strategy.agreed());
  };
  record.begin_fit(40);
  record.in_fit = true;
  run_step(0);
  EXPECT_EQ(place_of(view(record)), "at step 40 in optimizer") << "the fit notes the rest";
  record.in_fit = false;
  run_step(3);
  EXPECT_EQ(place_of(view(record)), "at step 4 in the program's own code");
  EXPECT_EQ(record.all_steps(), 44) << "those of the fit count";
}

// The gradients of the others have no effect, so they do not count in the norm, and they skip no step.
TEST(SingleDevice, CountsOnlyGradientsOfTheParametersThatTheOptimizerHas) {
  struct Two : torch::nn::Module {
    Two() {
      mine = register_parameter("mine", at::zeros({}));
      other = register_parameter("other", at::zeros({}));
    }
    at::Tensor mine, other;
  };
  for (const double of_other : {10.0, HUGE_VAL}) {
    Two two;
    World world = World::single(c10::Device(c10::kCPU));
    SingleDevice strategy({.non_finite = NonFinitePolicy::skip}, {}, world);
    OptimizerSpec spec(sgd({.lr = 1}));
    spec.groups = {{.select = named("mine")}};
    strategy.prepare(two, {&spec, 1});
    StrategyOptimizer& optimizer = strategy.optimizer();
    optimizer.begin_forward(Gradients::reduce);
    optimizer.backward(two.mine * 0.5 + two.other * of_other);
    optimizer.finish();
    EXPECT_EQ(optimizer.grad_norm().item<double>(), 0.5);
    optimizer.step();
    EXPECT_EQ(optimizer.skipped().item<float>(), 0);
    EXPECT_EQ(two.mine.item<float>(), -0.5);
    EXPECT_EQ(two.other.item<float>(), 0);
    optimizer.zero_grad();
    EXPECT_TRUE(grads_of(two).empty());
  }
}

TEST(SingleDevice, NeedsAnOptimizer) {
  Net net;
  World world = World::single(c10::Device(c10::kCPU));
  SingleDevice strategy({}, {}, world);
  EXPECT_THROW(strategy.prepare(net, {}), ConfigError);
}

}  // namespace
}  // namespace lockstep
