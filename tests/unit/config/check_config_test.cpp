#include <filesystem>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/config/config_io.h>

#include "support/temp_dir.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

TEST(CheckConfig, AcceptsTheDefaults) { EXPECT_TRUE(check_config(TrainConfig{}).empty()); }

TEST(CheckConfig, AcceptsUnusualButValidSettings) {
  const TrainConfig configs[] = {
      {.compute_setup = ComputeSetup::cpu, .devices = 4},
      {.compute_setup = ComputeSetup::cpu, .devices = "cpu", .backend = Backend::gloo},
      {.compute_setup = ComputeSetup::gpu, .backend = Backend::gloo},
      {.max_epochs = 0, .max_steps = 10},
      {.max_epochs = 0, .max_time_s = 60},
      {.run_name = "a.b-c_d", .resume = "runs/old/checkpoints/step-10", .fresh = true},
      {.optim = {.schedule = "warmup:10+cosine:until=11,to=1"}},
      {.dist = {.grace_s = 0, .static_graph = true}},
      {.run_dir = "out/a", .report = {.log_dir = "out/a/logs"}},
      {.run_dir = "out/a", .fresh = true, .report = {.log_dir = "out/a-logs"}},
      {.run_dir = "out/a", .fresh = true, .report = {.log_dir = "out"}},
      {.run_name = "a", .fresh = true, .report = {.log_dir = "runs/ab"}},
  };
  for (const TrainConfig& config : configs) {
    for (const Problem& problem : check_config(config)) {
      ADD_FAILURE() << problem.what;
    }
  }
}

