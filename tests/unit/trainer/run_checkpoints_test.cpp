// When a run saves, what it keeps, and what happens when it cannot.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/parallel/sync_batch_norm.h>
#include <lockstep/storage/safetensors.h>
#include <lockstep/trainer/callbacks.h>
#include <lockstep/trainer/trainer.h>

#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/runs.h"
#include "support/temp_dir.h"
#include "support/tensors.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"
#include "support/working_directory.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

/// 20 samples in steps of 4: 5 steps an epoch, 15 in the run.
TrainConfig config_in(const std::filesystem::path& run) {
  TrainConfig config = in_memory({.max_epochs = 3, .batch_size = 4, .global_batch_size = 4});
  config.run_dir = run.string();
  config.checkpoint = {.enabled = true, .every_epochs = 0};
  return config;
}

/// Does something at a stage, and notes where checkpoints became durable.
class Probe final : public Callback {
 public:
  explicit Probe(std::uint32_t stages = 0, std::function<void(const StageContext&)> act = {})
      : stages_(stages), act_(std::move(act)) {}
  std::string name() const override { return "probe"; }
  std::uint32_t stages() const override { return stages_ | Stage::checkpoint_saved; }
  void on(const StageContext& context) override {
    if (context.stage == Stage::checkpoint_saved) {
      saved.push_back(context.state.step);
    }
    if (act_ && (stages_ & static_cast<std::uint32_t>(context.stage)) != 0) {
      act_(context);
    }
  }
  std::vector<std::int64_t> saved;

 private:
  std::uint32_t stages_;
  std::function<void(const StageContext&)> act_;
};

FitResult train(
    const TrainConfig& config, const std::shared_ptr<Probe>& probe = std::make_shared<Probe>(),
    const std::function<void(Task&)>& after = [](Task&) {}) {
  Session session = Session::single(config);
  TinyTask task(sgd({.lr = 0.05, .momentum = 0.9}));
  DataLoader data(tiny_data(20), session.plan.loader, session.world);
  DataLoader validation(tiny_data(7), session.plan.eval_loader, session.world);
  Trainer trainer(session);
  trainer.add(probe);
  const FitResult result = trainer.fit(task, data, &validation);
  after(task);
  return result;
}

std::set<std::int64_t> steps_in(const std::filesystem::path& run) {
  std::set<std::int64_t> steps;
  for (const auto& entry : std::filesystem::directory_iterator(run / "checkpoints")) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && name.find('.') == std::string::npos) {
      steps.insert(std::stoll(name.substr(5)));
    }
  }
  return steps;
}

TEST(RunCheckpoints, AreInOneDirectoryEvenIfTheProgramChangesItsWorkingDirectory) {
  const TempDir directory;
  std::filesystem::create_directory(directory.path() / "elsewhere");
  const WorkingDirectory here(directory.path());
  TrainConfig config = config_in("run");
  config.checkpoint.every_steps = 8;
  config.report.step_times = true;
  train(config, std::make_shared<Probe>(0U | Stage::step_end, [](const StageContext& context) {
          if (context.state.step == 1) {
            std::filesystem::current_path("elsewhere");
          }
        }));
  EXPECT_EQ(steps_in(directory.path() / "run"), (std::set<std::int64_t>{8, 15}));
  EXPECT_TRUE(std::filesystem::is_empty(directory.path() / "elsewhere"));
}

TEST(RunCheckpoints, AreWhereTheProgramStartedInEachFit) {
  const TempDir directory;
  std::filesystem::create_directories(directory.path() / "sub" / "sub");
  const WorkingDirectory here(directory.path());
  Session session = Session::single(config_in("run"));
  for (const std::int64_t epochs : {1, 2}) {
    std::filesystem::current_path("sub");
    Plan plan = session.plan;
    plan.config.max_epochs = epochs;
    TinyTask task;
    DataLoader data(tiny_data(20), plan.loader, session.world);
    EXPECT_EQ(Trainer(plan, session.world).fit(task, data).state.step, 5 * epochs);
  }
  EXPECT_EQ(steps_in(directory.path() / "run"), (std::set<std::int64_t>{5, 10}));
  EXPECT_FALSE(std::filesystem::exists(directory.path() / "sub" / "run"));
  EXPECT_FALSE(std::filesystem::exists(directory.path() / "sub" / "sub" / "run"));
}

TEST(RunCheckpoints, InTheBackgroundAreThoseOfTheForeground) {
  const TempDir directory;
  for (const bool async : {false, true}) {
    TrainConfig config = config_in(directory.path() / (async ? "async" : "sync"));
    config.checkpoint.every_steps = 4;
    config.checkpoint.keep_last = 4;
    config.checkpoint.async = async;
    const auto probe = std::make_shared<Probe>();
    train(config, probe);
    EXPECT_EQ(steps_in(config.run_dir), (std::set<std::int64_t>{4, 8, 12, 15}));
    EXPECT_EQ(probe->saved.size(), 4U);
    EXPECT_EQ(probe->saved.back(), 15);
  }
  for (const char* step : {"step-0000000004", "step-0000000008", "step-0000000012", "step-0000000015"}) {
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "rng-0.bin"}) {
      EXPECT_EQ(read_text(directory.path() / "sync" / "checkpoints" / step / file),
                read_text(directory.path() / "async" / "checkpoints" / step / file))
          << step << '/' << file;
    }
  }
}

TEST(RunCheckpoints, HaveTheOtherNamesOfTiedWeights) {
  struct Tied final : public TinyTask {
    Tied() { net_->register_parameter("again", net_->weight); }
  };
  const TempDir directory;
  for (const bool weights_only : {false, true}) {
    TrainConfig config = config_in(directory.path() / (weights_only ? "weights" : "all"));
    config.checkpoint.weights_only = weights_only;
    Session session = Session::single(config);
    Tied task;
    DataLoader data(tiny_data(20), session.plan.loader, session.world);
    Trainer(session).fit(task, data);
    const auto file = newest_checkpoint(config.run_dir) / "model.safetensors";
    const SafetensorsReader reader(real_file_system().open(file), file.string());
    EXPECT_THAT(reader.metadata(), ElementsAre(testing::Pair("again", "weight"), testing::Pair("format", "pt")));
    EXPECT_EQ(reader.entries().size(), 2U) << "weight and bias";
  }
}

