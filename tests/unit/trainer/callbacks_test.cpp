// Functions as callbacks, their stages, and the metrics that they log.
#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/trainer/callbacks.h>

#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/thread_world.h"
#include "support/tiny_task.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;

struct Fitted {
  FitResult result{};
  std::string error{};
};

/// Two epochs of four steps, a report every 2 steps; `prepare` adds callbacks.
Fitted fit(World& world, const std::function<void(Trainer&)>& prepare, TrainConfig config = in_memory({})) {
  config.max_epochs = 2;
  config.batch_size = std::max(1, 4 / world.size());
  config.report.every_steps = 2;
  const Plan plan = plan_for(world.size(), config);
  TinyTask task;
  DataLoader data(tiny_data(plan.config.global_batch_size * 4), plan.loader, world);
  DataLoader validation(tiny_data(6), plan.eval_loader, world);
  Trainer trainer(plan, world);
  prepare(trainer);
  return {.result = trainer.fit(task, data, &validation)};
}

TEST(On, CallsAFunctionAtItsStages) {
  for (const int ranks : {1, 2, 3}) {
    thread_world(ranks, [](World& world) {
      std::string stages;
      const auto note = [&](const char* letter) {
        return [&stages, letter](const StageContext&) { stages += letter; };
      };
      fit(world, [&](Trainer& trainer) {
        trainer.on(Stage::fit_start, note("F"))
            .on(Stage::epoch_start, note("^"))
            .on(Stage::step_start, note("("))
            .on(Stage::backward_start, note("["))
            .on(Stage::backward_end, note("]"))
            .on(Stage::step_end, note(")"))
            .on(Stage::epoch_end, note("e"))
            .on(Stage::report, note("r"))
            .on(Stage::validation_start, note("<"))
            .on(Stage::validation_end, note(">"))
            .on(Stage::fit_end, note("."));
      });
      EXPECT_EQ(stages, "F^([])([])r([])([])er<>^([])([])r([])([])er<>.");
    });
  }
}

TEST(On, CallsItEverySoManyStepsOrEpochsAndOnConditions) {
  World world = World::single(c10::kCPU);
  std::vector<std::int64_t> third;
  std::vector<std::int64_t> odd;
  int epochs = 0;
  fit(world, [&](Trainer& trainer) {
    trainer.on(Stage::step_end, [&](const StageContext& at) { third.push_back(at.state.step); }, {.every = 3});
    trainer.on(Stage::step_end, [&](const StageContext& at) { odd.push_back(at.state.step); },
               {.when = [](const StageContext& at) { return at.state.step % 2 == 1; }});
    trainer.on(Stage::epoch_end, [&](const StageContext&) { ++epochs; }, {.every = 2});
  });
  EXPECT_THAT(third, ElementsAre(3, 6));
  EXPECT_THAT(odd, ElementsAre(1, 3, 5, 7));
  EXPECT_EQ(epochs, 1);
}

TEST(On, CountsTheStepsOfCheckpointsAlsoOfThoseInTheBackground) {
  World world = World::single(c10::kCPU);
  for (const bool async : {false, true}) {
    const TempDir dir;
    TrainConfig config = in_memory({});
    config.run_dir = (dir.path() / "run").string();
    config.checkpoint = {.enabled = true, .every_epochs = 0, .every_steps = 3, .async = async};
    std::vector<std::int64_t> all;
    std::vector<std::int64_t> sixth;
    fit(
        world,
        [&](Trainer& trainer) {
          trainer.on(Stage::checkpoint_saved, [&](const StageContext& at) {
            all.push_back(at.saved_step);
            const bool in_background = async && at.saved_step < 8;  // the last one is in the foreground
            EXPECT_EQ(at.state.step > at.saved_step, in_background) << at.saved_step;
          });
          trainer.on(Stage::checkpoint_saved, [&](const StageContext& at) { sixth.push_back(at.saved_step); },
                     {.every = 6});
        },
        config);
    EXPECT_THAT(all, ElementsAre(3, 6, 8));
    EXPECT_THAT(sixth, ElementsAre(6));
  }
}

