// Runs whose reports cannot be written: injected errors, a real full disk, a limit on file sizes, and directories or
// links instead of the files.
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "support/requirements.h"
#include "support/runs.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ReportsOfARun : public testing::Test {
 protected:
  std::filesystem::path run() const { return dir_.path() / "run"; }
  std::vector<std::string> train(const std::vector<std::string>& more = {}) const {
    return command(
        TRAIN_PROGRAM, run(),
        with({"--max_epochs", "20", "--max_steps", "30", "--report.every_steps", "1", "--report.csv"}, more));
  }
  static Process::Environment failing(const std::string& file, int error, int from, int times) {
    return {{"LD_PRELOAD", FAILING_WRITES_SHIM},
            {"FAILING_FILE", file},
            {"FAILING_ERROR", std::to_string(error)},
            {"FAILING_FROM", std::to_string(from)},
            {"FAILING_TIMES", std::to_string(times)}};
  }
  static std::size_t missing(const std::string& log, const std::string& file) {
    std::smatch match;
    return std::regex_search(log, match, std::regex(file + " [a-z ]+; missing [a-z]+: ([0-9]+)")) ? std::stoul(match[1])
                                                                                                  : 0;
  }

  TempDir dir_;
};

TEST_F(ReportsOfARun, GoOnWhenWritesFailForAWhile) {
  const auto result = run_program(train(), failing("metrics.jsonl", ENOSPC, 10, 5));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("metrics.jsonl: No space left on device; the run goes on without these rows"));
  EXPECT_EQ(missing(result.err, "metrics.jsonl"), 5U) << result.err;
  EXPECT_EQ(metric(run(), "loss").size(), 25U);
}

TEST_F(ReportsOfARun, EndWithoutARowWhenWritesFailForGood) {
  for (const auto& [file, error] : {std::pair("events.jsonl", EROFS), std::pair("metrics.csv", EIO)}) {
    const auto result = run_program(train({"--run_name", file, "--run_dir", (dir_.path() / file).string()}),
                                    failing(file, error, 2, 1'000'000));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_GT(missing(result.err, file), 0U) << result.err;
    EXPECT_THAT(result.err, HasSubstr("finished at step 30"));
  }
}

// The others would wait in a collective for the rank whose records cannot be written.
TEST_F(ReportsOfARun, OfOneRankHoldNobodyUp) {
  const auto result = run_program(
      train({"--nprocs", "2", "--report.record", "1", "--checkpoint.every_steps", "2", "--dist.timeout_s", "20"}),
      failing("records-1.bin", ENOSPC, 1, 1'000'000));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("[rank1]: warning: cannot write "),
                    HasSubstr("records-1.bin: No space left on device; the run goes on without these steps")));
  EXPECT_EQ(missing(result.err, "records-1.bin"), 30U);
  EXPECT_GT(std::filesystem::file_size(run() / "records-0.bin"), 30U * 64) << "rank 0's are all there";
}

TEST_F(ReportsOfARun, GoOnWhenARealDiskIsFullForAWhile) {
  Requirements needs;
  LOCKSTEP_REQUIRE(needs.that(::geteuid() == 0, "root, to mount file systems"));
  std::filesystem::create_directories(run());
  const int mounted = ::mount("tmpfs", run().c_str(), "tmpfs", 0, "size=1m");
  LOCKSTEP_REQUIRE(needs.that(mounted == 0, std::string("no tmpfs: ") + std::strerror(errno)));
  {
    Process process(train({"--work_ms", "20", "--max_steps", "150"}));
    ASSERT_TRUE(process.wait_for("step 5 ")) << process.err();
    const auto filler = run() / "filler";
    std::ofstream(filler) << std::string(2 << 20, 'x');  // all free space
    EXPECT_TRUE(process.wait_for("metrics.jsonl: No space left on device; the run goes on")) << process.err();
    std::filesystem::remove(filler);
    const auto result = process.wait();
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_GT(missing(result.err, "metrics.jsonl"), 0U) << result.err;
    EXPECT_EQ(metric(run(), "loss").size() + missing(result.err, "metrics.jsonl"), 150U);
  }
  EXPECT_EQ(::umount2(run().c_str(), MNT_DETACH), 0);
}

TEST_F(ReportsOfARun, ObeyALimitOnFileSizesWithoutEndingTheRun) {
  std::string line = "ulimit -f 24; exec";  // blocks of 512 bytes or 1 KiB: more than any file of a checkpoint has
  for (const std::string& word : train({"--max_steps", "300", "--checkpoint.every_steps", "100"})) {
    line += " '" + word + "'";
  }
  const auto result = run_program({"sh", "-c", line});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("metrics.jsonl: File too large; the run goes on without these rows"));
}

TEST_F(ReportsOfARun, SetAsideWhatIsInTheirPlaceAtAResume) {
  ASSERT_EQ(run_program(train()).code, 0);
  for (const char* file : {"metrics.jsonl", "metrics.csv", "events.jsonl", "config.toml"}) {
    std::filesystem::remove(run() / file);
  }
  std::filesystem::create_directory(run() / "config.toml");
  ASSERT_EQ(::mkfifo((run() / "metrics.jsonl").c_str(), 0600), 0);
  std::filesystem::create_symlink(dir_.path() / "elsewhere", run() / "events.jsonl");
  std::ofstream(run() / "metrics.csv") << "\x01\x02 noise";
  const auto result = run_program(train({"--max_steps", "50"}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("moved it to metrics.jsonl.1"), HasSubstr("moved it to metrics.csv.1"),
                                HasSubstr("moved it to events.jsonl.1"),
                                HasSubstr("config.toml: Is a directory; the run goes on without it")));
  EXPECT_EQ(metric(run(), "loss").size(), 20U);
  EXPECT_EQ(read_text(run() / "metrics.csv.1"), "\x01\x02 noise");
  EXPECT_FALSE(std::filesystem::exists(dir_.path() / "elsewhere"));
}

}  // namespace
}  // namespace lockstep
