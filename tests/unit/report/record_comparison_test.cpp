#include "report/record_comparison.h"

#include <bit>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/temp_dir.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

struct Change {
  std::int64_t step = 0;
  int rank = 0;
  void (*apply)(StepRecord&) = nullptr;
};

/// Runs of `ranks` ranks over a global batch of 12 samples, as the library divides it: contiguous blocks.
class Comparison : public testing::Test {
 protected:
  static StepRecord record(std::int64_t step, int rank, int ranks) {
    StepRecord record{.step = step, .epoch = step / 100, .samples = 12 / ranks, .sample_digest = 0};
    for (std::int64_t i = rank * record.samples; i < (rank + 1) * record.samples; ++i) {
      *record.sample_digest += sample_digest(i, step * 12 + i * 7);
    }
    record.loss_bits = std::bit_cast<std::uint64_t>(1.0 / static_cast<double>(step + rank * 1000 + ranks));
    record.parameter_digest = static_cast<std::uint64_t>(step) * 77;
    return record;
  }

  void run(const std::string& name, int ranks, std::int64_t first, std::int64_t last, const Change& change = {},
           std::int64_t every = 1) {
    std::filesystem::create_directories(directory_.path() / name);
    for (int rank = 0; rank < ranks; ++rank) {
      RecordWriter writer(real_file_system(), directory_.path() / name / record_file_name(rank), rank, ranks,
                          {.step = first - 1});
      for (std::int64_t step = first; step <= last; step += every) {
        StepRecord written = record(step, rank, ranks);
        if (step == change.step && rank == change.rank && change.apply != nullptr) {
          change.apply(written);
        }
        writer.add(written);
      }
    }
  }

  RecordComparison compare(const std::string& a, const std::string& b) {
    const auto read = [&](const std::string& name) {
      return read_run_records(real_file_system(), directory_.path() / name);
    };
    return compare_records(read(a), read(b));
  }

  TempDir directory_;
};

TEST_F(Comparison, FindsEqualRunsEqual) {
  run("a", 2, 1, 200);
  run("b", 2, 1, 300);
  const auto result = compare("a", "b");
  EXPECT_FALSE(result.difference);
  EXPECT_EQ(result.common_steps, 200);
  EXPECT_EQ(result.first_step, 1);
  EXPECT_EQ(result.last_step, 200);
}

TEST_F(Comparison, NamesTheFirstStepAndRankAndWhatDiffers) {
  run("a", 4, 1, 100);
  run("samples", 4, 1, 100, {40, 2, [](StepRecord& record) { *record.sample_digest += 1; }});
  run("loss", 4, 1, 100, {41, 3, [](StepRecord& record) { *record.loss_bits += 1; }});
  run("parameters", 4, 1, 100, {100, 0, [](StepRecord& record) { *record.parameter_digest += 1; }});
  run("epoch", 4, 1, 100, {1, 0, [](StepRecord& record) { ++record.epoch; }});
  struct Case {
    const char* name;
    std::int64_t step;
    int rank;
  };
  for (const auto& [name, step, rank] :
       {Case{"samples", 40, 2}, {"loss", 41, 3}, {"parameters", 100, 0}, {"epoch", 1, 0}}) {
    const auto difference = compare("a", name).difference;
    ASSERT_TRUE(difference) << name;
    EXPECT_EQ(difference->step, step);
    EXPECT_EQ(difference->rank, rank);
    EXPECT_THAT(difference->fields, ElementsAre(testing::Field(&RecordDifference::Field::name, name)));
  }
}

TEST_F(Comparison, GivesAnUpdateThatWasLeftOutAsTheReason) {
  run("a", 2, 1, 50);
  run("left_out", 2, 1, 50, {30, 0, [](StepRecord& record) {
                               *record.parameter_digest += 1;
                               record.left_out = true;
                             }});
  run("rolled_back", 2, 1, 50, {31, 0, [](StepRecord& record) {
                                  *record.parameter_digest += 1;
                                  record.rolled_back = true;
                                }});
  using Field = RecordDifference::Field;
  const auto reason = [&](const char* name) {
    const auto difference = compare("a", name).difference;
    EXPECT_TRUE(difference) << name;
    return difference ? difference->fields.back() : Field{};
  };
  const Field left_out = reason("left_out");
  EXPECT_EQ(left_out.name, "update");
  EXPECT_EQ(left_out.a, "made");
  EXPECT_EQ(left_out.b, "left out");
  EXPECT_EQ(reason("rolled_back").b, "weights of before put back, then made");
  run("both", 2, 1, 50, {30, 0, [](StepRecord& record) { record.left_out = true; }});
  EXPECT_FALSE(compare("a", "both").difference) << "with the same parameters it is no difference";
}