TEST(On, SeesTheBatchAndTheGradientsOfTheGlobalBatch) {
  std::vector<double> norms;
  for (const int ranks : {1, 2, 4}) {
    thread_world(ranks, [&](World& world) {
      double norm = 0;
      std::int64_t samples = 0;
      fit(
          world,
          [&](Trainer& trainer) {
            trainer.on(Stage::step_start, [&](const StageContext& at) { samples += at.batches->local_samples; });
            trainer.on(Stage::backward_end, [&](const StageContext& at) {
              for (const auto& parameter : at.module.parameters()) {
                norm += parameter.grad().norm().item<double>();
              }
            });
          },
          in_memory({.optim = {.max_grad_norm = 1e-3}}));
      EXPECT_EQ(samples, 32 / ranks);
      if (world.is_main()) {
        norms.push_back(norm);
      }
    });
  }
  EXPECT_GT(norms[0], 1) << "before clipping";
  EXPECT_NEAR(norms[1], norms[0], 1e-4 * norms[0]);
  EXPECT_NEAR(norms[2], norms[0], 1e-4 * norms[0]);
}

TEST(On, SeesEachLossBeforeItsBackward) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [](World& world) {
      std::vector<bool> had_gradient;
      fit(
          world,
          [&](Trainer& trainer) {
            trainer.on(Stage::backward_start, [&](const StageContext& at) {
              EXPECT_TRUE(at.output->loss.requires_grad());
              EXPECT_EQ(at.output->samples, 4 / at.world.size());
              EXPECT_NE(at.optimizer, nullptr);
              had_gradient.push_back(at.module.parameters()[0].grad().defined());
            });
          },
          in_memory({.accumulation = 2}));
      ASSERT_EQ(had_gradient.size(), 16);
      for (std::size_t i = 0; i < had_gradient.size(); ++i) {
        EXPECT_EQ(had_gradient[i], i % 2 == 1) << "micro-batch " << i;
      }
    });
  }
}

template <class Stages>
concept CanBeStages = requires(Trainer& trainer, Stages stages) {
  trainer.on(stages, std::function<void(const StageContext&)>());
};
static_assert(CanBeStages<Stage> && CanBeStages<std::uint32_t>);
static_assert(!CanBeStages<bool>, "Stage::step_end || Stage::report would be the stage of bit 0");

TEST(On, RefusesWhatCannotBeCalled) {
  World world = World::single(c10::kCPU);
  Trainer trainer(plan_for(1, in_memory({})), world);
  const auto nothing = [](const StageContext&) {};
  EXPECT_THAT(message_of([&] { trainer.on(Stage::step_end, {}); }), HasSubstr("the function is missing"));
  EXPECT_THAT(message_of([&] { trainer.on(Stage::step_end, nothing, {.every = 0}); }), HasSubstr("every is 0"));
  for (const std::uint32_t stages : {0U, Stage::step_end & Stage::report, Stage::step_end | 1U << 31}) {
    EXPECT_THAT(message_of([&] { trainer.on(stages, nothing); }),
                HasSubstr("stages is " + std::to_string(stages) + ", expected a Stage, or several with |"));
  }
  trainer.on(Stage::step_end, nothing, {.name = "mine"});
  EXPECT_THAT(message_of([&] { trainer.on(Stage::step_end, nothing, {.name = "mine"}); }),
              HasSubstr("two callbacks have the name 'mine'"));
}

TEST(ExceptionStage, GetsTheTextAndDoesNotHideTheFailure) {
  World world = World::single(c10::kCPU);
  std::string seen;
  const auto train = [&](bool fails_too) {
    return message_of([&] {
      fit(world, [&](Trainer& trainer) {
        trainer.on(Stage::step_end, [](const StageContext& at) {
          if (at.state.step == 3) {
            throw Error("the first failure");
          }
        });
        trainer.on(Stage::exception, [&](const StageContext& at) {
          seen = std::string(at.error) + " after step " + std::to_string(at.state.step);
          if (fails_too) {
            throw Error("the second failure");
          }
        });
      });
    });
  };
  EXPECT_THAT(train(false), HasSubstr("the first failure"));
  EXPECT_THAT(seen, AllOf(HasSubstr("the first failure"), HasSubstr("after step 3")));
  EXPECT_THAT(train(true), AllOf(HasSubstr("the first failure"), Not(HasSubstr("the second failure"))));
}

