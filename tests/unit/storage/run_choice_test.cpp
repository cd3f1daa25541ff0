// The directory of a launch if run_dir has a placeholder.
#include "storage/run_choice.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "storage/run_record.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class RunChoices : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return (dir_.path() / "runs" / name).string(); }
  std::string choose(const LaunchName& launch, bool newest = false, const std::string& name = "{n}") const {
    return choose_run(fs_, *parse_run_pattern(path(name)), {.launch = launch, .newest = newest, .creates = true});
  }
  void record(const std::string& name, const LaunchName& launch) const {
    std::filesystem::create_directories(path(name));
    write_file(fs_, path(name) + "/run.json", to_json({.id = "1", .launches = 1, .launch = launch}));
  }

  void save(const std::string& name) const {
    std::filesystem::create_directories(path(name) + "/checkpoints/step-0000000001");
  }

  TempDir dir_;
  FileSystem& fs_ = real_file_system();
};

TEST_F(RunChoices, AreCountedFromOne) {
  EXPECT_EQ(choose({.id = "a"}), path("1"));
  EXPECT_EQ(choose({.id = "b"}), path("2"));
  std::filesystem::create_directories(path("10"));  // 10 comes after 9
  std::filesystem::create_directories(path("other"));
  std::filesystem::create_directories(path("99.1"));  // an old run that was moved aside
  EXPECT_EQ(choose({.id = "c"}), path("11"));
}

TEST_F(RunChoices, OfTwoStartsAtTheSameTimeDiffer) {
  for (const std::string name : {"{n}", "{time}"}) {
    std::vector<std::string> chosen(2);
    {
      std::vector<std::jthread> starts;
      for (std::string& mine : chosen) {
        starts.emplace_back([&, this] { mine = choose({.id = "start"}, false, name); });
      }
    }
    std::ranges::sort(chosen);
    EXPECT_EQ(std::ranges::unique(chosen).size(), 0U) << name;
  }
}

TEST_F(RunChoices, OfARestartIsThatOfTheLaunch) {
  record("1", {.id = "a"});
  record("2", {.id = "b"});
  EXPECT_EQ(choose({.id = "a"}), path("1"));
  EXPECT_EQ(choose({.id = "a"}, /*newest=*/true), path("1")) << "it began there, whatever came after it";
  EXPECT_EQ(choose({.id = "c"}), path("3"));
}

TEST_F(RunChoices, OfAJobThatIsQueuedAgainComeInTheSameOrder) {
  record("1", {.id = "a", .job = "7"});
  record("2", {.id = "b", .job = "7"});
  const LaunchName again{.id = "c", .job = "7", .requeues = 1};
  EXPECT_EQ(choose(again), path("1"));
  record("1", again);
  EXPECT_EQ(choose({.id = "d", .job = "7", .requeues = 1}), path("2"));
  EXPECT_EQ(choose({.id = "e", .job = "7"}), path("3")) << "another run of the job";
}

TEST_F(RunChoices, ContinueTheNewestRunIfAsked) {
  EXPECT_THAT([&] { choose({.id = "a"}, /*newest=*/true); },
              ThrowsMessage<CheckpointError>(
                  HasSubstr("found no run " + path("*") + " with a checkpoint, expected one to continue")));
  EXPECT_FALSE(std::filesystem::exists(path(""))) << "nothing was created";
  record("9", {.id = "a"});
  save("9");
  record("10", {.id = "b"});
  save("10");
  record("11", {.id = "d"});  // a start that died before its first save
  EXPECT_EQ(choose({.id = "c"}, /*newest=*/true), path("10"));
  EXPECT_EQ(choose({.id = "c"}), path("12"));
}

TEST_F(RunChoices, CreateNothingIfNothingIsWritten) {
  const RunPattern pattern = *parse_run_pattern(path("{n}"));
  EXPECT_EQ(choose_run(fs_, pattern, {.launch = {.id = "a"}}), path("1"));
  EXPECT_FALSE(std::filesystem::exists(path("")));
}

TEST_F(RunChoices, AreFoundByTheIdOfTheLaunch) {
  const RunPattern pattern = *parse_run_pattern(path("{n}"));
  EXPECT_EQ(find_run_of(fs_, pattern, "a"), "");
  record("1", {.id = "a"});
  std::filesystem::create_directories(path("2"));
  write_file(fs_, path("2") + "/run.json", "damaged");
  record("3", {.id = "b"});
  EXPECT_EQ(find_run_of(fs_, pattern, "b"), path("3"));
}

}  // namespace
}  // namespace lockstep
