// Prints what a step costs in allocations (calls of operator new) and page faults, as JSON: of a loop by hand, of the
// Trainer with the same model, batch and optimizer, of the Trainer with callbacks that have no stage of a step, and,
// as the control, with a callback that allocates and makes a system call once in each step. Then of a loop by hand and
// of the Trainer, both with clipping, a schedule and a metric.
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <numbers>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/clip_grad.h>
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
constexpr std::int64_t kCosineSteps = 1'000'000;
constexpr double kLongestNorm = 0.5;

struct Cost {
  double allocations = 0;
  double page_faults = 0;
};

/// A process that counts the system calls of this one knows by getrusage() where the steps begin and end.
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

lockstep::StepOutput loss_and_error(const at::Tensor& output, const at::Tensor& target) {
  lockstep::StepOutput step(loss_of(output, target));
  const at::NoGradGuard no_grad;
  step.metrics.emplace_back("error", at::l1_loss(output, target));
  return step;
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const std::vector<at::Tensor>& parameters) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(parameters);
  return lockstep::adamw()(std::move(groups));
}

Cost cost_by_hand() {
  auto net = model();
  const auto optimizer = optimizer_of(net->parameters());
  SameBatch data;
  while (const auto* step = data.next()) {
    optimizer->zero_grad();
    loss_of(net->forward(step->micro[0].input), step->micro[0].target).backward();
    optimizer->step();
  }
  return data.per_step();
}

Cost cost_by_hand_with_all() {
  auto net = model();
  const std::vector<at::Tensor> parameters = net->parameters();
  const auto optimizer = optimizer_of(parameters);
  auto& options = optimizer->param_groups().front().options();
  const double lr = options.get_lr();
  at::Tensor errors = at::zeros({}, at::kDouble);
  std::int64_t count = 0;
  SameBatch data;
  while (const auto* step = data.next()) {
    const lockstep::Batch& batch = step->micro[0];
    optimizer->zero_grad();
    const at::Tensor output = net->forward(batch.input);
    loss_of(output, batch.target).backward();
    const at::NoGradGuard no_grad;
    errors.add_(at::l1_loss(output, batch.target), batch.samples);
    torch::nn::utils::clip_grad_norm_(parameters, kLongestNorm);
    options.set_lr(lr * (1 + std::cos(std::numbers::pi * static_cast<double>(count++) / kCosineSteps)) / 2);
    optimizer->step();
  }
  return data.per_step();
}

Cost cost_of_trainer(lockstep::Session& session, lockstep::Task& task,
                     const std::function<void(lockstep::Trainer&)>& prepare = {}) {
  SameBatch data;
  lockstep::Trainer trainer(session);
  if (prepare) {
    prepare(trainer);
  }
  trainer.fit(task, data);
  return data.per_step();
}

void print(const char* name, const Cost& cost) {
  fmt::print("\"{}\": {{\"allocations\": {}, \"page_faults\": {}}},\n", name, cost.allocations, cost.page_faults);
}

}  // namespace

int main() {
  lockstep::TrainConfig config{.compute_setup = lockstep::ComputeSetup::cpu,
                               .max_epochs = 0,
                               .max_steps = 1'000'000,
                               .checkpoint = {.enabled = false},
                               .report = {.every_steps = 0, .progress = false, .jsonl = false, .csv = false}};
  lockstep::Session session = lockstep::Session::single(config);
  config.optim.max_grad_norm = kLongestNorm;
  lockstep::Session clipping = lockstep::Session::single(config);
  int calls = 0;
  const auto count = [&](const lockstep::StageContext&) { ++calls; };
  std::unique_ptr<int> kept;
  const auto plain = [] { return lockstep::make_task(model(), loss_of, lockstep::adamw()); };
  const auto with_all =
      lockstep::make_task(model(), loss_and_error, {lockstep::adamw(), fmt::format("cosine:for={}", kCosineSteps)});

  fmt::print("{{\n");
  print("by_hand", cost_by_hand());
  print("trainer", cost_of_trainer(session, *plain()));
  print("callbacks_of_other_stages", cost_of_trainer(session, *plain(), [&](lockstep::Trainer& made) {
          made.on(lockstep::Stage::fit_start, count).on(lockstep::Stage::validation_end, count);
        }));
  print("costly_callback", cost_of_trainer(session, *plain(), [&](lockstep::Trainer& made) {
          made.on(lockstep::Stage::step_end, [&](const lockstep::StageContext&) {
            kept = std::make_unique<int>(1);
            getppid();
          });
        }));
  print("by_hand_with_all", cost_by_hand_with_all());
  print("trainer_with_all", cost_of_trainer(clipping, *with_all));
  fmt::print("\"calls\": {}, \"steps\": {}\n}}\n", calls, kSteps);
}
