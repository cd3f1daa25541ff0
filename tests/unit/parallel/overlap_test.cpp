// Gradients are sent while the backward still computes others.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/nn/module.h>

#include <lockstep/parallel/strategy.h>

#include "parallel/control_lane.h"
#include "parallel/ddp.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

constexpr std::int64_t kElements = 1000;  // of each parameter
constexpr int kParameters = 8;
constexpr double kBucketMib = 0.008;  // full with three parameters

/// Its last parameter gets the first gradient.
struct Chain : torch::nn::Module {
  Chain() {
    for (int i = 0; i < kParameters; ++i) {
      factors.push_back(register_parameter("factor" + std::to_string(i), at::full({kElements}, 1 + 0.1 * i)));
    }
  }
  at::Tensor loss(const at::Tensor& input) const {
    at::Tensor x = input;
    for (const at::Tensor& factor : factors) {
      x = x * factor;
    }
    return x.sum();
  }
  std::vector<at::Tensor> factors{};
};

/// Of a network that delays everything: what it is asked to add is neither sent nor finished before release().
class HoldingBackend final : public c10d::Backend {
 public:
  explicit HoldingBackend(c10::intrusive_ptr<c10d::Backend> gloo)
      : Backend(gloo->getRank(), gloo->getSize()), gloo_(std::move(gloo)) {}

  const std::string getBackendName() const override { return gloo_->getBackendName(); }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    asked_.push_back(tensors.front().numel());
    if (is_released_) {
      return gloo_->allreduce(tensors, options);
    }
    held_.push_back({tensors, c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))});
    return c10d::Work::create_from_future(held_.back().done);
  }

  void release() {
    is_released_ = true;
    for (Held& held : held_) {
      gloo_->allreduce(held.tensors, c10d::AllreduceOptions())->wait();
      held.done->markCompleted(c10::IValue(held.tensors));
    }
  }

  /// Elements of each all-reduce that was begun.
  const std::vector<std::int64_t>& asked() const { return asked_; }

 private:
  struct Held {
    std::vector<at::Tensor> tensors{};
    c10::intrusive_ptr<c10::ivalue::Future> done{};
  };
  const c10::intrusive_ptr<c10d::Backend> gloo_;
  std::vector<std::int64_t> asked_{};
  std::vector<Held> held_{};
  bool is_released_ = false;
};

/// The mean gradients of one step.
at::Tensor reduced(Strategy& strategy, const Chain& module, const at::Tensor& input, std::int64_t step) {
  strategy.begin_step(step);
  strategy.optimizer().zero_grad();
  strategy.optimizer().begin_forward(Gradients::reduce);
  strategy.optimizer().backward(module.loss(input), 1.0);
  strategy.optimizer().finish();
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& factor : module.factors) {
    gradients.push_back(factor.grad());
  }
  return at::stack(gradients);
}

// No times are needed, because the backend finishes nothing before the last gradient: a backward that waited for a
// bucket would never end. Sums of more than two ranks depend on the limits of the buckets, so these must not change.
TEST(Overlap, OnlyTheLastBucketRemainsAfterTheLastGradient) {
  thread_world(3, [](World& world) {
    Chain module;
    Ddp strategy({}, {.bucket_mib = kBucketMib, .broadcast_buffers = false}, world);
    const OptimizerSpec spec(sgd());
    strategy.prepare(module, {&spec, 1});
    const at::Tensor input = at::linspace(0.1, 1, kElements) * (world.rank() + 1);
    const at::Tensor undelayed = reduced(strategy, module, input, 0);

    const auto& group = WorldAccess::group(world);
    const auto backend = c10::make_intrusive<HoldingBackend>(group->getBackend(c10::kCPU));
    group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
    std::vector<std::int64_t> before_last_gradient;
    module.factors.front().register_hook([&](const at::Tensor&) {
      before_last_gradient = backend->asked();
      backend->release();
    });
    const at::Tensor delayed = reduced(strategy, module, input, 1);
    group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::GLOO, backend);  // it has one of this type

    EXPECT_THAT(before_last_gradient, ElementsAre(ControlLane::kSize + 3 * kElements, 3 * kElements));
    EXPECT_THAT(backend->asked(), ElementsAre(ControlLane::kSize + 3 * kElements, 3 * kElements, 2 * kElements));
    EXPECT_TRUE(at::equal(delayed, undelayed));
  });
}

}  // namespace
}  // namespace lockstep
