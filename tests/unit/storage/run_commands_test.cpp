#include "storage/run_commands.h"

#include <fstream>
#include <thread>

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
  ask(dir.path(), "stop");  // of an earlier training
  RunCommands commands(real_file_system(), dir.path());
  EXPECT_FALSE(std::filesystem::exists(command_file(dir.path(), "stop")));
  ask(dir.path(), "save");
  ask(dir.path(), "validate");
  CommandsTaken taken = commands.take();
  EXPECT_FALSE(taken.save) << "it looked a moment ago";
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!taken.save && std::chrono::steady_clock::now() < end) {
    taken = commands.take();
    std::this_thread::yield();
  }
  EXPECT_TRUE(taken.save);
  EXPECT_TRUE(taken.validate);
  EXPECT_FALSE(taken.stop);
  EXPECT_FALSE(taken.report);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path() / "commands"));
}

TEST(RunCommands, AreNotLookedForWithoutADirectory) {
  RunCommands commands(real_file_system(), {});
  EXPECT_FALSE(commands.take().stop);
}

}  // namespace
}  // namespace lockstep