TEST(RunCheckpoints, ComeByTime) {
  const TempDir directory;
  TrainConfig config = config_in(directory.path() / "run");
  config.checkpoint.every_s = 1e-9;
  const auto probe = std::make_shared<Probe>();
  train(config, probe);
  EXPECT_EQ(probe->saved.size(), 15U) << "each step takes longer";
  config.run_dir = (directory.path() / "seldom").string();
  config.checkpoint.every_s = 1e6;
  const auto seldom = std::make_shared<Probe>();
  train(config, seldom);
  EXPECT_THAT(seldom->saved, ElementsAre(15)) << "the end";
}

TEST(RunCheckpoints, KeepTheBestBesidesTheLast) {
  const TempDir directory;
  TrainConfig config = config_in(directory.path() / "run");
  config.max_epochs = 10;
  config.checkpoint.every_epochs = 1;
  config.checkpoint.monitor = "val_loss";
  config.checkpoint.mode = MonitorMode::max;  // so that the best are not the last
  config.checkpoint.keep_best = 2;
  config.checkpoint.name = "epoch{epoch}-{val_loss:.3f}";
  std::vector<std::pair<double, std::int64_t>> losses;
  train(config, std::make_shared<Probe>(0U | Stage::validation_end, [&](const StageContext& context) {
          losses.emplace_back(context.metrics->front().second, context.state.step);
        }));
  ASSERT_EQ(losses.size(), 10U);
  std::sort(losses.begin(), losses.end(), std::greater<>());
  const std::int64_t best = losses[0].second;
  ASSERT_LT(best, 45);
  const std::set<std::int64_t> kept{best, losses[1].second, 45, 50};
  EXPECT_EQ(steps_in(config.run_dir), kept);
  const auto checkpoints = std::filesystem::path(config.run_dir) / "checkpoints";
  EXPECT_EQ(std::filesystem::read_symlink(checkpoints / "best").string(), fmt::format("step-{:010}", best));
  EXPECT_EQ(std::filesystem::read_symlink(checkpoints / "last").string(), "step-0000000050");
  EXPECT_EQ(
      std::filesystem::read_symlink(checkpoints / fmt::format("epoch{}-{:.3f}", best / 5, losses[0].first)).string(),
      fmt::format("step-{:010}", best));
  std::size_t named = 0;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints)) {
    named += entry.path().filename().string().starts_with("epoch") ? 1U : 0U;
  }
  EXPECT_EQ(named, kept.size()) << "links go with what they name";

  // Going on from the best leaves the later ones, renamed.
  config.resume = "best";
  config.max_epochs = best / 5 + 1;
  EXPECT_EQ(train(config).state.step, best + 5);
  EXPECT_EQ(*steps_in(config.run_dir).rbegin(), best + 5);
  int abandoned = 0;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoints)) {
    abandoned += entry.path().filename().string().find(".abandoned.") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(abandoned, std::distance(kept.upper_bound(best), kept.end()));
}

// Saves fall on other steps than reports; the loss falls, so that the highest is the first saved.
TEST(RunCheckpoints, KeepTheBestOfATrainingMetricWhenSavesFallBetweenReports) {
  const TempDir directory;
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    const auto run = directory.path() / std::to_string(ranks);
    std::mutex mutex;
    std::map<std::string, std::vector<double>> reported;
    thread_world(ranks, [&](World& world) {
      TrainConfig config = config_in(run);
      config.nprocs = ranks;
      config.report.every_steps = 5;
      config.checkpoint.every_steps = 2;
      config.checkpoint.mode = MonitorMode::max;
      for (const char* monitor : {"loss", ""}) {  // the same reports with and without a best
        config.checkpoint.monitor = monitor;
        config.run_dir = (run / (*monitor == '\0' ? "without" : "with")).string();
        const Plan plan = resolve(config, {.cores = 4}, std::nullopt);
        TinyTask task;
        DataLoader data(tiny_data(20), plan.loader, world);
        Trainer trainer(plan, world);
        trainer.add(std::make_shared<Probe>(0U | Stage::report, [&](const StageContext& context) {
          const std::lock_guard lock(mutex);
          if (context.world.is_main()) {
            reported[monitor].push_back(context.metrics->front().second);
          }
        }));
        trainer.fit(task, data);
      }
    });
    EXPECT_EQ(steps_in(run / "with"), (std::set<std::int64_t>{2, 14, 15}));
    EXPECT_EQ(std::filesystem::read_symlink(run / "with" / "checkpoints" / "best"), "step-0000000002");
    EXPECT_EQ(reported["loss"].size(), 3U);
    EXPECT_EQ(reported["loss"], reported[""]) << "a save does not begin a new mean";
  }
}

TEST(RunCheckpoints, HaveALinkToTheLastAlsoAfterAResumeFromTheBest) {
  const TempDir directory;
  TrainConfig config = config_in(directory.path() / "run");
  config.checkpoint.every_epochs = 1;
  config.checkpoint.keep_all = true;
  config.checkpoint.monitor = "score";
  config.checkpoint.mode = MonitorMode::max;
  std::string last;
  const auto act = [&](const StageContext& context) {
    if (context.stage == Stage::epoch_end) {
      context.log("score", -static_cast<double>(context.state.step));  // the first one is the best
    } else if (config.resume == "best") {
      last = std::filesystem::read_symlink(std::filesystem::path(config.run_dir) / "checkpoints" / "last").string();
    }
  };
  const std::uint32_t stages = 0U | Stage::epoch_end | Stage::fit_start;
  train(config, std::make_shared<Probe>(stages, act));
  config.resume = "best";
  train(config, std::make_shared<Probe>(stages, act));
  EXPECT_EQ(last, "step-0000000005");
}

