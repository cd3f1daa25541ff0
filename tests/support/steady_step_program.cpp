// Prints what a step costs in allocations (calls of operator new) and page faults, as JSON: of a loop by hand, of the
// Trainer with the same model, batch and optimizer, of the Trainer with callbacks that have no stage of a step, and,
// as the control, with a callback that allocates once in each step.
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sys/resource.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/optimizer.h>

#include <lockstep/lockstep.h>

namespace {

std::atomic<std::int64_t> allocations{0};

void* counted(std::size_t bytes) {
  ++allocations;
  if (void* const block = std::malloc(bytes == 0 ? 1 : bytes)) {
    return block;
  }
  throw std::bad_alloc();
}

}  // namespace

// The shared libraries use these too.
void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
void operator delete[](void* block, std::size_t) noexcept { std::free(block); }

namespace {

// The Trainer looks at the losses of 256 steps at once, so both are multiples of that.
constexpr std::int64_t kWarmUp = 512;
constexpr std::int64_t kSteps = 1024;

struct Cost {
  double allocations = 0;
  double page_faults = 0;
};

Cost cost_until_now() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return {static_cast<double>(allocations.load()), static_cast<double>(usage.ru_minflt)};
}

/// The same batch in every step; notes what the steps after the warm-up cost.
class SameBatch final : public lockstep::BatchSource {
 public:
  SameBatch() {
    lockstep::Batch batch{.input = at::ones({16, 32}), .target = at::zeros({16, 10}), .samples = 16};
    step_ = {.local_samples = batch.samples, .global_samples = batch.samples};
    step_.micro.push_back(std::move(batch));
  }
  const lockstep::StepBatches* next() override {
    if (served_ == kWarmUp) {
      begin_ = cost_until_now();
    }
    if (served_++ < kWarmUp + kSteps) {
      return &step_;
    }
    const Cost end = cost_until_now();
    per_step_ = {(end.allocations - begin_.allocations) / kSteps, (end.page_faults - begin_.page_faults) / kSteps};
    return nullptr;
  }
  std::optional<std::int64_t> steps_per_epoch() const override { return std::nullopt; }
  lockstep::LoaderPosition position() const override { return {}; }
  void seek(const lockstep::LoaderPosition&) override {}
  const Cost& per_step() const { return per_step_; }

 private:
  lockstep::StepBatches step_{};
  std::int64_t served_ = 0;
  Cost begin_{};
  Cost per_step_{};
};

torch::nn::Sequential model() { return torch::nn::Sequential(torch::nn::Linear(32, 32), torch::nn::Linear(32, 10)); }

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) { return at::mse_loss(output, target); }

Cost cost_by_hand() {
  auto net = model();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(net->parameters());
  const auto optimizer = lockstep::adamw()(std::move(groups));
  SameBatch data;
  while (const auto* step = data.next()) {
    optimizer->zero_grad();
    loss_of(net->forward(step->micro[0].input), step->micro[0].target).backward();
    optimizer->step();
  }
  return data.per_step();
}

Cost cost_of_trainer(lockstep::Session& session, const std::function<void(lockstep::Trainer&)>& prepare) {
  auto task = lockstep::make_task(model(), loss_of, lockstep::adamw());
  SameBatch data;
  lockstep::Trainer trainer(session);
  prepare(trainer);
  trainer.fit(*task, data);
  return data.per_step();
}

void print(const char* name, const Cost& cost, const char* end) {
  fmt::print("\"{}\": {{\"allocations\": {}, \"page_faults\": {}}}{}\n", name, cost.allocations, cost.page_faults, end);
}

}  // namespace

int main() {
  const lockstep::TrainConfig config{.compute_setup = lockstep::ComputeSetup::cpu,
                                     .max_epochs = 0,
                                     .max_steps = 1'000'000,
                                     .checkpoint = {.enabled = false},
                                     .report = {.every_steps = 0, .progress = false, .jsonl = false, .csv = false}};
  lockstep::Session session = lockstep::Session::single(config);
  int calls = 0;
  const auto count = [&](const lockstep::StageContext&) { ++calls; };
  const Cost by_hand = cost_by_hand();
  const Cost trainer = cost_of_trainer(session, [](lockstep::Trainer&) {});
  const Cost other_stages = cost_of_trainer(session, [&](lockstep::Trainer& made) {
    made.on(lockstep::Stage::fit_start, count).on(lockstep::Stage::validation_end, count);
  });
  std::unique_ptr<int> kept;
  const Cost allocating = cost_of_trainer(session, [&](lockstep::Trainer& made) {
    made.on(lockstep::Stage::step_end, [&](const lockstep::StageContext&) { kept = std::make_unique<int>(1); });
  });
  fmt::print("{{\n");
  print("by_hand", by_hand, ",");
  print("trainer", trainer, ",");
  print("callbacks_of_other_stages", other_stages, ",");
  print("allocating_callback", allocating, ",");
  fmt::print("\"calls\": {}\n}}\n", calls);
}