TEST_F(Comparison, ChainsTheStepsOfARun) {
  const auto chain = [&](const std::string& name) {
    return chain_of(read_run_records(real_file_system(), directory_.path() / name));
  };
  run("straight", 4, 1, 100);
  const RecordChain straight = chain("straight");
  EXPECT_EQ(straight.steps, 100);
  EXPECT_EQ(straight.last_step, 100);
  run("resumed", 4, 1, 60);
  run("resumed", 2, 51, 100);
  EXPECT_EQ(chain("resumed").hash, straight.hash) << "also on another number of ranks";
  run("shorter", 4, 1, 99);
  EXPECT_NE(chain("shorter").hash, straight.hash);
  run("sparse", 4, 1, 100, {}, 3);
  EXPECT_NE(chain("sparse").hash, straight.hash);
  for (const auto change :
       {+[](StepRecord& record) { *record.sample_digest += 1; },
        +[](StepRecord& record) { *record.parameter_digest += 1; }, +[](StepRecord& record) { ++record.epoch; }}) {
    std::filesystem::remove_all(directory_.path() / "changed");
    run("changed", 4, 1, 100, {40, 0, change});
    EXPECT_NE(chain("changed").hash, straight.hash);
  }
  run("killed", 2, 1, 100);
  std::filesystem::resize_file(directory_.path() / "killed" / record_file_name(1), std::uintmax_t{64} * 51);
  EXPECT_EQ(chain("killed").steps, 50) << "up to the last step that all ranks have";
}

TEST_F(Comparison, LeavesOutWhatRanksThatTheRunNoLongerHasRecordedLater) {
  run("a", 4, 1, 100);
  run("b", 4, 1, 80, {70, 3, [](StepRecord& record) { *record.sample_digest += 1; }});
  EXPECT_TRUE(compare("a", "b").difference) << "the control";
  run("b", 2, 51, 60);  // the steps after 60 of ranks 2 and 3 are abandoned
  EXPECT_FALSE(compare("a", "b").difference);
  EXPECT_EQ(compare("a", "b").last_step, 60);
}

TEST_F(Comparison, ComparesTheGlobalBatchOfDifferentWorldSizes) {
  run("one", 1, 1, 50);
  run("four", 4, 1, 50);
  EXPECT_FALSE(compare("one", "four").difference) << "losses are of other samples, and not compared";
  EXPECT_EQ(compare("one", "four").common_steps, 50);
  run("moved", 4, 1, 50, {30, 1, [](StepRecord& record) { *record.sample_digest ^= 1; }});
  const auto difference = compare("one", "moved").difference;
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->step, 30);
  EXPECT_EQ(difference->rank, std::nullopt);
  EXPECT_THAT(difference->fields, ElementsAre(testing::Field(&RecordDifference::Field::name, "samples")));
}

TEST_F(Comparison, IgnoresAbandonedSteps) {
  run("straight", 4, 1, 100);
  run("resumed", 4, 1, 60, {55, 0, [](StepRecord& record) { *record.loss_bits += 1; }});
  run("resumed", 4, 51, 100);
  EXPECT_FALSE(compare("straight", "resumed").difference);
  run("smaller", 4, 1, 60, {55, 3, [](StepRecord& record) { *record.sample_digest += 1; }});
  run("smaller", 2, 51, 100);  // ranks 2 and 3 are gone; their files still have the abandoned steps
  const auto result = compare("straight", "smaller");
  EXPECT_FALSE(result.difference);
  EXPECT_EQ(result.common_steps, 100);
}

TEST_F(Comparison, ComparesCommonSteps) {
  run("every", 2, 1, 99);
  run("third", 2, 3, 99, {}, 3);
  EXPECT_EQ(compare("every", "third").common_steps, 33);
  EXPECT_FALSE(compare("every", "third").difference);
  run("later", 2, 500, 600);
  EXPECT_EQ(compare("every", "later").common_steps, 0);
}

// Killed between the writes of two ranks: the end of the longer file has no counterpart.
TEST_F(Comparison, IgnoresIncompleteSteps) {
  run("whole", 2, 1, 100);
  run("killed", 2, 1, 100);
  const auto file = directory_.path() / "killed" / record_file_name(1);
  std::filesystem::resize_file(file, 64 * 50 + 17);
  EXPECT_FALSE(compare("whole", "killed").difference);
  EXPECT_EQ(compare("whole", "killed").common_steps, 100) << "rank 0's are there";
  run("one", 1, 1, 100);
  EXPECT_FALSE(compare("one", "killed").difference);
  EXPECT_EQ(compare("one", "killed").common_steps, 49) << "only whole global batches";
}

TEST_F(Comparison, TakesSingleFilesToo) {
  run("a", 2, 1, 10);
  run("b", 2, 1, 10, {5, 1, [](StepRecord& record) { *record.loss_bits += 1; }});
  EXPECT_TRUE(compare("a/records-1.bin", "b/records-1.bin").difference);
  EXPECT_FALSE(compare("a/records-0.bin", "b/records-0.bin").difference);
}

TEST_F(Comparison, NamesMissingFiles) {
  std::filesystem::create_directories(directory_.path() / "empty");
  EXPECT_THROW(compare("empty", "empty"), ConfigError);
  EXPECT_THROW(compare("missing", "missing"), ConfigError);
}

}  // namespace
}  // namespace lockstep
