// The program that the integration tests train: small, with dropout and momentum, and with ways to fail on request.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>

#include <fmt/format.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/lockstep.h>
#include <lockstep/metrics/regression.h>
#include <lockstep/trainer/monitors.h>

namespace {

constexpr std::int64_t kSize = 103;  // not a multiple of any batch size

struct NetImpl : torch::nn::Module {
  NetImpl(double dropout, at::ScalarType dtype) : drop(register_module("drop", torch::nn::Dropout(dropout))) {
    a = register_module("a", torch::nn::Linear(10, 16));
    b = register_module("b", torch::nn::Linear(16, 1));
    to(dtype);
  }
  at::Tensor forward(const at::Tensor& x) { return b(drop(at::tanh(a(x)))); }
  torch::nn::Dropout drop;
  torch::nn::Linear a{nullptr}, b{nullptr};
};
TORCH_MODULE(Net);

struct Options {
  double dropout = 0.2;
  bool noise = true;
  bool fp64 = false;
  std::string optimizer = "adamw";
  bool by_hand = false;    // without a Trainer
  bool callbacks = false;  // with a state: averages, plateau, early stopping, monitors, a metric; and a frozen layer
  std::int64_t broken_sample = -1;  // its target is NaN
  std::int64_t loud_sample = -1;    // its target is large
  std::string ledger;               // directory in which every rank records the samples of each step
  std::int64_t stops = 0;  // instead of one run: for each step up to this one, a run that stops there and is resumed
  std::int64_t stride = 1;
  std::int64_t fail_step = -1;
  std::int64_t fail_rank = 0;
  std::int64_t fits = 0;     // samples that fit into the memory of `fail_rank`, from step `fail_step` on; 0: all
  std::int64_t work_ms = 0;  // sleep of every rank in a step
  std::int64_t slow_ms = 0;  // additional sleep of `fail_rank` each time it passes `fail_in`
  // one of kFailures; change: in the optimizer, a parameter that the other ranks do not change
  std::string fail = "throw";
  // init, turn, data, forward, loss (it becomes NaN), backward, optimizer, collective (one more than the others),
  // validation, test, save, callback:WHERE (a stage, or stages, save, load; callback alone: all of them), teardown,
  // exit
  std::string fail_in = "optimizer";
};

at::ScalarType dtype_of(const Options& options) { return options.fp64 ? at::kDouble : at::kFloat; }

[[noreturn]] void throw_error() { throw std::runtime_error("cannot decode sample 4411"); }
[[noreturn]] void throw_in_noexcept() noexcept { throw_error(); }

void deadlock() {
  std::mutex mutex;
  const std::lock_guard held(mutex);
  std::thread([&] { const std::lock_guard never(mutex); }).join();
}

[[noreturn]] void spin() {
  for (std::atomic<unsigned> turns{0};; ++turns) {
  }
}

void sleep_for(std::chrono::seconds time) { std::this_thread::sleep_for(time); }

std::atomic<bool> crashes_at_exit{false};

/// The values of --fail.
const std::map<std::string, void (*)()> kFailures = {
    {"throw", [] { throw_error(); }},
    {"int", [] { throw 5; }},
    {"noexcept", [] { throw_in_noexcept(); }},
    {"thread", [] { std::thread(throw_error).join(); }},
    {"terminate", [] { std::terminate(); }},
    {"segv", [] { std::raise(SIGSEGV); }},
    {"abort", [] { std::abort(); }},
    {"kill", [] { std::raise(SIGKILL); }},
    {"term", [] { std::raise(SIGTERM); }},
    {"exit0", [] { std::exit(0); }},
    {"exit_crash",
     [] {
       crashes_at_exit = true;
       std::exit(0);
     }},
    {"exit7", [] { std::_Exit(7); }},
    {"memory", [] { at::empty({std::int64_t{1} << 50}); }},
    {"shape",
     [] {
       at::mm(at::zeros({2, 3}), at::zeros({4, 5}));
     }},
    {"mutex", deadlock},
    {"spin", [] { spin(); }},
    {"sleep", [] { sleep_for(std::chrono::hours(1)); }},
    {"slow", [] { sleep_for(std::chrono::seconds(2)); }},  // no failure
    {"once", [] { sleep_for(std::chrono::seconds(4)); }},  // no failure
};

/// Fails at the `fail_step`-th call in the requested phase on the requested rank.
class Failure {
 public:
  Failure(const Options& options, int rank)
      : options_(options), armed_(options.fail_rank < 0 || rank == options.fail_rank) {}
  void reach(const std::string& phase) {
    if (armed_ && matches(phase) && options_.slow_ms > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(options_.slow_ms));
    }
    if (is_due(phase)) {
      if (options_.fail == "sleep" || options_.fail == "spin") {
        fmt::print(stderr, "hangs now\n");
      } else if (options_.fail == "slow") {
        fmt::print(stderr, "is slow now\n");
      }
      kFailures.at(options_.fail)();
    }
  }
  bool is_due(const std::string& phase) {
    return armed_ && matches(phase) && options_.fail_step >= 0 && calls_++ == options_.fail_step;
  }

