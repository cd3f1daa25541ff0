// `lockstep compare` as a user runs it.
#include <bit>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "report/step_records.h"
#include "support/process.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;

class Compare : public testing::Test {
 protected:
  std::string run(const std::string& name, double loss_of_step_3, std::int64_t first = 1) {
    const auto directory = temp_.path() / name;
    std::filesystem::create_directories(directory);
    for (int rank = 0; rank < 2; ++rank) {
      RecordWriter writer(real_file_system(), directory / record_file_name(rank), rank, 2, {.step = first - 1});
      for (std::int64_t step = first; step < first + 5; ++step) {
        const double loss = step == 3 && rank == 1 ? loss_of_step_3 : 2.0;
        writer.add({.step = step, .samples = 4, .sample_digest = 5, .loss_bits = std::bit_cast<std::uint64_t>(loss)});
      }
    }
    return directory.string();
  }

  static Process::Result compare(const std::string& a, const std::string& b) {
    return run_program({LOCKSTEP_CLI, "compare", a, b});
  }

  TempDir temp_;
};

TEST_F(Compare, NamesTheFirstDifference) {
  const std::string a = run("a", 2.0);
  const auto same = compare(a, run("b", 2.0));
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_EQ(same.out, "same: 5 steps, 1 to 5\n");
  const auto different = compare(a, run("c", 2.5));
  EXPECT_EQ(different.code, 1);
  EXPECT_EQ(different.out,
            "different: step 3, rank 1 (after 2 equal steps)\n"
            "  loss: 2 (4000000000000000) and 2.5 (4004000000000000)\n");
  const auto apart = compare(a, run("d", 2.0, 100));
  EXPECT_EQ(apart.code, 1);
  EXPECT_EQ(apart.out, "different: no step was recorded in both\n");
}

// Between other numbers of ranks: the parameters may differ by rounding, samples and epochs may not.
TEST_F(Compare, ExpectsRoundingOnlyInParameters) {
  const auto run_of_ranks = [&](const std::string& name, int ranks, std::int64_t samples, std::uint64_t parameters) {
    const auto directory = temp_.path() / name;
    std::filesystem::create_directories(directory);
    for (int rank = 0; rank < ranks; ++rank) {
      RecordWriter writer(real_file_system(), directory / record_file_name(rank), rank, ranks, {});
      writer.add({.step = 1, .samples = samples / ranks, .parameter_digest = parameters});
    }
    return directory.string();
  };
  const std::string one = run_of_ranks("one", 1, 4, 7);
  const auto rounded = compare(one, run_of_ranks("rounded", 2, 4, 8));
  EXPECT_EQ(rounded.code, 1);
  EXPECT_THAT(rounded.out, HasSubstr("parameters: "));
  EXPECT_THAT(rounded.out, HasSubstr("differences of rounding are expected"));
  const auto other = compare(one, run_of_ranks("other", 2, 6, 8));
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.out, HasSubstr("samples: "));
  EXPECT_THAT(other.out, Not(HasSubstr("rounding")));
}

TEST_F(Compare, AnswersInJson) {
  const std::string a = run("a", 2.0);
  const auto answer = [&](const std::string& b, int code) {
    const auto result = run_program({LOCKSTEP_CLI, "compare", "--json", a, b});
    EXPECT_EQ(result.code, code) << result.err;
    return parse_json(result.out);
  };
  EXPECT_EQ(answer(run("b", 2.0), 0),
            Json({{"format", 1}, {"same", true}, {"common_steps", 5}, {"first_step", 1}, {"last_step", 5}}));
  EXPECT_EQ(answer(run("c", 2.5), 1),
            Json({{"format", 1},
                  {"same", false},
                  {"common_steps", 3},
                  {"first_step", 1},
                  {"last_step", 3},
                  {"difference",
                   {{"step", 3},
                    {"rank", 1},
                    {"fields", Json::object({{"loss", {"2 (4000000000000000)", "2.5 (4004000000000000)"}}})}}}}));
  EXPECT_EQ(answer(run("d", 2.0, 100), 1), Json({{"format", 1}, {"same", false}, {"common_steps", 0}}));
}

TEST_F(Compare, PrintsTheHashOfOneRun) {
  const std::string a = run("a", 2.0);
  const auto one = run_program({LOCKSTEP_CLI, "compare", a});
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.out, testing::MatchesRegex("[0-9a-f]{16} after 5 steps, the last one is 5\n"));
  const Json json = parse_json(run_program({LOCKSTEP_CLI, "compare", "--json", a}).out);
  EXPECT_EQ(json, Json({{"format", 1}, {"steps", 5}, {"last_step", 5}, {"hash", one.out.substr(0, 16)}}));
  EXPECT_EQ(run_program({LOCKSTEP_CLI, "compare", run("b", 2.0)}).out, one.out);
  EXPECT_NE(run_program({LOCKSTEP_CLI, "compare", run("d", 2.0, 100)}).out, one.out);
}

TEST_F(Compare, NamesTheRanksWhoseFilesAreMissing) {
  const std::string a = run("a", 2.0);
  const std::string b = run("b", 2.5);
  std::filesystem::remove(std::filesystem::path(b) / record_file_name(1));
  const auto partly = compare(a, b);
  EXPECT_EQ(partly.code, 0);
  EXPECT_EQ(partly.out, "same: 5 steps, 1 to 5\n  not compared: rank 1, because " + b + " has no records-1.bin\n");
  const Json json = parse_json(run_program({LOCKSTEP_CLI, "compare", "--json", a, b}).out);
  EXPECT_EQ(json["not_compared"], Json::array({1}));

  const auto alone = run_program({LOCKSTEP_CLI, "compare", b});
  EXPECT_EQ(alone.code, 65);
  EXPECT_EQ(alone.out, "");
  EXPECT_THAT(alone.err, HasSubstr(b + ": not all ranks have recorded its first step: it has no records-1.bin\n"));
  const std::string file = b + "/" + record_file_name(0);
  const auto one_file = run_program({LOCKSTEP_CLI, "compare", file});
  EXPECT_EQ(one_file.code, 65);
  EXPECT_THAT(one_file.err, HasSubstr(file + ": not all ranks have recorded its first step\n"));
  EXPECT_EQ(compare(a + "/" + record_file_name(0), file).out, "same: 5 steps, 1 to 5\n") << "as asked";
}

TEST_F(Compare, RejectsInvalidArguments) {
  const std::string a = run("a", 2.0);
  EXPECT_EQ(compare(a, (temp_.path() / "missing").string()).code, 2);
  const auto none = compare((temp_.path() / "none").string(), temp_.path().string());
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("none: found no such file"));
  EXPECT_THAT(none.err, HasSubstr(temp_.path().string() + ": found no records-<rank>.bin")) << "both, not only one";
  EXPECT_EQ(run_program({LOCKSTEP_CLI, "compare"}).code, 2);
  EXPECT_EQ(run_program({LOCKSTEP_CLI, "compare", a, a, a}).code, 2);
  EXPECT_THAT(run_program({LOCKSTEP_CLI, "compare", "--help"}).out,
              HasSubstr("usage: lockstep compare [--json] A [B]"));
  std::filesystem::resize_file(std::filesystem::path(a) / "records-1.bin", 10);
  const auto damaged = compare(a, a);
  EXPECT_EQ(damaged.code, 65);
  EXPECT_THAT(damaged.err, HasSubstr(a + "/records-1.bin record 0: the file has no complete record"));
}

}  // namespace
}  // namespace lockstep