// With drop_last, an epoch of 20 samples has five steps of 4, but only two of 8.
TEST(RunCheckpoints, OfAnEpochThatIsOverWithAnotherGlobalBatchAreValidated) {
  const TempDir directory;
  const auto run = [&](std::int64_t batch, std::int64_t epochs, std::int64_t steps) {
    TrainConfig config = config_in(directory.path() / "run");
    config.batch_size = config.global_batch_size = batch;
    config.max_epochs = epochs;
    config.max_steps = steps;
    config.sampler.drop_last = true;
    std::vector<std::int64_t> validations;
    const FitResult result =
        train(config, std::make_shared<Probe>(0U | Stage::validation_end, [&](const StageContext& context) {
                validations.push_back(context.state.step);
              }));
    return std::pair{validations, result};
  };
  EXPECT_THAT(run(4, 0, 4).first, ElementsAre()) << "16 of 20 samples";
  const auto [validations, result] = run(8, 1, 0);
  EXPECT_THAT(validations, ElementsAre(4));
  EXPECT_NE(std::ranges::find(result.metrics, std::string("val_loss"), &Metrics::value_type::first),
            result.metrics.end());
  EXPECT_THAT(run(8, 1, 0).first, ElementsAre()) << "it is done once";
}

// 18 of 20 samples are used with a global batch of 6: after 8 come 6 more, and the 4 that are left are no step.
TEST(RunCheckpoints, WithDropLastCountTheStepsThatAnotherGlobalBatchLeaves) {
  const TempDir directory;
  const auto rates = [&](const std::string& run, std::int64_t batch, std::int64_t steps, std::int64_t epoch = 0) {
    TrainConfig config = config_in(directory.path() / run);
    config.data.steps_per_epoch = epoch;
    config.batch_size = config.global_batch_size = batch;
    config.max_epochs = 1;
    config.max_steps = steps;
    config.sampler.drop_last = true;
    config.optim.schedule = "linear";
    std::vector<double> found;
    train(config, std::make_shared<Probe>(0U | Stage::step_end,
                                          [&](const StageContext& context) { found.push_back(context.step.lr); }));
    return found;
  };
  const std::vector<double> straight = rates("straight", 6, 0);
  ASSERT_EQ(straight.size(), 3U);
  rates("resumed", 4, 2);
  const std::vector<double> resumed = rates("resumed", 6, 0);
  ASSERT_EQ(resumed.size(), 1U);
  EXPECT_DOUBLE_EQ(resumed.front(), straight.back());

  // If the epoch ends before the pass, no part of a step is lost: 2 steps follow on 4 samples.
  rates("part", 4, 1, /*epoch=*/2);
  const std::vector<double> part = rates("part", 6, 0, /*epoch=*/2);
  ASSERT_EQ(part.size(), 2U);
  EXPECT_GT(part.back(), 0);
}

TEST(RunCheckpoints, InAnEpochOfSeveralPassesKeepDropLast) {
  const TempDir directory;
  for (const std::int64_t steps_per_epoch : {0, 10}) {
    TrainConfig config = config_in(directory.path() / std::to_string(steps_per_epoch));
    config.batch_size = config.global_batch_size = 8;
    config.data.steps_per_epoch = steps_per_epoch;
    config.max_steps = 2 + steps_per_epoch / 2;
    train(config);
    config.max_steps = 100;
    config.sampler.drop_last = true;
    if (steps_per_epoch == 0) {
      EXPECT_NO_THROW(train(config));
      continue;
    }
    EXPECT_THAT([&] { train(config); }, ThrowsMessage<CheckpointError>(HasSubstr(
                                            "--sampler.drop_last is true now, false when the checkpoint was written")));
    config.sampler.drop_last = false;
    EXPECT_NO_THROW(train(config)) << "the control";
  }
}

void damage_manifest(const std::filesystem::path& run, std::int64_t step) {
  std::ofstream(run / "checkpoints" / fmt::format("step-{:010}", step) / "MANIFEST.json", std::ios::app) << "x";
}

TEST(RunCheckpoints, ThatAreDamagedArePassedOverWithAnEventAndStay) {
  const TempDir directory;
  TrainConfig config = config_in(directory.path() / "run");
  config.checkpoint.every_steps = 5;
  train(config);
  damage_manifest(config.run_dir, 15);
  config.max_epochs = 6;
  CapturedStderr captured;
  EXPECT_EQ(train(config).state.step, 30);
  EXPECT_THAT(captured.text(),
              AllOf(HasSubstr("step-0000000015/MANIFEST.json: its checksum"), HasSubstr("resuming from step 10 in "),
                    HasSubstr(" (at the beginning of epoch 3, ")));
  EXPECT_THAT(read_text(std::filesystem::path(config.run_dir) / "events.jsonl"),
              HasSubstr(R"("event":"damaged","what":"step-0000000015/MANIFEST.json: its checksum)"));
  EXPECT_EQ(steps_in(config.run_dir), (std::set<std::int64_t>{25, 30}));
  int kept = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(config.run_dir) / "checkpoints")) {
    kept += entry.path().filename().string().starts_with("step-0000000015.abandoned.") ? 1 : 0;
  }
  EXPECT_EQ(kept, 1);
}

TEST(RunCheckpoints, ThatAreAllDamagedEndTheNextStart) {
  const TempDir directory;
  TrainConfig config = config_in(directory.path() / "run");
  config.checkpoint.every_steps = 10;
  train(config);
  for (const std::int64_t step : {10, 15}) {
    damage_manifest(config.run_dir, step);
  }
  config.max_epochs = 6;
  for (const char* resume : {"auto", "last"}) {
    config.resume = resume;
    const auto error = error_of<CheckpointError>([&] { train(config); });
    EXPECT_EQ(error.exit_code(), ExitCode::bad_data);
    EXPECT_THAT(error.what(),
                AllOf(testing::StartsWith("no checkpoint in "),
                      testing::EndsWith("run/checkpoints can be read: step-0000000015, step-0000000010")));
    EXPECT_THAT(error.hint(), AllOf(HasSubstr("lockstep verify "), HasSubstr("--fresh starts over")));
    EXPECT_EQ(steps_in(config.run_dir), (std::set<std::int64_t>{10, 15})) << "nothing is touched";
  }
}

