// A step between two reports never makes the host wait for the GPU.
//
// Two witnesses: LibTorch's own mode, which makes its waits errors, and the profiler, which also sees calls of the CUDA
// runtime by others, and on every device the operations that read a tensor's value.
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/record_function.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "gpu/device_probe.h"
#include "gpu/device_tests.h"
#include "gpu/small_net.h"
#include "support/at_stage.h"
#include "support/temp_dir.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t kFirst = 43;  // the steps before it fill the caches of memory
constexpr std::int64_t kLast = 57;
constexpr std::int64_t kSteps = 60;

constexpr const char* kBegin = "steady steps begin";
constexpr const char* kEnd = "steady steps end";

/// The names of all events of this process between the two marks, with their numbers.
class Profile {
 public:
  explicit Profile(ComputeSetup where) : activities_{Activity::CPU} {
    if (where == ComputeSetup::gpu) {
      activities_.insert(Activity::CUDA);
    }
  }
  ~Profile() { stop(); }
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  void start() {
    const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
    torch::autograd::profiler::prepareProfiler(config, activities_);
    torch::autograd::profiler::enableProfiler(config, activities_);
    runs_ = true;
    mark(kBegin);
  }
  void stop() {
    if (!runs_) {
      return;
    }
    mark(kEnd);
    runs_ = false;
    const auto result = torch::autograd::profiler::disableProfiler();
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    for (const auto& event : result->events()) {
      begin = event.name() == kBegin ? event.endNs() : begin;
      end = event.name() == kEnd ? event.startNs() : end;
    }
    for (const auto& event : result->events()) {
      if (event.startNs() >= begin && event.endNs() <= end) {
        ++counts_[event.name()];
      }
    }
  }

  std::int64_t count(const std::string& name) const {
    const auto found = counts_.find(name);
    return found == counts_.end() ? 0 : found->second;
  }

  /// Events that wait for the device, or would if the tensors were there.
  std::map<std::string, std::int64_t> waits() const {
    static const std::set<std::string> kWaits{"cudaStreamSynchronize",
                                              "cudaDeviceSynchronize",
                                              "cudaEventSynchronize",
                                              "cudaMemcpy",
                                              "cudaMalloc",
                                              "cudaFree",
                                              "cudaHostAlloc",
                                              "cudaFreeHost",
                                              "aten::item",
                                              "aten::equal",
                                              "aten::_local_scalar_dense",
                                              "aten::nonzero",
                                              "aten::is_nonzero",
                                              "aten::masked_select"};
    std::map<std::string, std::int64_t> found;
    for (const auto& [name, count] : counts_) {
      if (kWaits.contains(name)) {
        found[name] = count;
      }
    }
    return found;
  }

 private:
  using Activity = torch::profiler::impl::ActivityType;

  static void mark(const char* name) {
    RECORD_USER_SCOPE(name);
    std::this_thread::sleep_for(std::chrono::microseconds(10));  // a mark of some length
  }

  std::set<Activity> activities_;
  bool runs_ = false;
  std::map<std::string, std::int64_t> counts_;
};

/// One optimizer for the convolution, another for the rest, as a GAN has.
class TwoOptimizers final : public SmallTask {
 public:
  using SmallTask::SmallTask;
  std::vector<OptimizerSpec> optimizers() override {
    OptimizerSpec front(sgd({.lr = 0.01}));
    front.name = "front";
    front.module = net_->conv.get();
    OptimizerSpec back(adamw({.lr = 0.001}));
    back.name = "back";
    back.module = net_->head.get();
    return {front, back};
  }
  void optimize(Step& step) override {
    for (std::size_t i = 0; i < step.optimizer_count(); ++i) {
      step.optimizer(i).zero_grad();
      for (const Batch& batch : step.batches()) {
        const auto output = step.optimizer(i).forward(batch, [this](const Batch& b) { return training_step(b); });
        step.optimizer(i).backward(output);
        step.add(output);
      }
      step.optimizer(i).update();
    }
  }
};

struct Way {
  std::string name;
  std::function<void(TrainConfig&)> configure = [](TrainConfig&) {};
  std::function<std::unique_ptr<SmallTask>()> task = [] { return std::make_unique<SmallTask>(0.1); };
  /// There Adam and the spike gate read numbers with item(), and SGD in half precision is not fused.
  bool reads_on_cpu = false;
};