TEST(ExceptionStage, ComesAfterAnExceptionOfAnyType) {
  World world = World::single(c10::kCPU);
  const TempDir dir;
  TrainConfig config = in_memory({});
  config.run_dir = (dir.path() / "run").string();
  config.report.jsonl = true;
  std::string seen;
  const auto train = [&] {
    fit(
        world,
        [&](Trainer& trainer) {
          trainer.on(Stage::step_end, [](const StageContext&) { throw 1; });
          trainer.on(Stage::exception, [&](const StageContext& at) { seen = at.error; });
        },
        config);
  };
  EXPECT_THROW(train(), int);
  EXPECT_EQ(seen, "unknown exception of type int");
  EXPECT_THAT(read_file(real_file_system(), dir.path() / "run" / "events.jsonl"),
              AllOf(HasSubstr(R"("event":"failure")"), HasSubstr(seen)));
}

TEST(Log, AddsMetricsToReportsAndValidations) {
  for (const int ranks : {1, 2}) {
    thread_world(ranks, [](World& world) {
      std::vector<double> steps;
      const Fitted fitted = fit(world, [&](Trainer& trainer) {
        trainer.on(Stage::step_end, [](const StageContext& at) { at.log("last_step", double(at.state.step)); });
        trainer.on(Stage::validation_end, [](const StageContext& at) { at.log("perplexity", 7.5); });
        trainer.on(Stage::report, [&](const StageContext& at) {
          const auto found = std::ranges::find(*at.metrics, "last_step", &Metrics::value_type::first);
          steps.push_back(found == at.metrics->end() ? -1 : found->second);
        });
      });
      EXPECT_THAT(steps, ElementsAre(2, 4, 6, 8));
      EXPECT_THAT(fitted.result.metrics, Contains(Pair("val_perplexity", 7.5)));
    });
  }
}

TEST(Log, IsRefusedAfterTheLastReport) {
  World world = World::single(c10::kCPU);
  const auto logs_at = [&](Stage stage, std::string& refused) {
    return message_of([&] {
      fit(world, [&](Trainer& trainer) {
        trainer.on(Stage::step_end, [stage](const StageContext&) {
          if (stage == Stage::exception) {
            throw Error("the failure");
          }
        });
        trainer.on(stage, [&](const StageContext& at) { refused = message_of([&] { at.log("late", 1); }); });
      });
    });
  };
  std::string refused;
  EXPECT_EQ(logs_at(Stage::fit_end, refused), "no error");
  EXPECT_THAT(refused, HasSubstr("metric late: nothing can be logged at fit_end"));
  EXPECT_THAT(logs_at(Stage::exception, refused), HasSubstr("the failure"));
  EXPECT_THAT(refused, HasSubstr("metric late: nothing can be logged at exception"));
}

// Each metric that is logged could move the others in memory.
TEST(Log, MayBeCalledInALoopOverTheMetricsOfTheStage) {
  World world = World::single(c10::kCPU);
  const std::uint32_t stages = Stage::report | Stage::validation_end;
  std::vector<std::string> seen;
  fit(world, [&](Trainer& trainer) {
    trainer.on(stages, [&](const StageContext& at) {
      const Metrics before = *at.metrics;
      ASSERT_FALSE(before.empty());
      for (const auto& [name, value] : *at.metrics) {
        for (const char* suffix : {"_a", "_b", "_c"}) {
          at.log(name + suffix, value);
        }
      }
      EXPECT_EQ(*at.metrics, before);
    });
    trainer.on(stages, [&](const StageContext& at) {
      for (const char* suffix : {"_a", "_b", "_c"}) {
        const std::string loss = at.stage == Stage::report ? "loss" : "val_loss";
        EXPECT_EQ(metric_of(*at.metrics, loss + suffix), metric_of(*at.metrics, loss));
        seen.push_back(loss);
      }
    });
  });
  EXPECT_THAT(seen, AllOf(Contains("loss"), Contains("val_loss")));
}

// The names in a callback are as good as others for decisions.
TEST(Log, GivesAMonitorForCheckpointsAndOtherCallbacks) {
  const TempDir dir;
  World world = World::single(c10::kCPU);
  TrainConfig config{.compute_setup = ComputeSetup::cpu, .run_dir = dir.path() / "run"};
  config.checkpoint.monitor = "val_score";
  config.checkpoint.mode = MonitorMode::max;
  config.checkpoint.every_steps = 4;
  const auto stopping = std::make_shared<EarlyStopping>(
      EarlyStoppingOptions{.metric = "val_score", .mode = MonitorMode::max, .patience = 1});
  const Fitted fitted = fit(
      world,
      [&](Trainer& trainer) {
        trainer.on(Stage::validation_end,
                   [](const StageContext& at) { at.log("val_score", 12.0 - double(at.state.step)); });
        trainer.add(stopping);
      },
      config);
  ASSERT_TRUE(fitted.result.best);
  EXPECT_EQ(fitted.result.best->step, 4);
  EXPECT_EQ(fitted.result.best->value, 8);
  EXPECT_EQ(stopping->reason(), "val_score did not improve on 8 in 1 measurement");
}