/// A copy of the run's newest checkpoint in `to`, changed.
void copy_newest(const std::filesystem::path& from, const std::filesystem::path& to,
                 const std::function<void(CheckpointContents&)>& change) {
  World world = World::single(c10::Device("cpu"));
  CheckpointContents contents = load_checkpoint(from, world);
  change(contents);
  CheckpointStore(to / "checkpoints", CheckpointConfig{}, world).save(std::stoll(contents.values["step"]), contents);
}

TEST(RunCheckpoints, ThatDoNotExistAreNamedWithTheFlag) {
  const TempDir directory;
  TrainConfig config = config_in(directory.path() / "run");
  config.resume = (directory.path() / "missing").string();
  EXPECT_THAT([&] { train(config); }, ThrowsMessage<CheckpointError>(testing::StartsWith(
                                          "--resume: " + config.resume + ": No such file or directory")));
}

TEST(RunCheckpoints, AreNoFilesOfWeights) {
  const TempDir directory;
  TrainConfig config = config_in(directory.path() / "run");
  config.resume = (directory.path() / "weights.pt").string();
  std::ofstream(config.resume) << "weights";
  const auto error = error_of<CheckpointError>([&] { train(config); });
  EXPECT_EQ(error.what(), "--resume: " + config.resume + ": it is a file, expected a checkpoint or a run directory");
  EXPECT_THAT(error.hint(), HasSubstr("--init_weights begins a training with them"));
}

TEST(RunCheckpoints, OfAnotherKindOfDeviceGoOnWithNewRandomNumbers) {
  const TempDir directory;
  TrainConfig config = config_in(directory.path() / "cpu");
  train(config);
  copy_newest(config.run_dir, directory.path() / "gpu", [](CheckpointContents& contents) {
    contents.per_rank = at::cat({contents.per_rank, at::zeros({16}, at::kByte)});  // a GPU's generator has 16 bytes
  });
  config.resume = (directory.path() / "gpu").string();
  config.run_dir = (directory.path() / "run").string();
  config.max_epochs = 4;
  CapturedStderr captured;
  EXPECT_EQ(train(config).state.step, 20);
  EXPECT_THAT(captured.text(),
              HasSubstr("saved on another kind of device than cpu: the random generators get new seeds"));
}

TEST(RunCheckpoints, ThatDoNotFitChangeNothing) {
  const TempDir directory;
  TrainConfig config = config_in(directory.path() / "run");
  train(config);
  const std::pair<const char*, std::function<void(CheckpointContents&)>> misfits[] = {
      {"position", [](CheckpointContents& s) { s.values["position.consumed"] = "-1"; }},
      {"model", [](CheckpointContents& s) { s.tensors["model"].pop_back(); }},
      {"optimizer", [](CheckpointContents& s) { s.tensors["optimizer"].front().second = at::zeros({7}); }},
      {"step", [](CheckpointContents& s) { s.values["samples"] = "many"; }}};
  for (const auto& [name, misfit] : misfits) {
    SCOPED_TRACE(name);
    const auto other = directory.path() / name;
    copy_newest(config.run_dir, other, misfit);
    TrainConfig again = config;
    again.resume = other.string();
    again.run_dir = (directory.path() / "again" / name).string();
    Session session = Session::single(again);
    TinyTask task(sgd({.lr = 0.05, .momentum = 0.9}));
    const auto before = module_tensors(TinyTask().module());
    DataLoader data(tiny_data(20), session.plan.loader, session.world);
    EXPECT_THROW(Trainer(session).fit(task, data), CheckpointError);
    EXPECT_EQ(data.position().epoch, 0);
    const auto after = module_tensors(task.module());
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(at::equal(before[i].second, after[i].second)) << before[i].first;
    }
  }
}

TEST(RunCheckpoints, RefuseAMetricThatNobodyMeasures) {
  const TempDir directory;
  TrainConfig config = config_in(directory.path() / "run");
  config.checkpoint.monitor = "val_los";
  EXPECT_THAT([&] { train(config); },
              ThrowsMessage<ConfigError>(HasSubstr("--checkpoint.monitor val_los: found no such metric")));
  EXPECT_EQ(steps_in(config.run_dir), (std::set<std::int64_t>{5})) << "what was trained is saved";
  config = config_in(directory.path() / "other");
  config.checkpoint.monitor = "val/loss";
  config.report.every_steps = 2;
  CapturedStderr captured;
  EXPECT_THAT([&] { train(config); },
              ThrowsMessage<ConfigError>(HasSubstr("--checkpoint.monitor val/loss: found no such metric")));
  EXPECT_THAT(captured.text(), Not(HasSubstr("has no value of it")));
}

// The directory of checkpoints is a file meanwhile: every save fails.
class Blockade {
 public:
  explicit Blockade(std::filesystem::path run) : directory_(run / "checkpoints"), aside_(run / "aside") {
    std::filesystem::rename(directory_, aside_);
    std::ofstream(directory_) << "a file";
  }
  ~Blockade() {
    std::filesystem::remove(directory_);
    std::filesystem::rename(aside_, directory_);
  }
  Blockade(const Blockade&) = delete;
  Blockade& operator=(const Blockade&) = delete;

 private:
  std::filesystem::path directory_;
  std::filesystem::path aside_;
};

