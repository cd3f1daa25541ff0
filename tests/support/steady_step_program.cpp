// Prints what a step costs in allocations (calls of operator new) and page faults, as JSON: of a loop by hand, of the
// Trainer with the same model, batch and optimizer, of the Trainer with callbacks that have no stage of a step, and,
// as the control, with a callback that allocates and makes a system call once in each step. Then of a loop by hand and
// of the Trainer, both with clipping, a schedule and a metric; and of the Trainer with a DataLoader that has no thread,
// and with one that has. With the variables of a rank of several: of the Trainer with gradients in shared memory, and
// the control.
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

#include <lockstep/base/variables.h>
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
constexpr std::int64_t kBatch = 16;
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

Cost per_step(const Cost& begin, const Cost& end) {
  return {(end.allocations - begin.allocations) / kSteps, (end.page_faults - begin.page_faults) / kSteps};
}

/// The same batch in every step; notes what the steps after the warm-up cost.
class SameBatch final : public lockstep::BatchSource {
 public:
  explicit SameBatch(int ranks = 1) {
    lockstep::Batch batch{.input = at::ones({kBatch, 32}), .target = at::zeros({kBatch, 10}), .samples = kBatch};
    step_ = {.local_samples = kBatch, .global_samples = kBatch * ranks};
    step_.micro.push_back(std::move(batch));
  }
  const lockstep::StepBatches* next() override {
    if (served_ == kWarmUp) {
      begin_ = cost_until_now();
    }
    if (served_++ < kWarmUp + kSteps) {
      return &step_;
    }
    per_step_ = per_step(begin_, cost_until_now());
    return nullptr;
  }
  std::optional<std::int64_t> steps_per_epoch() const override { return std::nullopt; }
  lockstep::LoaderPosition position() const override { return {}; }
  void seek(const lockstep::LoaderPosition&) override {}
  const Cost& cost() const { return per_step_; }

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
  return data.cost();
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
  return data.cost();
}

Cost cost_of_trainer(lockstep::Session& session, lockstep::Task& task,
                     const std::function<void(lockstep::Trainer&)>& prepare = {}) {
  SameBatch data(session.world.size());
  lockstep::Trainer trainer(session);
  if (prepare) {
    prepare(trainer);
  }
  trainer.fit(task, data);
  return data.cost();
}

/// Within one epoch.
Cost cost_with_loader(const lockstep::TrainConfig& config, int workers, lockstep::Task& task) {
  lockstep::TrainConfig loading = config;
  loading.max_steps = kWarmUp + kSteps;
  loading.batch_size = kBatch;
  loading.data.workers = workers;
  lockstep::Session session = lockstep::Session::single(loading);
  constexpr std::int64_t kSamples = kBatch * (kWarmUp + kSteps + 1);
  lockstep::DataLoader data(lockstep::tensor_dataset(at::ones({kSamples, 32}), at::zeros({kSamples, 10})),
                            session.plan.loader, session.world);
  Cost begin{};
  Cost end{};
  lockstep::Trainer(session)
      .on(lockstep::Stage::step_end,
          [&](const lockstep::StageContext& at) {
            if (at.state.step == kWarmUp) {
              begin = cost_until_now();
            } else if (at.state.step == kWarmUp + kSteps) {
              end = cost_until_now();
            }
          })
      .fit(task, data);
  return per_step(begin, end);
}

/// Something that allocates and makes a system call.
auto waste() {
  return [kept = std::make_shared<std::unique_ptr<int>>()] {
    *kept = std::make_unique<int>(1);
    getppid();
  };
}

std::unique_ptr<lockstep::Task> plain() { return lockstep::make_task(model(), loss_of, lockstep::adamw()); }

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
  if (lockstep::read_environment().has("RANK")) {
    config.backend = lockstep::Backend::shm;
    lockstep::Session session = lockstep::Session::connect(config);
    const Cost trainer = cost_of_trainer(session, *plain());
    // Ranks wait for each other after a callback, so here it is not the control.
    const auto costly_loss = [spend = waste()](const at::Tensor& output, const at::Tensor& target) {
      for (int time = 0; time < 10; ++time) {
        spend();
      }
      return loss_of(output, target);
    };
    const Cost control = cost_of_trainer(session, *lockstep::make_task(model(), costly_loss, lockstep::adamw()));
    fmt::print("{{\n");
    print("trainer", trainer);
    print("costly_loss", control);
    fmt::print("\"steps\": {}\n}}\n", kSteps);
    return 0;
  }
  lockstep::Session session = lockstep::Session::single(config);
  lockstep::TrainConfig with_limit = config;
  with_limit.optim.max_grad_norm = kLongestNorm;
  lockstep::Session clipping = lockstep::Session::single(with_limit);
  int calls = 0;
  const auto count = [&](const lockstep::StageContext&) { ++calls; };
  const auto with_all =
      lockstep::make_task(model(), loss_and_error, {lockstep::adamw(), fmt::format("cosine:for={}", kCosineSteps)});

  fmt::print("{{\n");
  print("by_hand", cost_by_hand());
  print("trainer", cost_of_trainer(session, *plain()));
  print("callbacks_of_other_stages", cost_of_trainer(session, *plain(), [&](lockstep::Trainer& made) {
          made.on(lockstep::Stage::fit_start, count).on(lockstep::Stage::validation_end, count);
        }));
  print("costly_callback", cost_of_trainer(session, *plain(), [](lockstep::Trainer& made) {
          made.on(lockstep::Stage::step_end, [spend = waste()](const lockstep::StageContext&) { spend(); });
        }));
  print("by_hand_with_all", cost_by_hand_with_all());
  print("trainer_with_all", cost_of_trainer(clipping, *with_all));
  print("loader", cost_with_loader(config, /*workers=*/0, *plain()));
  print("loader_with_thread", cost_with_loader(config, /*workers=*/1, *plain()));
  fmt::print("\"calls\": {}, \"steps\": {}\n}}\n", calls, kSteps);
}