TEST(Log, KeepsAMetricOfANextReportThroughAResume) {
  const TempDir dir;
  World world = World::single(c10::kCPU);
  const auto values = [&](std::int64_t stop, bool logs) {
    std::vector<double> seen;
    fit(world,
        [&](Trainer& trainer) {
          trainer.on(Stage::step_end, [&](const StageContext& at) {
            if (logs && at.state.step == 3) {
              at.log("third", 33);
            }
          });
          trainer.on(Stage::report, [&](const StageContext& at) {
            for (const auto& [name, value] : *at.metrics) {
              if (name == "third" && at.state.step % 2 == 0) {
                seen.push_back(value);
              }
            }
          });
        },
        {.compute_setup = ComputeSetup::cpu, .max_steps = stop, .run_dir = dir.path() / "run"});
    return seen;
  };
  EXPECT_THAT(values(3, true), ElementsAre());
  EXPECT_THAT(values(0, false), ElementsAre(33)) << "of the checkpoint";
}

TEST(Log, NamesARankWithAnotherValue) {
  EXPECT_THAT(message_of([] {
                thread_world(2, [](World& world) {
                  fit(world, [](Trainer& trainer) {
                    trainer.on(Stage::step_end, [](const StageContext& at) { at.log("mine", at.world.rank()); });
                  });
                });
              }),
              HasSubstr("logs other metrics than the others: 'mine "));
}

// A checkpoint could not hold it.
TEST(Log, RefusesANameThatIsNotUtf8) {
  World world = World::single(c10::kCPU);
  EXPECT_THAT(message_of([&] {
                fit(world, [](Trainer& trainer) {
                  trainer.on(Stage::step_end, [](const StageContext& at) { at.log("caf\xe9", 1); });
                });
              }),
              HasSubstr("found the metric name 'caf\xef\xbf\xbd', expected one line of UTF-8 text"));
}

TEST(Log, RefusesNamesThatAReportHas) {
  World world = World::single(c10::kCPU);
  const auto text = [&](Stage stage) {
    return message_of([&] {
      fit(world, [&](Trainer& trainer) { trainer.on(stage, [](const StageContext& at) { at.log("loss", 1); }); });
    });
  };
  EXPECT_THAT(text(Stage::report), HasSubstr("metric loss is logged, but this report has one of that name"));
  EXPECT_THAT(text(Stage::step_end), HasSubstr("two metrics of a report are called 'loss'"));
}

// A row of the training with the name of another row's value. A metric that a step returns is refused in the same
// words.
TEST(Log, RefusesTheNamesOfValidationsAndEpochsInAReport) {
  const auto text = [](World& world, Stage stage, const char* name) {
    return message_of([&] {
      fit(
          world, [&](Trainer& trainer) { trainer.on(stage, [=](const StageContext& at) { at.log(name, 1); }); },
          in_memory({.report = {.epoch_means = true}}));
    });
  };
  for (const int ranks : {1, 2}) {
    for (const Stage stage : {Stage::fit_start, Stage::step_end, Stage::epoch_end, Stage::report}) {
      thread_world(ranks, [&](World& world) {
        ASSERT_THAT(text(world, stage, "val_loss"), HasSubstr("the training reports a metric 'val_loss', but this "
                                                              "prefix is reserved for validation metrics"));
      });
      thread_world(ranks, [&](World& world) {
        ASSERT_THAT(text(world, stage, "epoch_loss"),
                    HasSubstr("the training reports a metric 'epoch_loss', but --report.epoch_means reserves"));
      });
    }
    thread_world(ranks, [&](World& world) {
      ASSERT_EQ(text(world, Stage::validation_end, "val_more"), "no error");
      ASSERT_EQ(text(world, Stage::epoch_report, "epoch_more"), "no error");
    });
  }
}

}  // namespace
}  // namespace lockstep
