#include "storage/run_commands.h"

#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/temp_dir.h"

namespace lockstep {
namespace {

void ask(const std::filesystem::path& run, std::string_view command) {
  const auto file = command_file(run, command);
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file).put('\n');  // as an editor or `echo` writes it
}

TEST(RunCommands, AreTakenOnceAndAtMostOncePerSecond) {
  const TempDir dir;
  ask(dir.path(), "save");  // while the training was being prepared
  RunCommands commands(real_file_system(), dir.path(), {});
  CommandsTaken taken = commands.take();
  EXPECT_TRUE(taken.save);
  ask(dir.path(), "validate");
  taken = commands.take();
  EXPECT_FALSE(taken.validate) << "it looked a moment ago";
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!taken.validate && std::chrono::steady_clock::now() < end) {
    taken = commands.take();
    std::this_thread::yield();
  }
  EXPECT_TRUE(taken.validate);
  EXPECT_FALSE(taken.save);
  EXPECT_FALSE(taken.stop);
  EXPECT_FALSE(taken.report);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path() / "commands"));
}

TEST(RunCommands, OfAProgramAreKnownToOthersUntilTheNextTraining) {
  const TempDir dir;
  FileSystem& fs = real_file_system();
  RunCommands commands(fs, dir.path(), {"sample", "print-table"});
  EXPECT_THAT(commands_of_run(fs, dir.path()),
              testing::ElementsAre("stop", "save", "validate", "report", "sample", "print-table"));
  ask(dir.path(), "print-table");
  CommandsTaken taken;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (taken.own.empty() && std::chrono::steady_clock::now() < end) {
    taken = commands.take();
    std::this_thread::yield();
  }
  EXPECT_THAT(taken.own, testing::ElementsAre("print-table"));
  const RunCommands next(fs, dir.path(), {});
  EXPECT_THAT(commands_of_run(fs, dir.path()), testing::ElementsAre("stop", "save", "validate", "report"));
}

TEST(RunCommands, OfAnEarlierTrainingAreDropped) {
  const TempDir dir;
  drop_commands(real_file_system(), dir.path());  // there is no directory of commands
  const RunCommands commands(real_file_system(), dir.path(), {"sample"});
  ask(dir.path(), "stop");
  ask(dir.path(), "sample");
  drop_commands(real_file_system(), dir.path());
  EXPECT_FALSE(std::filesystem::exists(command_file(dir.path(), "stop")));
  EXPECT_FALSE(std::filesystem::exists(command_file(dir.path(), "sample")));
  EXPECT_THAT(commands_of_run(real_file_system(), dir.path()), testing::Contains("sample")) << "that is no command";
}

TEST(RunCommands, AreNotLookedForWithoutADirectory) {
  RunCommands commands(real_file_system(), {}, {});
  EXPECT_FALSE(commands.take().stop);
}

}  // namespace
}  // namespace lockstep