class FailingSaves : public testing::TestWithParam<bool> {
 protected:
  FailingSaves() {
    config_.checkpoint.every_steps = 2;
    config_.checkpoint.async = GetParam();
  }
  /// Saves fail from step `first` on, until `last` is done. Those before are durable by then.
  std::shared_ptr<Probe> blocked(std::int64_t first, std::int64_t last) {
    return std::make_shared<Probe>(0U | Stage::step_end, [this, first, last](const StageContext& context) {
      if (context.state.step == first) {
        const auto link = std::filesystem::path(config_.run_dir) / "checkpoints" / "last";  // made after the commit
        std::error_code none_yet;
        while (std::filesystem::read_symlink(link, none_yet) != fmt::format("step-{:010}", first - 1)) {
          std::this_thread::yield();
        }
        blockade_ = std::make_unique<Blockade>(config_.run_dir);
      } else if (context.state.step == last) {
        blockade_.reset();
      }
      steps_ = context.state.step;
    });
  }

  TempDir directory_;
  TrainConfig config_ = config_in(directory_.path() / "run");
  std::unique_ptr<Blockade> blockade_;
  std::int64_t steps_ = 0;
};

TEST_P(FailingSaves, AreBorneForAWhile) {
  CapturedStderr captured;
  EXPECT_NO_THROW(train(config_, blocked(5, 9)));  // 6 and 8 fail, 10 does not
  EXPECT_THAT(captured.text(), HasSubstr("step 4 is safe; save failure 1 in a row, the run stops at 3"));
  EXPECT_EQ(steps_in(config_.run_dir), (std::set<std::int64_t>{14, 15}));
}

TEST_P(FailingSaves, StopTheRunAtTheThirdInARow) {
  EXPECT_THROW(train(config_, blocked(5, 99)), IoError);  // 6, 8 and 10
  EXPECT_GE(steps_, 10);
  EXPECT_LE(steps_, 12) << "in the background: at the next save at the latest";
  blockade_.reset();
  EXPECT_EQ(*steps_in(config_.run_dir).rbegin(), 4);
}

TEST_P(FailingSaves, StopTheRunAtOnceIfToldSo) {
  config_.checkpoint.on_error = SaveErrorPolicy::stop;
  EXPECT_THROW(train(config_, blocked(5, 99)), IoError);
  EXPECT_GE(steps_, 6);
  EXPECT_LE(steps_, 8);
  blockade_.reset();
}

TEST_P(FailingSaves, AtTheEndAreNotBorne) { EXPECT_THROW(train(config_, blocked(15, 99)), IoError); }

INSTANTIATE_TEST_SUITE_P(Ways, FailingSaves, testing::Bool(),
                         [](const auto& test) { return test.param ? "in_the_background" : "in_the_foreground"; });

/// Fails on this rank in the last of the four batches of the second validation.
class FailingValidation final : public TinyTask {
 public:
  explicit FailingValidation(bool fails, bool of_file = false)
      : TinyTask(sgd({.lr = 0.05, .momentum = 0.9})), fails_(fails), of_file_(of_file) {}
  StepOutput validation_step(const Batch& batch) override {
    if (fails_ && ++batches_ == 8) {
      if (of_file_) {
        throw IoError("cannot open reference.safetensors: No such file or directory");
      }
      throw std::runtime_error("a task's trouble");
    }
    return TinyTask::training_step(batch);
  }

 private:
  const bool fails_;
  const bool of_file_;
  int batches_ = 0;
};

class FailingLoad final : public Callback {
 public:
  std::string name() const override { return "failing"; }
  std::uint32_t stages() const override { return 0; }
  void on(const StageContext&) override {}
  NamedTensors save() const override { return {{"state", at::zeros({1})}}; }
  void load(const NamedTensors&) override { throw std::runtime_error("a state that it does not know"); }
};

/// Fails in the first batch of the second epoch.
class EndingData final : public BatchSource {
 public:
  EndingData(std::shared_ptr<const Dataset> data, const LoaderPlan& plan, World& world)
      : loader_(std::move(data), plan, world) {}
  const StepBatches* next() override {
    if (steps_++ == 5) {
      throw DataError("the data are gone");
    }
    return loader_.next();
  }
  void seek(const LoaderPosition& position) override { loader_.seek(position); }
  LoaderPosition position() const override { return loader_.position(); }
  std::optional<std::int64_t> steps_per_epoch() const override { return loader_.steps_per_epoch(); }

 private:
  DataLoader loader_;
  int steps_ = 0;
};

class FailuresBetweenSteps : public testing::TestWithParam<int> {
 protected:
  /// `fails`: asked for each rank.
  void train_on(const std::filesystem::path& run, const std::function<bool(int)>& fails, bool of_file = false) const {
    TrainConfig config = config_in(run);
    config.batch_size = 2;
    thread_world(GetParam(), [&](World& world) {
      const Plan plan = plan_for(world.size(), config);
      FailingValidation task(fails(world.rank()), of_file);
      DataLoader data(tiny_data(20), plan.loader, world);
      DataLoader validation(tiny_data(7 * world.size()), plan.eval_loader, world);
      Trainer(plan, world).fit(task, data, &validation);
    });
  }
  const TempDir directory_;
};

INSTANTIATE_TEST_SUITE_P(Ranks, FailuresBetweenSteps, testing::Values(1, 2, 3));

TEST_P(FailuresBetweenSteps, AreSavedIfAllRanksFail) {
  train_on(directory_.path() / "straight", [](int) { return false; });
  const auto straight = final_state(directory_.path() / "straight");
  for (const bool of_file : {false, true}) {  // an I/O error of the program is no failed save
    const auto run = directory_.path() / (of_file ? "of_file" : "run");
    EXPECT_THROW(train_on(
                     run, [](int) { return true; }, of_file),
                 std::runtime_error);
    EXPECT_EQ(steps_in(run), (std::set<std::int64_t>{10})) << "of a file: " << of_file;
    train_on(run, [](int) { return false; });
    const auto resumed = final_state(run);
    for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {  // threads share a generator
      EXPECT_TRUE(resumed.at(file) == straight.at(file)) << file;
    }
  }
}