 private:
  bool matches(const std::string& phase) const {
    return phase == options_.fail_in || phase.starts_with(options_.fail_in + ":");
  }

  Options options_;
  bool armed_;
  std::atomic<std::int64_t> calls_{0};
};

// Sample i is a function of i, with noise that depends on (seed, epoch, sample) only.
class Points final : public lockstep::Dataset {
 public:
  Points(const Options& options, bool noise, std::function<void()> before)
      : options_(options), noise_(noise), dtype_(dtype_of(options)), before_(std::move(before)) {}
  std::int64_t size() const override { return kSize; }
  lockstep::Batch get(std::span<const std::int64_t> ids, const lockstep::SampleSeed& seed) const override {
    before_();
    auto x = at::empty({static_cast<std::int64_t>(ids.size()), 10}, dtype_);
    for (std::size_t row = 0; row < ids.size(); ++row) {
      const double shift = noise_ ? static_cast<double>(seed(ids[row]) % 1000) * 1e-4 : 0.0;
      x[static_cast<std::int64_t>(row)].copy_(at::sin(at::arange(10) * 0.3 + static_cast<double>(ids[row]) + shift));
    }
    const auto target = x.sum(1, true).tanh();
    for (std::size_t row = 0; row < ids.size(); ++row) {
      if (ids[row] == options_.broken_sample) {
        target[static_cast<std::int64_t>(row)].fill_(std::numeric_limits<double>::quiet_NaN());
      } else if (ids[row] == options_.loud_sample) {
        target[static_cast<std::int64_t>(row)].fill_(100);
      }
    }
    return {.input = x, .target = target};
  }

 private:
  Options options_;
  bool noise_;
  at::ScalarType dtype_;
  std::function<void()> before_;
};

struct Regression final : lockstep::Task {
  Regression(const Options& options_, lockstep::World& world_, Failure& failure_)
      : options(options_), world(world_), failure(failure_), net(options_.dropout, dtype_of(options_)) {
    if (!options.ledger.empty()) {
      ledger.open(fmt::format("{}/rank_{}.txt", options.ledger, world.rank()), std::ios::app);
    }
  }
  torch::nn::Module& module() override { return *net; }
  std::vector<lockstep::OptimizerSpec> optimizers() override {
    if (options.optimizer == "sgd") {
      return {lockstep::sgd({.lr = 0.05, .momentum = 0.9})};
    }
    return {lockstep::adamw({.lr = 0.01})};
  }
  lockstep::StepOutput training_step(const lockstep::Batch& batch) override {
    failure.reach("forward");
    if (options.fits > 0 && batch.samples > options.fits && world.rank() == options.fail_rank &&
        ++forwards > options.fail_step) {
      kFailures.at("memory")();
    }
    const auto output = net->forward(batch.input);
    if (options.callbacks) {
      error.update(output.detach(), batch.target);
    }
    auto loss = at::mse_loss(output, batch.target);
    if (loss.requires_grad() && failure.is_due("backward")) {
      loss.register_hook([how = options.fail](const at::Tensor&) { kFailures.at(how)(); });
    }
    return failure.is_due("loss") ? loss * std::numeric_limits<double>::quiet_NaN() : loss;
  }
  lockstep::StepOutput validation_step(const lockstep::Batch& batch) override {
    failure.reach("validation");
    return at::mse_loss(net->forward(batch.input), batch.target);
  }
  std::vector<lockstep::metrics::NamedMetric> metrics() override {
    return options.callbacks ? std::vector<lockstep::metrics::NamedMetric>{{"error", error}}
                             : std::vector<lockstep::metrics::NamedMetric>{};
  }
  void optimize(lockstep::Step& step) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(options.work_ms));
    if (options.fail != "change") {
      failure.reach("optimizer");
    } else if (failure.is_due("optimizer")) {
      const at::NoGradGuard no_grad;
      net->b->bias.add_(1);
    }
    if (failure.is_due("collective")) {
      world.all_reduce(at::zeros({1}), lockstep::Reduce::sum);
    }
    Task::optimize(step);
    if (ledger.is_open()) {
      ledger << step.number() << ':';
      for (const auto& batch : step.batches()) {
        for (const auto id : batch.ids) {
          ledger << ' ' << id;
        }
      }
      ledger << std::endl;
    }
  }

  Options options;
  lockstep::World& world;
  Failure& failure;
  Net net;
  lockstep::metrics::MeanAbsoluteError error;
  std::ofstream ledger;
  std::int64_t forwards = 0;
};

