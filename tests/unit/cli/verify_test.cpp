// `lockstep verify` as a user runs it.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/json.h"
#include "support/process.h"
#include "support/requirements.h"
#include "support/temp_dir.h"
#include "unit/storage/checkpoint_samples.h"

namespace lockstep {
namespace {

using namespace testing_storage;
using testing::HasSubstr;
using testing::Not;

class Verify : public testing::Test {
 protected:
  Verify() {
    for (const std::int64_t step : {500, 900}) {
      Contents contents = sample_contents(step);
      contents["state.json"] = fmt::format(R"({{"step":{},"position.epoch":"0"}})", step);
      save(checkpoints_, step, contents);
    }
  }

  static Process::Result verify(const std::filesystem::path& path) {
    return run_program({LOCKSTEP_CLI, "verify", path.string()});
  }

  void damage(std::int64_t step) {
    std::fstream file(checkpoints_.path(step) / "weights.bin", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(7).put('!');
  }

  TempDir temp_;
  std::filesystem::path directory_ = temp_.path() / "checkpoints";
  CheckpointDir checkpoints_{real_file_system(), directory_, "digits", 2};
};

TEST_F(Verify, ReportsValidCheckpoints) {
  for (const auto& path : {temp_.path(), directory_, directory_ / ""}) {
    const auto result = verify(path);
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.out,
              "step-0000000500: valid, 93 B in 3 files, run digits, restart 2\n"
              "step-0000000900: valid, 93 B in 3 files, run digits, restart 2\n"
              "a run resumes from step 900\n");
  }
  std::filesystem::create_directory_symlink("step-0000000500", directory_ / "best");
  for (const char* name : {"step-0000000500/", "best"}) {
    const auto one = verify(directory_ / name);
    EXPECT_EQ(one.out, "step-0000000500: valid, 93 B in 3 files, run digits, restart 2\n") << name;
    EXPECT_EQ(one.code, 0) << name;
  }
}

TEST_F(Verify, KnowsTheCheckpointFromItsInside) {
  const std::string valid = "step-0000000500: valid, 93 B in 3 files, run digits, restart 2\n";
  const std::string inside = (directory_ / "step-0000000500").string();
  EXPECT_EQ(run_program({LOCKSTEP_CLI, "verify", "."}, {}, inside).out, valid);
  EXPECT_EQ(run_program({LOCKSTEP_CLI, "verify", inside + "/."}).out, valid);
  EXPECT_THAT(run_program({LOCKSTEP_CLI, "verify", ".."}, {}, inside).out, HasSubstr("a run resumes from step 900\n"));
}

TEST_F(Verify, LocatesDamageAndNamesTheNewestValidCheckpoint) {
  damage(900);
  std::filesystem::create_directory(directory_ / "step-0000000950.tmp.0123456789abcdef");
  const auto result = verify(temp_.path());
  EXPECT_EQ(result.code, 65);
  EXPECT_THAT(result.out, HasSubstr("step-0000000500: valid"));
  EXPECT_THAT(result.out,
              HasSubstr("step-0000000900: damaged: step-0000000900/weights.bin chunk 0 (offset 0 MiB): checksum"));
  EXPECT_THAT(result.out, HasSubstr("step-0000000950.tmp.0123456789abcdef: incomplete"));
  EXPECT_THAT(result.out, HasSubstr("a run resumes from step 500\n"));
  EXPECT_EQ(verify(directory_ / "step-0000000500").code, 0);
  EXPECT_EQ(verify(directory_ / "step-0000000900").code, 65);
  damage(500);
  EXPECT_THAT(verify(temp_.path()).out, HasSubstr("no valid checkpoint in " + directory_.string() + "\n"));
}

TEST_F(Verify, ReadsAbandonedCheckpointsToo) {
  const std::string name = checkpoints_.abandon(std::vector<std::int64_t>{900}).front();
  const std::string found = "valid, 93 B in 3 files, run digits, restart 2\n";
  const auto result = verify(temp_.path());
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "step-0000000500: " + found + name + ": abandoned, " + found + "a run resumes from step 500\n");
  EXPECT_EQ(verify(directory_ / name).out, name + ": " + found);
  std::ofstream(directory_ / name / "weights.bin", std::ios::app) << "x";
  const auto damaged = run_program({LOCKSTEP_CLI, "verify", "--json", temp_.path().string()});
  EXPECT_EQ(damaged.code, 0) << "no run uses it";
  const Json answer = parse_json(damaged.out);
  ASSERT_EQ(answer["abandoned"].size(), 1U);
  EXPECT_EQ(answer["abandoned"][0]["name"], name);
  EXPECT_EQ(answer["abandoned"][0]["valid"], false);
  EXPECT_EQ(answer["newest_valid"], 500);
  EXPECT_EQ(verify(directory_ / name).code, 65);
}

TEST_F(Verify, TellsWhatCannotBeReadFromDamage) {
  std::vector<std::string> as_user;
  if (::geteuid() == 0) {  // who may read everything
    as_user = {"setpriv", "--reuid=64999", "--regid=64999", "--clear-groups"};
    LOCKSTEP_REQUIRE(Requirements().that(run_program({"setpriv", "--reuid=64999", "true"}).code == 0,
                                         "setpriv, to be another user than root"));
  }
  using std::filesystem::perms;
  std::filesystem::permissions(temp_.path(), perms{0755});
  for (const auto& entry : std::filesystem::recursive_directory_iterator(temp_.path())) {
    std::filesystem::permissions(entry, perms::others_read | perms::others_exec, std::filesystem::perm_options::add);
  }
  const auto verify_as_user = [&](std::vector<std::string> words) {
    words.insert(words.begin(), as_user.begin(), as_user.end());
    return run_program(words);
  };
  if (!as_user.empty()) {
    LOCKSTEP_REQUIRE(
        Requirements().of_the_machine(verify_as_user({LOCKSTEP_CLI, "verify", temp_.path().string()}).code == 0,
                                      "the build and the folder of the test where other users may read them"));
  }
  std::filesystem::permissions(checkpoints_.path(900) / "weights.bin", perms::none);
  const auto result = verify_as_user({LOCKSTEP_CLI, "verify", temp_.path().string()});
  EXPECT_EQ(result.code, 74) << result.err;
  EXPECT_THAT(result.out, HasSubstr("step-0000000900: cannot be read: cannot open "));
  EXPECT_THAT(result.out, HasSubstr("weights.bin: Permission denied\n"
                                    "a start ends with exit code 74 until step-0000000900 can be read\n"));
  const auto json = verify_as_user({LOCKSTEP_CLI, "verify", "--json", temp_.path().string()});
  EXPECT_EQ(json.code, 74) << json.err;
  const Json answer = parse_json(json.out);
  EXPECT_THAT(answer["checkpoints"][1]["unreadable"].get<std::string>(), HasSubstr("Permission denied"));
  EXPECT_FALSE(answer["checkpoints"][1].contains("damage"));
  std::filesystem::permissions(checkpoints_.path(900) / "weights.bin", perms{0644});
  std::filesystem::permissions(checkpoints_.path(500) / "weights.bin", perms::none);
  EXPECT_THAT(verify_as_user({LOCKSTEP_CLI, "verify", temp_.path().string()}).out,
              HasSubstr("a start may end with exit code 74 until step-0000000500 can be read\n"))
      << "a newer one is valid";
  damage(900);
  EXPECT_EQ(verify_as_user({LOCKSTEP_CLI, "verify", temp_.path().string()}).code, 65);
}

TEST_F(Verify, ReportsAFailedWrite) {
  const std::string command = std::string(LOCKSTEP_CLI) + " verify " + temp_.path().string() + " > ";
  const auto full = run_program({"sh", "-c", command + "/dev/full"});
  EXPECT_EQ(full.code, 74);
  EXPECT_EQ(full.err, "error: cannot write to standard output: No space left on device\n");
  const auto limited = run_program({"sh", "-c", "ulimit -f 0; " + command + (temp_.path() / "answer").string()});
  EXPECT_EQ(limited.code, 74) << limited.code;
  EXPECT_EQ(limited.err, "error: cannot write to standard output: File too large\n");
}

TEST_F(Verify, AnswersInJson) {
  damage(900);
  const std::string incomplete = "step-0000000950.tmp.0123456789abcdef";
  std::filesystem::create_directory(directory_ / incomplete);
  const auto run = run_program({LOCKSTEP_CLI, "verify", temp_.path().string(), "--json"});
  EXPECT_EQ(run.code, 65) << run.err;
  Json answer = parse_json(run.out);
  Json& damaged = answer["checkpoints"][1];
  EXPECT_THAT(damaged["damage"].get<std::string>(), HasSubstr("weights.bin chunk 0 (offset 0 MiB): checksum"));
  damaged.erase("damage");
  EXPECT_EQ(answer, Json({{"format", 1},
                          {"directory", directory_.string()},
                          {"checkpoints",
                           {{{"name", "step-0000000500"},
                             {"step", 500},
                             {"valid", true},
                             {"bytes", 93},
                             {"files", 3},
                             {"run_id", "digits"},
                             {"restart", 2}},
                            {{"name", "step-0000000900"}, {"step", 900}, {"valid", false}}}},
                          {"abandoned", Json::array()},
                          {"incomplete", {incomplete}},
                          {"newest_valid", 500}}));
  const auto one = run_program({LOCKSTEP_CLI, "verify", "--json", (directory_ / "step-0000000900").string()});
  EXPECT_EQ(one.code, 65) << one.err;
  EXPECT_EQ(parse_json(one.out)["newest_valid"], Json());
}

TEST_F(Verify, SaysThatNoRunResumesFromWeightsAlone) {
  for (const char* state : {R"({"format": 1, "weights_only": "true"})",  // of checkpoint.weights_only
                            R"({"format": 1, "data_order": 1, "world_size": 1, "epoch": "3"})"}) {  // converted
    save(checkpoints_, 950, {{"state.json", state}});
    EXPECT_THAT(verify(temp_.path()).out, HasSubstr("run digits, restart 2, only weights\n"
                                                    "no run resumes from step 950, which holds only weights\n"));
  }
  const auto result = run_program({LOCKSTEP_CLI, "verify", "--json", temp_.path().string()});
  Json json = parse_json(result.out);
  EXPECT_EQ(json["checkpoints"].back()["weights_only"], true);
  EXPECT_FALSE(json["checkpoints"].front().contains("weights_only")) << "the control";
}

TEST_F(Verify, ReadsACheckpointThatWasMovedAside) {
  std::filesystem::rename(checkpoints_.path(900), directory_ / "step-0000000900.old.0123456789abcdef");
  const auto result = verify(temp_.path());
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.out, HasSubstr("step-0000000900.old.0123456789abcdef: valid"));
  EXPECT_THAT(result.out, Not(HasSubstr("incomplete")));
}

TEST_F(Verify, ChangesNothing) {
  std::filesystem::create_directory(directory_ / "step-0000000950.tmp.0123456789abcdef");
  const auto before = real_file_system().list(directory_);
  verify(temp_.path());
  EXPECT_EQ(real_file_system().list(directory_), before);
}

TEST(VerifyUsage, RejectsInvalidArguments) {
  const TempDir empty;
  EXPECT_EQ(run_program({LOCKSTEP_CLI, "verify"}).code, 2);
  EXPECT_EQ(run_program({LOCKSTEP_CLI, "verify", "a", "b"}).code, 2);
  const auto missing = run_program({LOCKSTEP_CLI, "verify", (empty.path() / "no").string()});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr("no: no such directory"));
  EXPECT_THAT(run_program({LOCKSTEP_CLI, "verify", LOCKSTEP_CLI}).err, HasSubstr(": is a file\n"));
  EXPECT_EQ(run_program({LOCKSTEP_CLI, "verify", empty.path().string()}).code, 65) << "no valid checkpoint";
  const auto help = run_program({LOCKSTEP_CLI, "verify", "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("usage: lockstep verify [--json] DIR"));
}

}  // namespace
}  // namespace lockstep
