// One hold of a run directory for all ranks, and for the directories of all nodes.
#include "checkpoint/run_hold.h"

#include <array>
#include <filesystem>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>

#include "config/without_files.h"
#include "storage/run_commands.h"
#include "storage/run_directory.h"
#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/temp_dir.h"
#include "support/thread_world.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using testing::ThrowsMessage;
using Path = std::filesystem::path;

Plan plan_of(const Path& run, const std::string& launch, bool fresh = false) {
  Plan plan;
  plan.config.run_dir = run.string();
  plan.config.fresh = fresh;
  plan.facts.program = "train";
  plan.facts.launch_name.id = launch;
  return plan;
}

std::string run_in(const Path& run) {
  return parse_run_record(read_file(real_file_system(), run / "run.json"), run.string()).id;
}

TEST(RunHold, IsSharedForTheSameDirectory) {
  const TempDir dir;
  World world = World::single(c10::Device(c10::kCPU));
  const auto hold = RunHold::take(plan_of(dir.path() / "run", "a", /*fresh=*/true), world);
  EXPECT_EQ(RunHold::take(plan_of(dir.path() / "run", "a", /*fresh=*/true), world), hold);
  EXPECT_NE(RunHold::take(plan_of(dir.path() / "other", "a"), world), hold);
  EXPECT_FALSE(hold->trained_before());
  EXPECT_TRUE(hold->trained_before()) << "by whoever asked first";
}

TEST(RunHold, DropsTheCommandsForAnEarlierLaunch) {
  const TempDir dir;
  const Path run = dir.path() / "run";
  World world = World::single(c10::Device(c10::kCPU));
  const Path stop = command_file(run, "stop");
  const auto is_kept_by = [&](const std::string& launch) {
    RunHold::take(plan_of(run, launch), world);  // creates the directory
    std::filesystem::create_directories(stop.parent_path());
    write_file(real_file_system(), stop, "");
    RunHold::take(plan_of(run, launch), world);
    return std::filesystem::exists(stop);
  };
  EXPECT_TRUE(is_kept_by("a")) << "a restart takes what the attempt before it was asked for";
  RunHold::take(plan_of(run, "b"), world);
  EXPECT_FALSE(std::filesystem::exists(stop));
}

TEST(RunHold, IsRejectedOnEveryRank) {
  const TempDir dir;
  World owner = World::single(c10::Device(c10::kCPU));
  const auto hold = RunHold::take(plan_of(dir.path() / "run", "a"), owner);
  thread_world(2, [&](World& world) {
    EXPECT_THAT([&] { RunHold::take(plan_of(dir.path() / "run", "b", world.rank() == 1), world); },
                ThrowsMessage<CheckpointError>(HasSubstr("is in use by pid ")));
  });
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1) << "nothing was renamed";
}

TEST(RunHold, HoldsTheDirectoryForEverythingThatIsWrittenThere) {
  const auto is_held_with = [](const std::function<void(ReportConfig&)>& turn_on) {
    const TempDir dir;
    World world = World::single(c10::Device(c10::kCPU));
    Plan plan = plan_of(dir.path() / "run", "a");
    write_no_files(plan.config);
    turn_on(plan.config.report);
    const auto hold = RunHold::take(plan, world);
    return is_run_in_use(dir.path() / "run");
  };
  EXPECT_FALSE(is_held_with([](ReportConfig&) {}));
  EXPECT_TRUE(is_held_with([](ReportConfig& report) { report.step_times = true; }));
  EXPECT_TRUE(is_held_with([](ReportConfig& report) { report.command = "cat"; }));
  EXPECT_TRUE(is_held_with([](ReportConfig& report) { report.record = 1; }));
  EXPECT_TRUE(is_held_with([](ReportConfig& report) { report.prometheus = true; }));
}