class AfterSave final : public lockstep::Callback {
 public:
  explicit AfterSave(Failure& failure) : failure_(failure) {}
  std::string name() const override { return "after_save"; }
  std::uint32_t stages() const override { return static_cast<std::uint32_t>(lockstep::Stage::checkpoint_saved); }
  void on(const lockstep::StageContext&) override { failure_.reach("save"); }

 private:
  Failure& failure_;
};

/// Can be slow or fail at every call of a callback.
class Everywhere final : public lockstep::Callback {
 public:
  explicit Everywhere(Failure& failure) : failure_(failure) {}
  std::string name() const override { return "everywhere"; }
  std::uint32_t stages() const override {
    failure_.reach("callback:stages");
    using lockstep::Stage;
    return Stage::fit_start | Stage::step_end | Stage::epoch_end | Stage::validation_end | Stage::report |
           Stage::checkpoint_saved | Stage::fit_end;
  }
  void on(const lockstep::StageContext& context) override {
    using lockstep::Stage;
    static const std::map<Stage, std::string> names{
        {Stage::fit_start, "fit_start"}, {Stage::step_end, "step_end"},
        {Stage::epoch_end, "epoch_end"}, {Stage::validation_end, "validation_end"},
        {Stage::report, "report"},       {Stage::checkpoint_saved, "checkpoint_saved"},
        {Stage::fit_end, "fit_end"}};
    failure_.reach("callback:" + names.at(context.stage));
  }
  lockstep::NamedTensors save() const override {
    failure_.reach("callback:save");
    return {{"calls", at::zeros({1})}};
  }
  void load(const lockstep::NamedTensors&) override { failure_.reach("callback:load"); }

 private:
  Failure& failure_;
};

}  // namespace

void train(const Options& options, const lockstep::Plan& plan, lockstep::World& world, Failure& failure,
           lockstep::Trainer trainer) {
  at::manual_seed(plan.config.seed);
  Regression task(options, world, failure);
  const auto train_set = std::make_shared<Points>(options, options.noise, [&] { failure.reach("data"); });
  const auto validation_set = std::make_shared<Points>(options, /*noise=*/false, [] {});
  lockstep::DataLoader data(train_set, plan.loader, world);
  lockstep::DataLoader validation(validation_set, plan.eval_loader, world);
  if (plan.config.report.tensorboard) {
    trainer.add(std::make_shared<lockstep::HistogramMonitor>())
        .on(lockstep::Stage::epoch_end, [](const lockstep::StageContext& at) {
          at.log_text("note", fmt::format("epoch **{}**", at.state.epoch));
          at.log_image("weights", at.module.parameters()[0].detach());
        });
  }
  if (options.callbacks) {
    trainer.add(std::make_shared<lockstep::WeightAverage>(lockstep::WeightAverageOptions{.decay = 0.9}))
        .add(
            std::make_shared<lockstep::ReduceOnPlateau>(lockstep::ReduceOnPlateauOptions{.factor = 0.5, .patience = 1}))
        .add(std::make_shared<lockstep::EarlyStopping>(lockstep::EarlyStoppingOptions{.patience = 100}))
        .add(std::make_shared<lockstep::FreezeUntil>("a.*", 2))
        .add(std::make_shared<lockstep::SmoothedMetric>("loss"))
        .add(std::make_shared<lockstep::GradientMonitor>(lockstep::GradientMonitorOptions{.every_steps = 2}));
  }
  if (options.fail_in.starts_with("callback")) {
    trainer.add(std::make_shared<Everywhere>(failure));
  }
  trainer.on_command("sample", [](const lockstep::StageContext& at) {
    std::fprintf(stderr, "rank %d samples at step %lld\n", at.world.rank(), static_cast<long long>(at.state.step));
  });
  trainer.add(std::make_shared<AfterSave>(failure)).fit(task, data, &validation);
  if (options.fail_in == "test") {
    trainer.on(lockstep::Stage::test_batch_end, [&](const lockstep::StageContext&) { failure.reach("test"); });
    trainer.test(task, validation);
  }
}