TEST_P(FailuresBetweenSteps, WhileAFitPreparesAreNotSaved) {
  const auto run = directory_.path() / "run";
  const auto other = directory_.path() / "other";
  thread_world(GetParam(), [&](World& world) {
    const auto fit = [&](TrainConfig config) {
      config.batch_size = 2;
      const Plan plan = plan_for(world.size(), config);
      FailingValidation task(false);
      DataLoader data(tiny_data(20), plan.loader, world);
      Trainer trainer(plan, world);
      trainer.add(std::make_shared<FailingLoad>());
      trainer.fit(task, data);
    };
    fit(config_in(other));
    TrainConfig config = config_in(run);
    config.resume = other.string();
    EXPECT_THROW(fit(config), std::runtime_error);
  });
  EXPECT_TRUE(steps_in(run).empty());
}

TEST_P(FailuresBetweenSteps, AfterACallbackAtTheStartOfAnEpochAreNotSaved) {
  for (const bool acts : {false, true}) {
    const auto run = directory_.path() / (acts ? "acts" : "run");
    thread_world(GetParam(), [&](World& world) {
      TrainConfig config = config_in(run);
      config.batch_size = 2;
      const Plan plan = plan_for(world.size(), config);
      FailingValidation task(false);
      EndingData data(tiny_data(20), plan.loader, world);
      Trainer trainer(plan, world);
      trainer.on(acts ? Stage::epoch_start : Stage::fit_start, [](const StageContext&) {});
      EXPECT_THROW(trainer.fit(task, data), DataError);
    });
    EXPECT_EQ(steps_in(run), acts ? std::set<std::int64_t>() : std::set<std::int64_t>{5})
        << "what the callback did would be done again";
  }
}

using FailuresOfSomeRanks = FailuresBetweenSteps;
INSTANTIATE_TEST_SUITE_P(Ranks, FailuresOfSomeRanks, testing::Values(2, 3));

TEST_P(FailuresOfSomeRanks, AreNotSaved) {
  const auto run = directory_.path() / "run";
  EXPECT_THROW(train_on(run, [](int rank) { return rank != 0; }), std::exception);
  EXPECT_TRUE(steps_in(run).empty());
}

bool same_bytes(const std::filesystem::path& a, const std::filesystem::path& b) {
  return read_file(real_file_system(), a) == read_file(real_file_system(), b);
}

// As lockstep-convert makes them.
TEST(RunCheckpoints, OfOtherProgramsGiveWeightsAndEpochs) {
  const TempDir directory;
  TinyTask trained;
  {
    const at::NoGradGuard no_grad;
    trained.module().parameters()[0].fill_(0.5);
    World world = World::single(c10::Device("cpu"));
    CheckpointStore(directory.path() / "foreign" / "checkpoints", CheckpointConfig{}, world)
        .save(10, {.tensors = {{"model", module_tensors(trained.module())}}, .values = {{"epoch", "2"}}});
  }
  TrainConfig config = config_in(directory.path() / "run");
  config.resume = (directory.path() / "foreign").string();
  EXPECT_THAT([&] { train(config); },
              ThrowsMessage<CheckpointError>(HasSubstr("holds no optimizer and no position in the data")));
  config.checkpoint.allow_partial = true;
  at::Tensor first_weight;
  const FitResult result =
      train(config, std::make_shared<Probe>(0U | Stage::fit_start, [&](const StageContext& context) {
              first_weight = context.module.parameters()[0].detach().clone();
            }));
  EXPECT_EQ(result.state.epoch, 3);
  EXPECT_EQ(result.state.step, 15) << "one epoch of five steps";
  EXPECT_TRUE(at::equal(first_weight, at::full_like(first_weight, 0.5)));
}

/// A body and a head with `outputs` of them.
class TwoParts final : public Task {
 public:
  explicit TwoParts(std::int64_t outputs) : head_(3, outputs) {
    net_->register_module("body", body_);
    net_->register_module("head", head_);
  }
  torch::nn::Module& module() override { return *net_; }
  std::vector<OptimizerSpec> optimizers() override { return {adamw({.lr = 0.1})}; }
  StepOutput training_step(const Batch& batch) override {
    return at::mse_loss(head_(body_(batch.input)).mean(1, /*keepdim=*/true), batch.target);
  }
  at::Tensor body() const { return body_->weight.detach().clone(); }

 private:
  std::shared_ptr<torch::nn::Module> net_ = std::make_shared<torch::nn::Module>();
  torch::nn::Linear body_{4, 3};
  torch::nn::Linear head_;
};

TEST(RunCheckpoints, BeginTheTrainingOfAnotherHead) {
  const TempDir directory;
  const auto train_parts = [&](const TrainConfig& config, TwoParts& task, at::Tensor* at_start = nullptr) {
    Session session = Session::single(config);
    DataLoader data(tiny_data(20), session.plan.loader, session.world);
    Trainer trainer(session);
    trainer.on(Stage::fit_start, [&](const StageContext&) {
      if (at_start != nullptr) {
        *at_start = task.body();
      }
    });
    return trainer.fit(task, data);
  };
  const TrainConfig first = config_in(directory.path() / "first");
  TwoParts one(1);
  train_parts(first, one);
  TrainConfig second = config_in(directory.path() / "second");
  second.resume = first.run_dir;
  second.max_epochs = 5;
  TwoParts two(2);
  EXPECT_THROW(train_parts(second, two), CheckpointError);
  second.checkpoint.allow_partial = true;
  at::Tensor body;
  EXPECT_EQ(train_parts(second, two, &body).state.epoch, 5);
  EXPECT_TRUE(at::equal(body, one.body()));
}

TEST(RunCheckpoints, WithAMonitorNeedNotHaveItInEveryReport) {
  const TempDir directory;
  TrainConfig config = config_in(directory.path() / "run");
  config.report.every_steps = 2;
  config.checkpoint.monitor = "score";
  const auto log = [](const StageContext& context) { context.log("score", 1); };
  EXPECT_EQ(train(config, std::make_shared<Probe>(0U | Stage::epoch_end, log)).state.step, 15);
  config.run_dir = (directory.path() / "never").string();
  EXPECT_THROW(train(config, std::make_shared<Probe>(0U | Stage::epoch_end)), ConfigError);
}