// Rank 0 decides: the other one may have been told something else.
TEST(RunHold, RenamesTheOldRunOfEachNodeOnce) {
  const TempDir dir;
  const auto run_of = [&](int rank) { return dir.path() / ("node_" + std::to_string(rank)) / "run"; };
  const auto take = [&](const std::string& launch, bool fresh) {
    thread_world(
        2,
        [&](World& world) {
          Plan plan = plan_of(run_of(world.rank()), launch + (world.rank() == 0 ? "" : "?"), fresh);
          plan.config.checkpoint.per_node = true;
          RunHold::take(plan, world);
        },
        std::chrono::seconds(30), /*nodes=*/2);
    EXPECT_EQ(run_in(run_of(0)), run_in(run_of(1)));
    return run_in(run_of(0));
  };
  const std::string old_run = take("a", false);
  EXPECT_EQ(take("b", false), old_run);
  CapturedStderr captured;
  const std::string new_run = take("c", true);
  const std::string log = captured.text();
  for (const int rank : {0, 1}) {
    EXPECT_THAT(log, HasSubstr("--fresh: moved the old run to " + run_of(rank).string() + ".1\n"));
  }
  EXPECT_NE(new_run, old_run);
  EXPECT_EQ(take("c", true), new_run) << "a restart goes on";
  for (const int rank : {0, 1}) {
    EXPECT_EQ(run_in(run_of(rank).string() + ".1"), old_run);
    EXPECT_FALSE(std::filesystem::exists(run_of(rank).string() + ".2"));
  }
  std::filesystem::remove_all(run_of(0));
  EXPECT_EQ(take("c", true), new_run) << "a restart after the first node was replaced";
  EXPECT_FALSE(std::filesystem::exists(run_of(1).string() + ".2")) << "the checkpoints of the other node are kept";
  // A node that was replaced takes the run of the other one; one with another run's directory is refused.
  std::filesystem::remove_all(run_of(0));
  EXPECT_EQ(take("d", false), new_run);
  std::filesystem::remove_all(run_of(0));
  std::filesystem::rename(run_of(0).string() + ".1", run_of(0));
  EXPECT_THAT([&] { take("e", false); }, ThrowsMessage<CheckpointError>(HasSubstr("contain different runs")));
}

TEST(RunHold, RenamesNothingIfTheNewRunCouldNotBegin) {
  const TempDir dir;
  const Path run = dir.path() / "run";
  World world = World::single(c10::Device(c10::kCPU));
  RunHold::take(plan_of(run, "a"), world);
  const Path checkpoint = run / "checkpoints" / "step-0000000001";
  std::filesystem::create_directories(checkpoint);
  std::filesystem::create_directories(dir.path() / "other");
  write_file(real_file_system(), dir.path() / "other.pt", "weights");
  const auto message = [&](const Path& resume, const Path& init_weights = {}) {
    Plan plan = plan_of(run, "b", /*fresh=*/true);
    plan.config.resume = resume.string();
    plan.config.init_weights = init_weights.string();
    return message_of<CheckpointError>([&] { RunHold::take(plan, world); });
  };
  const std::string inside = checkpoint.string() + " with --fresh: it is in ";
  EXPECT_THAT(message(checkpoint), AllOf(StartsWith("--resume " + inside), HasSubstr("or another --run_dir")));
  EXPECT_THAT(message("auto", checkpoint), StartsWith("--init_weights " + inside));
  EXPECT_THAT(message(dir.path() / "missing"), StartsWith("--resume: " + (dir.path() / "missing").string()));
  EXPECT_THAT(message(dir.path() / "other.pt"), HasSubstr("other.pt: it is a file, expected a checkpoint or a run"));
  EXPECT_THAT(message("auto", dir.path() / "missing"), HasSubstr("missing: no such file or directory"));
  EXPECT_TRUE(std::filesystem::exists(checkpoint));
  EXPECT_EQ(message(dir.path() / "other"), "no error");
  EXPECT_FALSE(std::filesystem::exists(checkpoint)) << "the control: renamed";
}

// The second machine has only what one of its ranks kept there.
TEST(RunHold, ForgetsWhatDidNotFitOnEachMachineOnce) {
  const TempDir dir;
  const auto run_of = [&](int rank) { return dir.path() / ("node_" + std::to_string(rank)) / "run"; };
  const auto start = [&](const std::string& launch, bool fresh) {
    std::array<std::string, 2> kept;
    thread_world(2, [&](World& world) {
      const auto hold = RunHold::take(plan_of(run_of(world.rank()), launch, fresh), world);
      kept.at(static_cast<std::size_t>(world.rank())) = hold->batch_limit();
      EXPECT_TRUE(hold->keep_batch_limit(launch));
    });
    return kept;
  };
  using Kept = std::array<std::string, 2>;
  EXPECT_EQ(start("a", false), (Kept{"", ""}));
  EXPECT_EQ(start("b", false), (Kept{"a", "a"}));
  EXPECT_EQ(start("c", true), (Kept{"", ""}));
  EXPECT_EQ(start("c", true), (Kept{"c", "c"})) << "a restart";
}

TEST(RunHold, KeepsNothingForAPlanWithoutFiles) {
  const TempDir dir;
  World world = World::single(c10::Device(c10::kCPU));
  Plan plan = plan_of(dir.path() / "run", "a");
  write_no_files(plan.config);
  EXPECT_FALSE(RunHold::take(plan, world)->keep_batch_limit("x"));
  EXPECT_FALSE(std::filesystem::exists(dir.path() / "run"));
}

}  // namespace
}  // namespace lockstep