// max_epochs without a Trainer; what is between the steps fails in validation, save and teardown.
void train_by_hand(const Options& options, lockstep::Session& session, Failure& failure) {
  lockstep::World& world = session.world;
  const lockstep::TrainConfig& config = session.plan.config;
  Net net(options.dropout, dtype_of(options));
  lockstep::DataLoader data(std::make_shared<Points>(options, options.noise, [&] { failure.reach("data"); }),
                            session.plan.loader, world);
  lockstep::DataLoader validation(std::make_shared<Points>(options, /*noise=*/false, [] {}), session.plan.eval_loader,
                                  world);
  const auto strategy = lockstep::make_strategy(session.plan, world);
  const lockstep::OptimizerSpec spec(lockstep::adamw({.lr = 0.01}));
  strategy->prepare(*net, {&spec, 1});
  lockstep::StrategyOptimizer& optimizer = strategy->optimizer();
  lockstep::CheckpointStore store(lockstep::run_directory(config) + "/checkpoints", config.checkpoint, world);
  std::int64_t step = 0;
  if (const auto stored = store.load_latest()) {
    lockstep::load_module(*net, stored->contents.tensors.at("model"));
    strategy->load_optimizer_state(stored->contents.tensors.at("optimizer"));
    data.seek(lockstep::position_of(stored->contents.values));
    step = stored->step;
  }
  while (data.position().epoch < config.max_epochs) {
    const lockstep::StepBatches& batches = *data.next();
    strategy->begin_step(step);
    optimizer.zero_grad();
    for (const lockstep::Batch& batch : batches.micro) {
      optimizer.begin_forward(&batch == &batches.micro.back() ? lockstep::Gradients::reduce
                                                              : lockstep::Gradients::accumulate);
      failure.reach("forward");
      const at::Tensor loss = at::mse_loss(net->forward(batch.input), batch.target);
      if (failure.is_due("backward")) {
        loss.register_hook([how = options.fail](const at::Tensor&) { kFailures.at(how)(); });
      }
      optimizer.backward(
          loss, static_cast<double>(batch.samples * world.size()) / static_cast<double>(batches.global_samples));
    }
    optimizer.finish();
    failure.reach("optimizer");
    optimizer.step();
    static_cast<void>(strategy->agreed());
    ++step;
    if (config.checkpoint.every_steps > 0 && step % config.checkpoint.every_steps == 0) {
      store.save(step,
                 {.tensors = {{"model", lockstep::module_tensors(*net)}, {"optimizer", strategy->optimizer_state()}},
                  .values = lockstep::position_values(data.position())});
      failure.reach("save");
    }
    if (batches.ends_epoch) {
      const at::NoGradGuard no_grad;
      const auto evaluation = strategy->evaluation_scope();
      while (true) {
        const lockstep::StepBatches& evaluated = *validation.next();
        failure.reach("validation");
        for (const lockstep::Batch& batch : evaluated.micro) {
          at::mse_loss(net->forward(batch.input), batch.target);
        }
        if (evaluated.ends_epoch) {
          break;
        }
      }
    }
  }
}

// Losses caused by a stop are visible at the end, after any step.
void train_with_stops(const Options& options, lockstep::Session& session, Failure& failure) {
  for (std::int64_t stop = 1; stop <= options.stops; stop += options.stride) {
    lockstep::Plan plan = session.plan;
    plan.config.run_dir += fmt::format("/stop_{}", stop);
    plan.config.max_steps = stop;
    train(options, plan, session.world, failure, lockstep::Trainer(plan, session.world));
    plan.config.max_steps = session.plan.config.max_steps;
    train(options, plan, session.world, failure, lockstep::Trainer(plan, session.world));
  }
}

// The first rank that does not find the file creates it and dies before it connects.
void die_once(const lockstep::Variables& environment) {
  const auto file = environment.get("TRAIN_PROGRAM_DIES_ONCE");
  if (file && environment.has("RANK") && !std::filesystem::exists(*file)) {
    std::ofstream(*file) << "died\n";
    std::raise(SIGKILL);
  }
}