std::vector<Way> ways() {
  return {
      {.name = "fp32"},
      {.name = "bf16", .configure = [](TrainConfig& config) { config.precision = Precision::bf16_mixed; }},
      {.name = "fp16", .configure = [](TrainConfig& config) { config.precision = Precision::fp16_mixed; }},
      {.name = "channels last", .configure = [](TrainConfig& config) { config.memory.channels_last = true; }},
      {.name = "deterministic", .configure = [](TrainConfig& config) { config.deterministic = Determinism::on; }},
      {.name = "recomputed", .task = [] { return std::make_unique<RecomputingTask>(0.1); }},
      {.name = "skips what is not finite, and spikes",
       .configure =
           [](TrainConfig& config) {
             config.optim.non_finite = NonFinitePolicy::skip;
             config.spike = {.z_score = 4, .window = 20, .inputs = true, .policy = SpikePolicy::skip};
           },
       .reads_on_cpu = true},
      {.name = "skips what is not finite, in bf16",
       .configure =
           [](TrainConfig& config) {
             config.precision = Precision::bf16;
             config.optim.non_finite = NonFinitePolicy::skip;
           },
       .reads_on_cpu = true},
      {.name = "clipping", .configure = [](TrainConfig& config) { config.optim.max_grad_norm = 0.1; }},
      {.name = "schedule", .configure = [](TrainConfig& config) { config.optim.schedule = "warmup:50+cosine"; }},
      {.name = "accumulation", .configure = [](TrainConfig& config) { config.global_batch_size = 24; }},
      {.name = "loader without threads", .configure = [](TrainConfig& config) { config.data.workers = 0; }},
      {.name = "adamw",
       .task = [] { return std::make_unique<SmallTask>(0.1, adamw({.lr = 0.001})); },
       .reads_on_cpu = true},
      {.name = "counts and metrics", .task = [] { return std::make_unique<CountingTask>(0.1); }},
      {.name = "counts, accumulated and clipped",
       .configure =
           [](TrainConfig& config) {
             config.global_batch_size = 24;
             config.optim.max_grad_norm = 0.1;
           },
       .task = [] { return std::make_unique<CountingTask>(0.1); }},
      {.name = "two optimizers", .task = [] { return std::make_unique<TwoOptimizers>(0.1); }, .reads_on_cpu = true},
      // The save itself copies the state and waits; the steps while it is written do not.
      {.name = "a checkpoint in the background",
       .configure =
           [](TrainConfig& config) {
             config.checkpoint = {.every_epochs = 0, .every_steps = kFirst - 1, .async = true};
           }},
  };
}

TrainConfig steady_config(const Way& way, ComputeSetup where, const std::filesystem::path& run) {
  TrainConfig config = in_memory({.max_epochs = 0, .max_steps = kSteps, .batch_size = 8, .report = {.every_steps = 0}});
  config.compute_setup = where;
  config.run_dir = run.string();
  way.configure(config);
  return config;
}

/// Trains and profiles the steps between kFirst and kLast. `read` is called after each of them.
void profile_steps(const Way& way, ComputeSetup where, Profile& profile, bool waits_are_errors,
                   const std::function<void(const StageContext&)>& read = {}) {
  const TempDir dir;
  Session session = Session::single(steady_config(way, where, dir.path() / "run"));
  DataLoader data(small_images(96), session.plan.loader, session.world);
  const auto task = way.task();
  const auto watch = at_stage(Stage::step_end, [&](const StageContext& context) {
    if (context.state.step == kFirst) {
      profile.start();
      fail_on_synchronization(waits_are_errors);
    } else if (context.state.step == kLast) {
      fail_on_synchronization(false);
      profile.stop();
    } else if (read && context.state.step > kFirst && context.state.step < kLast) {
      read(context);
    }
  });
  try {
    Trainer(session).add(watch).fit(*task, data);
  } catch (...) {
    fail_on_synchronization(false);
    throw;
  }
}

LOCKSTEP_DEVICE_TEST(SteadyStep, NeverWaitsForTheDevice) {
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.name);
    Profile profile(where);
    EXPECT_NO_THROW(profile_steps(way, where, profile, /*waits_are_errors=*/true));
    if (where == ComputeSetup::gpu || !way.reads_on_cpu) {
      EXPECT_THAT(profile.waits(), IsEmpty());
    }
    EXPECT_GE(profile.count("aten::convolution"), kLast - kFirst) << "the profiler saw nothing";
    if (where == ComputeSetup::gpu) {
      EXPECT_GT(profile.count("cudaLaunchKernel"), 0) << "the profiler saw no call of the CUDA runtime";
    }
  }
}

// The control of the profiler.
LOCKSTEP_DEVICE_TEST(SteadyStep, WouldBeSeenToWait) {
  Profile profile(where);
  profile_steps(ways().front(), where, profile, /*waits_are_errors=*/false,
                [](const StageContext& context) { context.step.loss.item<float>(); });
  EXPECT_GE(profile.count("aten::item"), kLast - kFirst - 1);
  if (where == ComputeSetup::gpu) {
    EXPECT_GE(profile.count("cudaStreamSynchronize"), kLast - kFirst - 1);
  }
}

// The control of LibTorch's mode.
TEST(SteadyStepOnGpu, WouldFailIfItWaited) {
  LOCKSTEP_REQUIRE(Requirements().gpus(1));
  Profile profile(ComputeSetup::gpu);
  try {
    profile_steps(ways().front(), ComputeSetup::gpu, profile, /*waits_are_errors=*/true,
                  [](const StageContext& context) { context.step.loss.item<float>(); });
    ADD_FAILURE() << "item() did not fail";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("synchroniz"));
  }
}

TEST(SynchronizationMode, IsThatOfLibTorch) { EXPECT_TRUE(synchronization_mode_is_shared()); }

}  // namespace
}  // namespace lockstep
