#include "report/metric_rows.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/report/metric_sink.h>

#include "base/mapped.h"
#include "base/text.h"
#include "base/wall_clock.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

using testing::ElementsAre;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<std::string> names(const MetricRows& rows) { return mapped(rows.series, &MetricSeries::name); }

class WrittenBySinks : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<MetricSink> sink(std::int64_t resume_step) const {
    FileSystem& fs = real_file_system();
    const std::filesystem::path file = temp_.path() / GetParam();
    return file.extension() == ".csv" ? csv_sink(fs, file, resume_step) : jsonl_sink(fs, file, resume_step);
  }
  std::optional<MetricRows> read() const { return read_metric_rows(real_file_system(), temp_.path()); }

  TempDir temp_;
};

TEST_P(WrittenBySinks, AreReadBack) {
  EXPECT_FALSE(read());
  const std::string strange = "a \"b\", </script>";
  {
    const auto out = sink(0);
    out->write(10, std::vector<MetricValue>{{"loss", 2.5}, {strange, -1e-300}});
    out->write(20, std::vector<MetricValue>{{"loss", kNaN}, {strange, kInfinity}});
    out->write(20, std::vector<MetricValue>{{"val_loss", 2.75}});
    out->write(30, std::vector<MetricValue>{{"loss", 1.0 / 3}, {strange, -kInfinity}});
  }
  const auto rows = read();
  ASSERT_TRUE(rows);
  EXPECT_THAT(names(*rows), ElementsAre("loss", strange, "val_loss"));
  EXPECT_THAT(rows->series[0].steps, ElementsAre(10, 20, 30));
  EXPECT_THAT(rows->series[0].values, ElementsAre(2.5, testing::NanSensitiveDoubleEq(kNaN), 1.0 / 3));
  EXPECT_THAT(rows->series[1].values, ElementsAre(-1e-300, kInfinity, -kInfinity));
  EXPECT_THAT(rows->series[2].steps, ElementsAre(20));
  EXPECT_EQ(rows->last_step, 30);
  EXPECT_FALSE(rows->cut_off);
  EXPECT_EQ(rows->damaged, 0);
}

TEST_P(WrittenBySinks, HaveEveryStepOnceAfterTwoResumes) {
  for (const std::int64_t resumed : {0, 20, 30}) {
    const auto out = sink(resumed);
    for (std::int64_t step = resumed + 10; step <= resumed + 30; step += 10) {
      out->write(step, std::vector<MetricValue>{{"loss", static_cast<double>(resumed)}});
    }
  }
  const auto rows = read();
  ASSERT_TRUE(rows);
  EXPECT_THAT(rows->find("loss")->steps, ElementsAre(10, 20, 30, 40, 50, 60));
  EXPECT_THAT(rows->find("loss")->values, ElementsAre(0, 0, 20, 30, 30, 30));
}

// The first start ended before its first save.
TEST_P(WrittenBySinks, HaveTheRowOfStep0OnceAfterTwoStartsWithoutACheckpoint) {
  for (const double loss : {2.5, 2.25}) {
    const auto out = sink(-1);
    out->write(0, std::vector<MetricValue>{{"val_loss", loss}});
    out->write(10, std::vector<MetricValue>{{"loss", loss}});
  }
  sink(0)->write(10, std::vector<MetricValue>{{"loss", 2}});
  const auto rows = read();
  ASSERT_TRUE(rows);
  EXPECT_THAT(rows->find("val_loss")->steps, ElementsAre(0)) << "a checkpoint of step 0 keeps it";
  EXPECT_THAT(rows->find("val_loss")->values, ElementsAre(2.25));
  EXPECT_THAT(rows->find("loss")->values, ElementsAre(2));
}

TEST_P(WrittenBySinks, AreReadWithoutAnIncompleteLastLine) {
  sink(0)->write(10, std::vector<MetricValue>{{"loss", 2.5}});
  sink(10)->write(20, std::vector<MetricValue>{{"loss", 2.25}});
  const auto file = temp_.path() / GetParam();
  const std::string whole = read_text(file);
  write_text(file, whole.substr(0, whole.size() - 3));  // a process that was killed in its write
  const auto rows = read();
  ASSERT_TRUE(rows);
  EXPECT_TRUE(rows->cut_off);
  EXPECT_EQ(rows->damaged, 0);
  EXPECT_THAT(rows->find("loss")->steps, ElementsAre(10));
  write_text(file, whole);
  EXPECT_THAT(read()->find("loss")->steps, ElementsAre(10, 20));
}