// Ranks that are still loading, until a signal ends them.
void wait_in_main(const lockstep::Variables& environment) {
  if (environment.has("TRAIN_PROGRAM_WAITS_IN_MAIN") && environment.has("RANK")) {
    fmt::print(stderr, "waits in main\n");
    pause();
  }
}

// A program without run() that makes a Session after another one.
int connect_twice() {
  try {
    for (int time = 1; time <= 2; ++time) {
      lockstep::Session session = lockstep::Session::connect({.compute_setup = lockstep::ComputeSetup::cpu});
      session.print(fmt::format("session {} of {}", time, session.world.all_reduce(1.0, lockstep::Reduce::sum)));
    }
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", lockstep::error_text(error));
    return static_cast<int>(lockstep::exit_code_of(error));
  }
}

int main(int argc, char** argv) {
  if (lockstep::read_environment().has("TRAIN_PROGRAM_CONNECTS_TWICE")) {
    return connect_twice();
  }
  std::atexit([] {
    if (crashes_at_exit) {  // like a static object that a thread still uses
      std::raise(SIGSEGV);
    }
    if (lockstep::read_environment().has("TRAIN_PROGRAM_GETS_STOPS_AT_EXIT")) {
      fmt::print(stderr, "gets stops at exit\n");
      for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) {
        std::raise(signal);
      }
    }
  });
  if (const auto directory = lockstep::read_environment().get("TRAIN_PROGRAM_GOES_TO")) {
    std::filesystem::current_path(*directory);
  }
  die_once(lockstep::read_environment());
  wait_in_main(lockstep::read_environment());
  if (lockstep::read_environment().has("TRAIN_PROGRAM_STARTS_THREADS")) {
    at::ones({2'000'000}).exp();  // starts LibTorch's threads, also in the launcher
  }
  std::string input;  // a parser of the program's own takes it out of argv
  if (argc > 2 && std::string_view(argv[1]) == "-i") {
    input = argv[2];
    argv[2] = argv[0];
    argv += 2;
    argc -= 2;
  }
  Options options;
  lockstep::Flags flags;
  flags.add("dropout", &options.dropout, "dropout probability")
      .add("noise", &options.noise, "noise on the samples")
      .add("fp64", &options.fp64, "model and data in double precision")
      .add("stops", &options.stops, "a run for each step up to this one that stops there and is resumed")
      .add("stride", &options.stride, "between these steps")
      .add("optimizer", &options.optimizer, "adamw or sgd")
      .add("by_hand", &options.by_hand, "a loop by hand, without a Trainer")
      .add("callbacks", &options.callbacks,
           "average, plateau, early stopping, monitors, a metric, and a layer that is frozen")
      .add("broken_sample", &options.broken_sample, "sample whose target is NaN")
      .add("loud_sample", &options.loud_sample, "sample whose target is large")
      .add("ledger", &options.ledger, "folder for the samples that each rank saw")
      .add("fail_in", &options.fail_in, "phase to fail in")
      .add("fail_step", &options.fail_step, "how often the phase is passed before it fails")
      .add("fail_rank", &options.fail_rank, "rank that fails; -1: every rank")
      .add("fail", &options.fail, "how")
      .add("fits", &options.fits, "samples that fit into the memory of fail_rank, after fail_step forwards; 0: all")
      .add("work_ms", &options.work_ms, "sleep of every rank in a step")
      .add("slow_ms", &options.slow_ms, "more, of that rank in that phase, every time");
  const lockstep::TrainConfig defaults{.max_epochs = 3, .batch_size = 4, .report = {.every_steps = 1}};
  return lockstep::run(defaults, flags, argc, argv, [&](lockstep::Session& session) {
    if (!input.empty()) {
      fmt::print(stderr, "reads {}\n", input);
    }
    Failure failure(options, session.world.rank());
    failure.reach("init");
    session.world.main_first("a turn each", [&] { failure.reach("turn"); });
    if (options.by_hand) {
      train_by_hand(options, session, failure);
    } else if (options.stops > 0) {
      train_with_stops(options, session, failure);
    } else {
      train(options, session.plan, session.world, failure, lockstep::Trainer(session));
    }
    failure.reach("teardown");
    if (failure.is_due("exit")) {
      std::atexit(kFailures.at("sleep"));
    }
  });
}