TEST(CheckConfig, ReportsProblemsWithHints) {
  struct Case {
    TrainConfig config;
    const char* what;
    const char* hint;
  };
  const Case cases[] = {
      {{.init_weights = "runs/a", .resume = "runs/b"},
       "--init_weights runs/a with --resume runs/b: both say with which weights the run begins",
       "remove one of them"},
      {{.batch_size = -3}, "--batch_size -3: expected a whole number of 0 or more", "samples per rank"},
      {{.data = {.steps_per_epoch = 2'000'000'000}},
       "--data.steps_per_epoch 2000000000: expected a whole number of 1000000000 or less, or a part such as 10%",
       ""},
      {{.data = {.steps_per_epoch = StepCount::percent(0)}},
       "--data.steps_per_epoch 0%: expected a part above 0%, 100% at most",
       "0: once over the data set"},
      {{.validate = {.max_batches = StepCount::percent(std::numeric_limits<double>::quiet_NaN())}},
       "--validate.max_batches nan%: expected a part above 0%, 100% at most",
       ""},
      {{.batch_size = 2'000'000'000}, "--batch_size 2000000000: expected a whole number of 1000000000 or less", ""},
      {{.accumulation = -1}, "--accumulation -1: expected a whole number from 0 to 100000", "micro-batches"},
      {{.global_batch_size = -1}, "--global_batch_size -1: expected a whole number of 0 or more", ""},
      {{.nprocs = -1}, "--nprocs -1: expected a whole number from 0 to 65536", ""},
      {{.max_epochs = -1}, "--max_epochs -1: expected a whole number of 0 or more", ""},
      {{.max_epochs = 0}, "--max_epochs 0 with --max_steps 0: the run would never end", "--max_epochs 1"},
      {{.data = {.workers = 1025}}, "--data.workers 1025: expected a whole number from 0 to 1024", ""},
      {{.data = {.prefetch = -1}}, "--data.prefetch -1: expected a whole number from 0 to 1024", ""},
      {{.optim = {.lr = -0.1}}, "--optim.lr -0.1: expected a number of 0 or more", ""},
      {{.optim = {.lr = std::numeric_limits<double>::quiet_NaN()}},
       "--optim.lr nan: expected a number of 0 or more",
       ""},
      {{.optim = {.max_grad_norm = std::numeric_limits<double>::infinity()}},
       "--optim.max_grad_norm inf: expected",
       ""},
      {{.optim = {.schedule = "cosine:two=1"}}, "--optim.schedule cosine:two=1: unknown setting two", "from, to"},
      {{.checkpoint = {.keep_last = 1}},
       "--checkpoint.keep_last 1: expected a whole number of 2 or more",
       "durable before"},
      {{.dist = {.timeout_s = 0}}, "--dist.timeout_s 0: expected a number above 0", ""},
      {{.dist = {.init_timeout_s = -1}}, "--dist.init_timeout_s -1: expected a number above 0", ""},
      {{.dist = {.heartbeat_timeout_s = 1.5}},
       "--dist.heartbeat_timeout_s 1.5: expected 0, or 2 or more",
       "every second"},
      {{.dist = {.grace_s = -1}}, "--dist.grace_s -1: expected a number of 0 or more", ""},
      {{.dist = {.bucket_mib = 0}}, "--dist.bucket_mib 0: expected a number above 0, 65536 at most", ""},
      {{.dist = {.find_unused_parameters = true, .static_graph = true}},
       "--dist.find_unused_parameters true with --dist.static_graph true: a static graph does not change its unused "
       "parameters",
       "remove one of them"},
      {{.optim = {.max_grad_norm = 1, .max_grad_value = 0.5}},
       "--optim.max_grad_norm 1 with --optim.max_grad_value 0.5: gradients are clipped in one way",
       "remove one of them"},
      {{.plateau = {.metric = "val_loss", .factor = 1}},
       "--plateau.factor 1: expected a number between 0 and 1",
       "multiplied"},
      {{.early_stop = {.metric = "val_loss", .patience = 0}},
       "--early_stop.patience 0: expected a whole number of 1 or more",
       "measurements"},
      {{.barebones = true, .early_stop = {.metric = "val_loss"}},
       "--barebones true with --early_stop.metric val_loss: such a run neither reports, validates nor saves",
       "remove one of them"},
      {{.resume = "runs/other", .checkpoint = {.enabled = false}},
       "--resume runs/other with --checkpoint.enabled false: a run without checkpoints cannot resume",
       "remove one of them; --init_weights PATH begins with the weights of a file"},
      {{.fast_dev_run = 3, .resume = "last"}, "--resume last with --fast_dev_run 3: a run without checkpoints", ""},
      {{.barebones = true, .resume = "last"}, "--resume last with --barebones true: a run without checkpoints", ""},
      {{.fast_dev_run = 3, .barebones = true}, "--barebones true with --fast_dev_run 3", "remove one of them"},
      {{.barebones = true, .spike = {.z_score = 6}}, "--barebones true with --spike.z_score 6", "remove one of them"},
      {{.optim = {.lr_batch_size = 0}}, "--optim.lr_batch_size 0: expected a whole number of 1 or more", ""},
      {{.deterministic = Determinism::on, .benchmark = true},
       "--benchmark true with --deterministic on: the fastest algorithm may be another one in each run",
       "remove one of them"},
      {{.precision = Precision::fp64, .optim = {.stochastic_rounding = true}},
       "--optim.stochastic_rounding true with --precision fp64: it is for updates of bfloat16 parameters",
       "remove it, or use --precision bf16"},
      {{.detect_anomaly = true, .cuda_graphs = true},
       "--cuda_graphs true with --detect_anomaly true: a graph does not look at the values of its operations",
       "remove one of them"},
      {{.report = {.every_steps = -1}}, "--report.every_steps -1: expected a whole number of 0 or more", ""},
      {{.compute_setup = ComputeSetup::cpu, .backend = Backend::nccl},
       "--backend nccl with --compute_setup cpu: NCCL needs GPUs",
       "use --backend gloo (or auto) on the CPU"},
      {{.devices = "cpu", .backend = Backend::nccl},
       "--backend nccl with --devices cpu: NCCL needs GPUs",
       "--backend gloo"},
      {{.compute_setup = ComputeSetup::cpu, .devices = {0, 2}},
       "--devices 0,2 with --compute_setup cpu: these devices are GPUs",
       "use --compute_setup gpu, or a number such as --devices 2"},
      {{.compute_setup = ComputeSetup::cpu, .devices = -1},
       "--devices -1 with --compute_setup cpu: these devices are GPUs",
       ""},
      {{.compute_setup = ComputeSetup::cpu, .devices = "free:1"}, "--devices free:1 with --compute_setup cpu", ""},
      {{.compute_setup = ComputeSetup::gpu, .devices = "cpu"},
       "--devices cpu with --compute_setup gpu: the CPU is not a GPU",
       "use --compute_setup cpu, or --devices auto"},
      {{.devices = "1,,3"}, "--devices 1,,3: empty entry in the list", "use 1,3"},
      {{.devices = ""}, "--devices \"\": this requests no device", "use auto or -1"},
      {{.run_name = "a/b"}, "--run_name a/b: expected the name of one directory", "a path is for --run_dir"},
      {{.run_name = ".."}, "--run_name ..: expected the name of one directory", ""},
      {{.run_name = " \t"}, "expected the name of one directory", ""},
      {{.run_name = "a\nb"}, "--run_name ab: expected the name of one directory", ""},
      {{.run_name = std::string(201, 'a')}, "a...: has 201 bytes, the limit is 200", "use a shorter name"},
      {{.run_dir = "  "}, "expected a directory", "runs/first"},
      {{.run_dir = "runs/a\nb"}, "expected a directory", "has no control characters"},
      {{.run_dir = "runs/\xff"}, "expected a directory", "a name is UTF-8"},
      {{.resume = ""}, "--resume \"\": expected auto, never, last, best or a directory", "--resume auto"},
      {{.resume = "Auto"}, "--resume Auto: expected lower case", "use auto (or ./Auto for a directory)"},
      {{.resume = "last", .fresh = true}, "--fresh true with --resume last: a fresh run cannot resume", ""},
      {{.resume = "best"},
       "--resume best with --checkpoint.monitor \"\": there is no metric that defines the best checkpoint",
       "val_loss"},
      {{.checkpoint = {.name = "{epoch"}}, "--checkpoint.name {epoch: found { without }", "{epoch}-{val_loss:.3f}"},
      {{.checkpoint = {.name = "a/{epoch}"}}, "--checkpoint.name a/{epoch}: found '/'", ""},
      {{.checkpoint = {.name = "{loss:5d}"}}, "--checkpoint.name {loss:5d}: found {loss:5d}", ""},
      {{.checkpoint = {.name = "step-{step}"}}, "a name must not begin with step-", ""},
      {{.checkpoint = {.name = "best"}}, "a name must contain {step} or {epoch}", ""},
      {{.checkpoint = {.weights_only = true}, .dist = {.max_restarts = 2}},
       "--checkpoint.weights_only true with --dist.max_restarts 2: a run cannot continue from checkpoints that hold "
       "only",
       "remove one of them"},
      {{.checkpoint = {.weights_only = true}, .dist = {.requeue = true}}, "true with --dist.requeue true", ""},
      {{.checkpoint = {.weights_only = true}, .memory = {.halve_batch = true}},
       "true with --memory.halve_batch true",
       ""},
      {{.checkpoint = {.enabled = false}, .dist = {.requeue = true}},
       "--dist.requeue true with --checkpoint.enabled false: a run without checkpoints cannot continue",
       "remove one of them"},
      {{.fast_dev_run = 3, .dist = {.requeue = true}}, "--dist.requeue true with --fast_dev_run 3", ""},
      {{.barebones = true, .dist = {.requeue = true}}, "--dist.requeue true with --barebones true", ""},
      {{.run_dir = "runs/{n}", .checkpoint = {.per_node = true}},
       "--checkpoint.per_node true with --run_dir runs/{n}: the nodes may have different runs",
       "name a directory"},
      {{.run_name = "{time}", .checkpoint = {.per_node = true}},
       "--checkpoint.per_node true with --run_name {time}",
       "--run_dir runs/first"},
      {{.data = {.steps_per_epoch = 50, .min_steps_per_epoch = 20}},
       "--data.min_steps_per_epoch 20 with --data.steps_per_epoch 50: each epoch has the given number of steps",
       "a part such as 10% may have a minimum"},
      {{.early_stop = {.metric = "loss"}, .report = {.every_steps = 0}},
       "--early_stop.metric loss with --report.every_steps 0: the metric is never measured",
       "--report.every_steps 20"},
      {{.early_stop = {.metric = "loss"}, .report = {.every_steps = 0, .every_s = 60}},
       "--early_stop.metric loss with --report.every_steps 0: reports by time decide nothing",
       "--report.every_steps 20"},
      {{.early_stop = {.metric = "val_loss"}, .validate = {.every_epochs = 0, .every_s = 60}},
       "--early_stop.metric val_loss with --validate.every_s 60: validations by time decide nothing",
       "--validate.every_epochs 1"},
      {{.plateau = {.metric = "val_loss"}, .validate = {.every_epochs = 0, .every_s = 60}},
       "--plateau.metric val_loss with --validate.every_s 60: validations by time decide nothing",
       "--validate.every_epochs 1"},
      {{.spike = {.z_score = 5, .policy = SpikePolicy::lower_lr}, .report = {.every_steps = 0}},
       "--spike.policy lower_lr with --report.every_steps 0: learning rates are lowered at reports",
       "--report.every_steps 20"},
      {{.run_dir = "out/a/", .fresh = true, .report = {.log_dir = "out/a/logs"}},
       "--report.log_dir out/a/logs with --run_dir out/a/: --fresh renames this run, and the new logs would go with",
       "for example --report.log_dir logs"},
      {{.run_dir = "out/a", .fresh = true, .report = {.log_dir = "./out/b/../a"}},
       "--report.log_dir ./out/b/../a with --run_dir out/a",
       ""},
      {{.run_name = "a", .fresh = true, .report = {.log_dir = std::filesystem::absolute("runs/a/logs").string()}},
       "runs/a/logs with --run_name a: --fresh renames this run",
       ""},
  };
  for (const Case& row : cases) {
    const auto problems = check_config(row.config);
    ASSERT_EQ(problems.size(), 1U) << row.what;
    EXPECT_THAT(problems[0].what, HasSubstr(row.what));
    EXPECT_THAT(problems[0].hint, HasSubstr(row.hint)) << row.what;
    EXPECT_FALSE(problems[0].hint.empty()) << row.what;
  }
}

TEST(CheckConfig, FollowsLinksToTheDirectoryThatFreshRenames) {
  const TempDir dir;
  std::filesystem::create_directories(dir.path() / "run" / "logs");
  std::filesystem::create_directory_symlink(dir.path() / "run" / "logs", dir.path() / "link");
  const auto problems = [&](const char* logs) {
    return check_config(
        {.run_dir = (dir.path() / "run").string(), .fresh = true, .report = {.log_dir = (dir.path() / logs).string()}});
  };
  EXPECT_EQ(problems("link").size(), 1U);
  EXPECT_TRUE(problems("other").empty());
}

TEST(CheckConfig, CollectsAllProblems) {
  const TrainConfig config{.devices = "0,0", .batch_size = -1, .run_name = "/", .checkpoint = {.keep_last = 0}};
  EXPECT_EQ(check_config(config).size(), 4U);
}

}  // namespace
}  // namespace lockstep