INSTANTIATE_TEST_SUITE_P(Files, WrittenBySinks, testing::Values("metrics.jsonl", "metrics.csv"),
                         [](const auto& given) { return std::string(given.param).substr(8); });

TEST(MetricRows, LeavesOutAndCountsDamagedLines) {
  const MetricRows rows = parse_metric_lines(
      "{\"step\":1,\"loss\":1}\n"
      "{\"step\":2,\"lo\n"
      "\n"
      "{\"loss\":7}\n"
      "{\"step\":3,\"loss\":3,\"other\":{\"step\":9,\"loss\":9},\"list\":[1,2]}\n");
  EXPECT_EQ(rows.damaged, 3);
  EXPECT_THAT(names(rows), ElementsAre("loss"));
  EXPECT_THAT(rows.series[0].values, ElementsAre(1, 3));
}

// A page that draws steps beyond would never end.
TEST(MetricRows, LeaveOutStepsThatAPageCannotDraw) {
  const MetricRows rows = parse_metric_table(
      "step,loss\n1,1\n1000000000000000,2\n1000000000000001,3\n9223372036854775807,4\n-9223372036854775808,5\n");
  EXPECT_EQ(rows.damaged, 3);
  EXPECT_THAT(rows.find("loss")->values, ElementsAre(1, 2));
  EXPECT_EQ(rows.last_step, 1'000'000'000'000'000);
  const MetricRows lines =
      parse_metric_lines("{\"step\":1000000000000000,\"a\":1}\n{\"step\":1000000000000001,\"a\":2}\n");
  EXPECT_EQ(lines.damaged, 1);
  EXPECT_THAT(lines.find("a")->values, ElementsAre(1)) << "the same limit";
  const auto times = parse_rank_times(
      "step,rank,step_ms,data_ms\n10,0,100,0\n9223372036854775807,0,100,0\n-9223372036854775808,0,100,0\n20,0,100,0\n");
  ASSERT_EQ(times.size(), 1U);
  EXPECT_DOUBLE_EQ(times[0].seconds[1].second, 2);
}

TEST(MetricRows, SortsStepsThatDoNotAscend) {
  const MetricRows rows = parse_metric_lines("{\"step\":5,\"a\":5}\n{\"step\":1,\"a\":1}\n{\"step\":3,\"a\":3}\n");
  EXPECT_THAT(rows.series[0].steps, ElementsAre(1, 3, 5));
  EXPECT_THAT(rows.series[0].values, ElementsAre(1, 3, 5));
}

TEST(MetricRows, MeasuresTheTimePerStep) {
  const MetricRows rows = parse_metric_lines(
      "{\"step\":10,\"time\":\"2026-11-21T10:00:00.000Z\",\"loss\":1}\n"
      "{\"step\":30,\"time\":\"2026-11-21T10:00:05.000Z\",\"loss\":1}\n");
  EXPECT_DOUBLE_EQ(rows.step_seconds(0), 0.25);
  EXPECT_EQ(rows.step_seconds(rows.last_time), 0) << "one row is not enough";
  EXPECT_DOUBLE_EQ(rows.last_time, *parse_utc_time("2026-11-21T10:00:05.000Z"));
}

TEST(MetricRows, ReadsOnlyTheEndOfALargeFile) {
  const TempDir temp;
  const auto out = jsonl_sink(real_file_system(), temp.path() / "metrics.jsonl", 0);
  for (std::int64_t step = 1; step <= 100; ++step) {
    out->write(step, std::vector<MetricValue>{{"loss", 1}});
  }
  const auto end = read_metric_rows(real_file_system(), temp.path(), 1000);
  EXPECT_TRUE(end->partial);
  EXPECT_EQ(end->damaged, 0);
  EXPECT_EQ(end->last_step, 100);
  EXPECT_GT(end->find("loss")->steps.size(), 5U);
  EXPECT_LT(end->find("loss")->steps.size(), 100U);
  EXPECT_FALSE(read_metric_rows(real_file_system(), temp.path())->partial);
}

TEST(MetricRows, AreThoseOfTheFileThatIsStillWritten) {
  const TempDir temp;
  const auto write = [&](const auto& sink, std::int64_t step) {
    sink->write(step, std::vector<MetricValue>{{"a", 1}});
  };
  const auto lines = temp.path() / "metrics.jsonl";
  const auto table = temp.path() / "metrics.csv";
  write(jsonl_sink(real_file_system(), lines, 0), 30);
  write(csv_sink(real_file_system(), table, 0), 64);
  const auto last_step = [&] { return read_metric_rows(real_file_system(), temp.path())->last_step; };
  EXPECT_EQ(last_step(), 30) << "both were written at the same time";
  std::filesystem::last_write_time(table, std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  EXPECT_EQ(last_step(), 64);
  std::filesystem::last_write_time(lines, std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  EXPECT_EQ(last_step(), 30);
  write_text(lines, "");
  EXPECT_EQ(last_step(), 64) << "no row";
  std::filesystem::remove(lines);
  std::filesystem::create_symlink("metrics.csv", lines);  // is not read
  EXPECT_EQ(last_step(), 64);
  std::filesystem::remove(table);
  EXPECT_THROW(last_step(), IoError);
}

TEST(MetricRows, ReadsALastRowThatIsLongerThanTheEnd) {
  const TempDir temp;
  const auto out = jsonl_sink(real_file_system(), temp.path() / "metrics.jsonl", 0);
  const std::string name(1000, 'x');
  for (std::int64_t step = 1; step <= 5; ++step) {
    out->write(step, std::vector<MetricValue>{{name, 1}});
  }
  const auto end = read_metric_rows(real_file_system(), temp.path(), 100);
  EXPECT_TRUE(end->partial);
  EXPECT_THAT(end->find(name)->steps, ElementsAre(5));
  const auto all = read_metric_rows(real_file_system(), temp.path(), 4000);
  EXPECT_THAT(all->find(name)->steps, ElementsAre(3, 4, 5)) << "the control: these rows fit";
}

TEST(MetricRows, ReadsAFileOfOneLongRow) {
  const TempDir temp;
  const std::string name(1000, 'x');
  jsonl_sink(real_file_system(), temp.path() / "metrics.jsonl", 0)->write(7, std::vector<MetricValue>{{name, 1}});
  const auto rows = read_metric_rows(real_file_system(), temp.path(), 100);
  EXPECT_FALSE(rows->partial);
  EXPECT_EQ(rows->last_step, 7);
}

TEST(RankTimes, AreSumsOverTheSteps) {
  const auto times = parse_rank_times(
      "step,rank,step_ms,data_ms,forward_ms\n"
      "10,0,100,20,70\n10,1,100,50,50\n30,0,200,0,200\n30,1,200,100,60\n40,0,1");
  ASSERT_EQ(times.size(), 2U);
  using Part = std::pair<std::string, double>;
  EXPECT_THAT(times[0].seconds, ElementsAre(Part("data", 0.2), Part("forward", 4.7),
                                            testing::Pair("other", testing::DoubleNear(0.1, 1e-9))));
  EXPECT_EQ(times[1].rank, 1);
  EXPECT_THAT(times[1].seconds[0], Part("data", 2.5));
}

TEST(RankTimes, CountTheStepsOfTheColumn) {
  const auto seconds = [](std::string_view text) { return parse_rank_times(text).at(0).seconds; };
  const auto first = seconds("step,rank,steps,step_ms,data_ms\n20,0,20,100,25\n25,0,5,100,25\n");
  ASSERT_EQ(first.size(), 2U);
  EXPECT_EQ(first[0].first, "data");
  EXPECT_DOUBLE_EQ(first[0].second, 0.625);
  EXPECT_DOUBLE_EQ(first[1].second, 1.875);
  const auto off_and_on = seconds("step,rank,steps,step_ms,data_ms\n20,0,20,100,0\n40,0,20,100,0\n14020,0,20,100,0\n");
  EXPECT_DOUBLE_EQ(off_and_on[1].second, 6);
  // An earlier version has begun the file.
  const auto continued = seconds("step,rank,step_ms,data_ms,steps\n20,0,100,0,\n40,0,100,0,\n140,0,100,0,10\n");
  ASSERT_EQ(continued.size(), 2U);
  EXPECT_DOUBLE_EQ(continued[1].second, 5);
}

TEST(RankTimes, OfARankThatCameWithAResumeBeginThere) {
  const auto times = parse_rank_times(
      "step,rank,step_ms,data_ms\n"
      "10,0,100,0\n10,1,100,0\n20,0,100,0\n30,0,100,0\n30,1,100,0\n30,2,100,0\n");
  ASSERT_EQ(times.size(), 3U);
  EXPECT_DOUBLE_EQ(times[0].seconds[1].second, 3);
  EXPECT_DOUBLE_EQ(times[1].seconds[1].second, 2) << "it made no steps between 10 and 20";
  EXPECT_DOUBLE_EQ(times[2].seconds[1].second, 1);
}

TEST(RankTimes, ThatWereSwitchedOnLateCountNoEarlierSteps) {
  const auto times = parse_rank_times("step,rank,step_ms,data_ms\n100020,0,100,0\n100040,0,100,0\n");
  ASSERT_EQ(times.size(), 1U);
  EXPECT_DOUBLE_EQ(times[0].seconds[1].second, 4);
}

MetricSeries waves(std::size_t count) {
  MetricSeries series{.name = "loss"};
  for (std::size_t i = 0; i < count; ++i) {
    series.steps.push_back(static_cast<std::int64_t>(i));
    series.values.push_back(std::sin(static_cast<double>(i) / 1000));
  }
  return series;
}

TEST(Thin, KeepsExtremesAndGaps) {
  MetricSeries series = waves(200'000);
  series.values[123'457] = 50;
  series.values[77'777] = -60;
  series.values[150'001] = kNaN;
  series.values[150'003] = 2;
  series.values[3] = kInfinity;
  const ThinSeries few = thin(series, 2000);
  EXPECT_LE(few.steps.size(), 2000U);
  EXPECT_GT(few.steps.size(), 1000U);
  EXPECT_TRUE(std::ranges::is_sorted(few.steps));
  const auto value_at = [&](std::int64_t step) {
    const auto found = std::ranges::find(few.steps, step);
    return found == few.steps.end() ? 0.0 : few.values[static_cast<std::size_t>(found - few.steps.begin())];
  };
  EXPECT_EQ(value_at(123'457), 50);
  EXPECT_EQ(value_at(77'777), -60);
  EXPECT_EQ(value_at(150'003), 2);
  EXPECT_EQ(few.steps.front(), 0);
  EXPECT_EQ(few.steps.back(), 199'999);
  ASSERT_EQ(few.gaps.size(), 2U);
  EXPECT_EQ(few.gaps[0], std::pair(std::int64_t{3}, kInfinity));
  EXPECT_EQ(few.gaps[1].first, 150'001);
  EXPECT_TRUE(std::isnan(value_at(150'001)));
}

TEST(Thin, KeepsAllOfAShortSeries) {
  const MetricSeries series = waves(100);
  const ThinSeries all = thin(series, 100);
  EXPECT_EQ(all.steps, series.steps);
  EXPECT_EQ(all.values, series.values);
  EXPECT_TRUE(thin({}, 100).steps.empty());
}

TEST(UtcTime, IsReadBack) {
  EXPECT_DOUBLE_EQ(parse_utc_time("1970-01-02T00:00:01.500Z").value_or(0), 86401.5);
  EXPECT_NEAR(parse_utc_time(utc_time()).value_or(0), unix_time(), 5);
  for (const char* wrong :
       {"", "2026-11-21", "2026-13-21T10:00:00.000Z", "2026-11-21T10:00:00.000+", "x026-11-21T10:00:00.000Z"}) {
    EXPECT_FALSE(parse_utc_time(wrong)) << wrong;
  }
}

}  // namespace
}  // namespace lockstep