TEST(WeightsOnly, AreSmallerAndCannotBeResumed) {
  const TempDir directory;
  const auto newest = [](const TrainConfig& config) {
    return std::filesystem::path(config.run_dir) / "checkpoints" / "step-0000000015";
  };
  TrainConfig full = config_in(directory.path() / "full");
  train(full);
  TrainConfig config = config_in(directory.path() / "run");
  config.checkpoint.weights_only = true;
  config.checkpoint.every_steps = 4;
  const FitResult trained = train(config);
  EXPECT_EQ(trained.state.step, 15);
  EXPECT_TRUE(std::filesystem::exists(newest(full) / "optimizer.safetensors")) << "the control";
  EXPECT_FALSE(std::filesystem::exists(newest(config) / "optimizer.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(newest(config) / "rng-0.bin"));
  EXPECT_TRUE(same_bytes(newest(config) / "model.safetensors", newest(full) / "model.safetensors"));
  for (const bool partial : {false, true}) {  // a finished run has nothing to resume
    config.checkpoint.allow_partial = partial;
    const FitResult again = train(config);
    EXPECT_THAT(again.why, HasSubstr("nothing to do: this run is finished (step 15, epoch 3)"));
    EXPECT_THAT(again.why, Not(HasSubstr("larger --max_epochs"))) << "it cannot be continued";
    EXPECT_EQ(again.state.samples, trained.state.samples);
  }
  config.max_epochs = 4;
  for (const bool partial : {false, true}) {
    for (const char* resume : {"auto", "last"}) {
      config.checkpoint.allow_partial = partial;
      config.resume = resume;
      EXPECT_THAT([&] { train(config); },
                  ThrowsMessage<CheckpointError>(AllOf(HasSubstr("step 15 in"), HasSubstr("holds only weights"),
                                                       HasSubstr("this run cannot be resumed"))));
    }
  }
  // Another run begins with these weights, if it asks for that.
  TrainConfig next = config_in(directory.path() / "next");
  next.max_epochs = 4;
  next.resume = newest(config).string();
  EXPECT_THAT([&] { train(next); }, ThrowsMessage<CheckpointError>(HasSubstr("the checkpoint holds only weights")));
  next.checkpoint.allow_partial = true;
  EXPECT_EQ(train(next).state.step, 20);
}

TEST(WeightsOnly, AreLoadedIfTheFinishedRunIsStartedAgain) {
  const TempDir directory;
  TrainConfig config = config_in(directory.path() / "run");
  config.checkpoint.weights_only = true;
  std::vector<std::vector<at::Tensor>> weights;
  std::vector<NamedTensors> averages;
  for (int start = 0; start < 2; ++start) {
    World world = World::single(c10::kCPU);
    const Plan plan = plan_for(1, config);
    TinyTask task(adamw({.lr = 0.05}));
    DataLoader data(tiny_data(20), plan.loader, world);
    const auto average = std::make_shared<WeightAverage>(WeightAverageOptions{.decay = 0.9});
    Trainer trainer(plan, world);
    trainer.add(average);
    trainer.fit(task, data);
    weights.push_back(weights_of(task));
    averages.push_back(copies(average->average()));
  }
  EXPECT_TRUE(are_equal(weights.front(), weights.back()));
  ASSERT_FALSE(averages.front().empty());
  EXPECT_TRUE(are_equal(averages.front(), averages.back()));
}

TEST(WeightsOnly, KnowThatTheTrainingTimeIsOver) {
  const TempDir directory;
  TrainConfig config = config_in(directory.path() / "run");
  config.max_epochs = 0;
  config.max_time_s = 0.05;
  config.checkpoint.weights_only = true;
  const FitResult first = train(config);
  EXPECT_EQ(first.stop, StopKind::program);
  const FitResult again = train(config);
  EXPECT_EQ(again.state.step, first.state.step) << "no time is left";
  EXPECT_THAT(again.why, HasSubstr("is over"));
  config.max_time_s = 1e6;
  EXPECT_THAT([&] { train(config); }, ThrowsMessage<CheckpointError>(HasSubstr("holds only weights"))) << "the control";
}

TEST(WeightsOnly, OfShardedOptimizersAreTheSame) {
  const TempDir directory;
  const auto run = [&](const char* name, bool shard) {
    TrainConfig config = config_in(directory.path() / name);
    config.checkpoint.weights_only = true;
    config.dist.shard_optimizer = shard;
    const Plan plan = plan_for(2, config);
    thread_world(2, [&](World& world) {
      TinyTask task(adamw({.lr = 0.05}));
      DataLoader data(tiny_data(20), plan.loader, world);
      Trainer(plan, world).fit(task, data);
    });
    return directory.path() / name / "checkpoints" / "step-0000000015";
  };
  const auto sharded = run("sharded", true);
  EXPECT_TRUE(same_bytes(sharded / "model.safetensors", run("whole", false) / "model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(sharded / "optimizer.safetensors"));
}

TEST(RunCheckpoints, NeverHoldRanksThatDiverged) {
  const TempDir directory;
  for (const int odd : {0, 1, 2}) {
    const auto run = directory.path() / std::to_string(odd);
    const auto meddling = [&] {
      thread_world(3, [&](World& world) {
        TrainConfig config = config_in(run);
        config.checkpoint.every_steps = 2;
        const Plan plan = plan_for(3, config);
        TinyTask task;
        DataLoader data(tiny_data(20), plan.loader, world);
        Trainer trainer(plan, world);
        trainer.add(std::make_shared<Probe>(0U | Stage::step_end, [&](const StageContext& context) {
          if (context.state.step == 3 && context.world.rank() == odd) {
            const at::NoGradGuard no_grad;
            auto bits = context.module.named_parameters()["bias"].view(at::kInt);
            bits.bitwise_xor_(1);  // the last bit of the mantissa
          }
        }));
        trainer.fit(task, data);
      });
    };
    EXPECT_THAT(meddling, ThrowsMessage<CommError>(
                              AllOf(HasSubstr("the replicas have diverged: rank " + std::to_string(odd) + " has bias"),
                                    HasSubstr("2 of 3 ranks have"))));
    EXPECT_EQ(steps_in(run), (std::set<std::int64_t>{2}));
  }
}

TEST(RunCheckpoints, AreAllKeptOnRequest) {
  const TempDir directory;
  TrainConfig config = config_in(directory.path() / "run");
  config.checkpoint.every_steps = 4;
  config.checkpoint.keep_all = true;
  train(config, std::make_shared<Probe>());
  EXPECT_EQ(steps_in(config.run_dir), (std::set<std::int64_t>{4, 8, 12, 15}));
}

TEST(CheckReplicas, FindsAnOptimizerThatDivergedAtAReport) {
  const auto train_on = [](int odd, bool checks) {
    thread_world(3, [&](World& world) {
      TrainConfig config = in_memory({.max_epochs = 4, .batch_size = 4});
      config.report.every_steps = 2;
      config.dist.check_replicas = checks;
      const Plan plan = plan_for(3, config);
      TinyTask task(adamw({.lr = 0.1}));
      DataLoader data(tiny_data(20), plan.loader, world);
      Trainer trainer(plan, world);
      trainer.add(std::make_shared<Probe>(0U | Stage::report, [&](const StageContext& context) {
        if (context.state.step == 2 && context.world.rank() == odd) {
          const at::NoGradGuard no_grad;
          for (auto& [name, tensor] : context.strategy->optimizer_state()) {
            if (name == "bias.exp_avg") {
              tensor.view(at::kInt).bitwise_xor_(1);
            }
          }
        }
      }));
      trainer.fit(task, data);
    });
  };
  EXPECT_NO_THROW(train_on(-1, true));
  EXPECT_NO_THROW(train_on(1, false));
  for (const int odd : {0, 1, 2}) {
    EXPECT_THAT([&] { train_on(odd, true); },
                ThrowsMessage<CommError>(
                    HasSubstr("the replicas have diverged: rank " + std::to_string(odd) + " has bias.exp_avg")));
  }
}

struct BufferNetImpl : torch::nn::Module {
  BufferNetImpl()
      : linear(register_module("linear", torch::nn::Linear(4, 1))),
        own(register_module("own", torch::nn::BatchNorm1d(4))),
        shared(register_module("shared", SyncBatchNorm(4))),
        mask(register_buffer("mask", at::ones({4}, at::kBool))) {}
  at::Tensor forward(const at::Tensor& x) { return linear(shared(own(x)) * mask); }

  torch::nn::Linear linear;
  torch::nn::BatchNorm1d own;
  SyncBatchNorm shared;
  at::Tensor mask;
};

class BufferTask final : public Task {
 public:
  torch::nn::Module& module() override { return *net_; }
  std::vector<OptimizerSpec> optimizers() override { return {sgd({.lr = 0.01})}; }
  StepOutput training_step(const Batch& batch) override {
    return at::mse_loss(net_->forward(batch.input), batch.target);
  }

 private:
  std::shared_ptr<BufferNetImpl> net_ = std::make_shared<BufferNetImpl>();
};

// Rank 0's buffers reach all ranks, or each rank has its own: then all but the statistics of its samples must be equal.
TEST(CheckReplicas, ComparesBuffersThatNoRankSends) {
  const auto train_with = [](const std::string& changed, bool broadcasts) {
    thread_world(2, [&](World& world) {
      TrainConfig config = in_memory({.max_epochs = 3, .batch_size = 4});
      config.report.every_steps = 2;
      config.dist.check_replicas = true;
      config.dist.broadcast_buffers = broadcasts;
      const Plan plan = plan_for(2, config);
      BufferTask task;
      DataLoader data(tiny_data(16), plan.loader, world);
      Trainer trainer(plan, world);
      trainer.on(Stage::step_end, [&](const StageContext& context) {
        if (context.state.step == 3 && context.world.rank() == 1 && !changed.empty()) {
          const at::NoGradGuard no_grad;
          at::Tensor buffer = context.module.named_buffers()[changed];
          buffer.copy_(at::zeros_like(buffer));
        }
      });
      trainer.fit(task, data);
    });
  };
  EXPECT_NO_THROW(train_with("", false)) << "the statistics of own.* differ";
  EXPECT_NO_THROW(train_with("own.running_var", false));
  for (const std::string name : {"mask", "shared.running_var", "shared.num_batches_tracked"}) {
    EXPECT_THAT([&] { train_with(name, false); },
                ThrowsMessage<CommError>(HasSubstr("the replicas have diverged: rank 1 has " + name)));
    EXPECT_NO_THROW(train_with(name, true)) << name;
  }
}

TEST(CheckReplicas, NamesTheFirstOfTheRecordedSteps) {
  const auto train_on = [](std::int64_t when, int odd) {
    const TempDir dir;
    thread_world(3, [&](World& world) {
      TrainConfig config = in_memory({.max_epochs = 4, .batch_size = 4});
      config.run_dir = (dir.path() / "run").string();
      config.report.every_steps = 5;
      config.report.record = 1;
      config.dist.check_replicas = true;
      const Plan plan = plan_for(3, config);
      TinyTask task(adamw({.lr = 0.1}));
      DataLoader data(tiny_data(20), plan.loader, world);
      Trainer trainer(plan, world);
      trainer.on(Stage::step_end, [&](const StageContext& context) {
        if (context.world.rank() == odd && context.state.step == when) {
          const at::NoGradGuard no_grad;
          context.module.parameters().front().add_(1);
        }
      });
      trainer.fit(task, data);
    });
  };
  EXPECT_NO_THROW(train_on(-1, -1));
  for (const int odd : {0, 2}) {  // the record of a step comes before its callbacks
    EXPECT_THAT([&] { train_on(2, odd); },
                ThrowsMessage<CommError>(HasSubstr("the replicas have diverged, first after step 3: rank " +
                                                   std::to_string(odd) + " has weight")));
  }
}

}  // namespace
}  // namespace lockstep
