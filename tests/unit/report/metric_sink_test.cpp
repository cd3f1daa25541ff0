#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <lockstep/base/error.h>
#include <lockstep/report/metric_sink.h>

#include "base/json.h"
#include "base/mapped.h"
#include "base/text.h"
#include "support/captured_stderr.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

class MetricSinkTest : public testing::Test {
 protected:
  std::string text() const { return read_file(fs_, file_); }
  std::vector<Json> rows() const {
    std::vector<std::string> lines = split(text(), '\n');
    EXPECT_EQ(lines.back(), "");
    lines.pop_back();
    return mapped(lines, [](const std::string& line) { return parse_json(line); });
  }
  std::vector<std::int64_t> steps() const {
    return mapped(rows(), [](const Json& row) { return row.at("step").get<std::int64_t>(); });
  }
  void put(std::string_view text) { write_file(fs_, file_, text); }

  TempDir directory_;
  FileSystem& fs_ = real_file_system();
  std::filesystem::path file_ = directory_.path() / "metrics";
};

using JsonlSink = MetricSinkTest;
using CsvSink = MetricSinkTest;

TEST_F(JsonlSink, WritesARowAtOnceWithEveryDigit) {
  const auto sink = jsonl_sink(fs_, file_, 0);
  const double third = 1.0 / 3;
  const MetricValue metrics[] = {
      {"loss", third}, {"lr", 1e-300}, {"bad", std::nan("")}, {"up", HUGE_VAL}, {"down", -HUGE_VAL}};
  sink->write(20, metrics);
  ASSERT_EQ(rows().size(), 1U);  // the sink still lives: nothing waits in a buffer
  const Json row = rows().front();
  EXPECT_EQ(row.at("loss").get<double>(), third);
  EXPECT_EQ(row.at("lr").get<double>(), 1e-300);
  EXPECT_EQ(row.at("bad"), "NaN");
  EXPECT_EQ(row.at("up"), "Infinity");
  EXPECT_EQ(row.at("down"), "-Infinity");
  EXPECT_THAT(row.at("time").get<std::string>(),
              testing::MatchesRegex("20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-9:]{8}\\.[0-9]{3}Z"));
  EXPECT_THAT(text(), testing::StartsWith("{\"step\":20,\"time\":\""));
}

TEST_F(JsonlSink, HasEveryStepOnceAfterAResume) {
  {
    const auto first = jsonl_sink(fs_, file_, 0);
    for (const std::int64_t step : {10, 20, 30}) {
      first->write(step, {});
    }
  }
  const auto second = jsonl_sink(fs_, file_, 20);
  second->write(30, {});
  EXPECT_EQ(steps(), (std::vector<std::int64_t>{10, 20, 30}));
}

// It is read in blocks, and a row may be longer than one.
TEST_F(JsonlSink, ContinuesALargeFile) {
  const auto row = [](int step, std::size_t bytes) {
    return fmt::format("{{\"step\":{},\"text\":\"{}\"}}\n", step, std::string(bytes, 'x'));
  };
  std::string kept = row(1, 3'000'000);
  for (int step = 2; step <= 300; ++step) {
    kept += row(step, 10'000);
  }
  put(kept + row(301, 10'000) + row(302, 3'000'000));
  jsonl_sink(fs_, file_, 300);
  EXPECT_TRUE(text() == kept);
  jsonl_sink(fs_, file_, 1);
  EXPECT_TRUE(text() == row(1, 3'000'000));
}

TEST_F(JsonlSink, TruncatesAnIncompleteRowAndKeepsUnknownRows) {
  put("{\"step\":10}\nnot ours\n{\"step\":20,\"lo");
  jsonl_sink(fs_, file_, 100);
  EXPECT_EQ(text(), "{\"step\":10}\nnot ours\n");
}

TEST_F(CsvSink, WidensTheFileForNewColumns) {
  const auto sink = csv_sink(fs_, file_, 0);
  const MetricValue first[] = {{"loss", 0.5}};
  const MetricValue second[] = {{"val_loss", 0.1 + 0.2}, {"loss", std::nan("")}, {"a,\"b\"", 2}};
  const MetricValue third[] = {{"lr", -HUGE_VAL}};
  sink->write(1, first);
  EXPECT_EQ(text(), "step,loss\n1,0.5\n");
  sink->write(2, second);
  EXPECT_EQ(text(), "step,loss,val_loss,\"a,\"\"b\"\"\"\n1,0.5,,\n2,NaN,0.30000000000000004,2\n");
  sink->write(3, third);
  EXPECT_EQ(text(), "step,loss,val_loss,\"a,\"\"b\"\"\",lr\n1,0.5,,,\n2,NaN,0.30000000000000004,2,\n3,,,,-Infinity\n");
}

// As an editor or a spreadsheet may save it, in the same file.
TEST_F(CsvSink, WidensAFileWithoutALastLineFeed) {
  const auto sink = csv_sink(fs_, file_, 0);
  const MetricValue first[] = {{"a", 2}};
  const MetricValue second[] = {{"a", 3}, {"b", 4}};
  sink->write(1, first);
  std::ofstream(file_) << "step,a\n1,2";
  sink->write(2, second);
  EXPECT_EQ(text(), "step,a,b\n1,2,\n2,3,4\n");
}

TEST_F(CsvSink, ContinuesAFileWithItsColumns) {
  put("step,loss,\"a,\"\"b\"\"\"\n10,0.5,1\n20,0.25,2\n30,0.125,3\n40,0.1");
  const auto sink = csv_sink(fs_, file_, 20);
  const MetricValue metrics[] = {{"a,\"b\"", 4}, {"loss", 1}};
  sink->write(30, metrics);
  EXPECT_EQ(text(), "step,loss,\"a,\"\"b\"\"\"\n10,0.5,1\n20,0.25,2\n30,1,4\n");
}

TEST_F(CsvSink, StartsOverAfterAnIncompleteHeader) {
  put("step,lo");
  const auto sink = csv_sink(fs_, file_, 0);
  sink->write(1, {});
  EXPECT_EQ(text(), "step\n1\n");
}

TEST_F(CsvSink, SaysThatItsFileWasDeletedAndBeginsItAgain) {
  const auto sink = csv_sink(fs_, file_, 0);
  const MetricValue metrics[] = {{"loss", 0.5}};
  sink->write(1, metrics);
  std::filesystem::remove(file_);
  CapturedStderr captured;
  sink->write(2, metrics);
  EXPECT_THAT(captured.text(),
              HasSubstr(file_.string() + " was deleted or replaced; the run goes on without these rows"));
  sink->write(3, metrics);
  EXPECT_EQ(text(), "step,loss\n3,0.5\n");
}

// As an editor, `sed -i` or rsync saves it.
TEST_F(CsvSink, GoesOnInTheFileThatReplacesItsOwn) {
  const MetricValue metrics[] = {{"loss", 0.5}};
  for (const bool is_csv : {true, false}) {
    const auto sink = is_csv ? csv_sink(fs_, file_, 0) : jsonl_sink(fs_, file_, 0);
    sink->write(1, metrics);
    const std::string before = text();
    write_file(fs_, file_, before);
    CapturedStderr captured;
    sink->write(2, metrics);
    EXPECT_THAT(captured.text(), HasSubstr("was deleted or replaced"));
    EXPECT_EQ(text(), before);
    sink->write(3, metrics);
    EXPECT_TRUE(text().starts_with(before) && text().size() > before.size()) << text();
    std::filesystem::remove(file_);
  }
}

// A file of another kind with this name neither ends a run nor is lost.
template <class Open>
void expect_set_aside(const std::filesystem::path& file, const Open& open) {
  CapturedStderr captured;
  open()->write(1, {});
  EXPECT_THAT(captured.text(), HasSubstr("moved it to metrics.1"));
  EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(file)));
  EXPECT_GT(std::filesystem::file_size(file), 0U);
}

TEST_F(CsvSink, RenamesAFileOfAnotherProgram) {
  const auto aside = file_.string() + ".1";
  for (const std::string noise : {"name,age\nx,1\n", "stepper,age\n1,2\n", "\xff\xfe\n\n"}) {
    put(noise);
    expect_set_aside(file_, [&] { return csv_sink(fs_, file_, 0); });
    EXPECT_EQ(read_file(fs_, aside), noise);
    EXPECT_EQ(text(), "step\n1\n");
    std::filesystem::remove(aside);
  }
}

TEST_F(JsonlSink, RenamesAFileOfAnotherProgram) {
  put("\xff\xfe not JSON");
  expect_set_aside(file_, [&] { return jsonl_sink(fs_, file_, 0); });
  EXPECT_EQ(read_file(fs_, file_.string() + ".1"), "\xff\xfe not JSON");
}

TEST_F(JsonlSink, RenamesWhatIsNotAFile) {
  const auto aside = file_.string() + ".1";
  const auto elsewhere = directory_.path() / "elsewhere";
  const std::pair<const char*, std::function<void()>> cases[] = {
      {"directory", [&] { std::filesystem::create_directory(file_); }},
      {"pipe", [&] { ASSERT_EQ(mkfifo(file_.c_str(), 0600), 0); }},
      {"link", [&] { std::filesystem::create_symlink(elsewhere, file_); }}};
  for (const auto& [name, make] : cases) {
    SCOPED_TRACE(name);
    make();
    expect_set_aside(file_, [&] { return jsonl_sink(fs_, file_, 0); });
    EXPECT_TRUE(std::filesystem::exists(std::filesystem::symlink_status(aside)));
    std::filesystem::remove(file_);
    std::filesystem::remove(aside);
  }
  EXPECT_FALSE(std::filesystem::exists(elsewhere)) << "links are not followed";
}

TEST_F(JsonlSink, RejectsTwoMetricsWithOneName) {
  const auto sink = jsonl_sink(fs_, file_, 0);
  const auto csv = csv_sink(fs_, directory_.path() / "csv", 0);
  for (const char* name : {"loss", "step", "time"}) {
    const MetricValue metrics[] = {{"loss", 1}, {name, 2}};
    for (MetricSink* each : {sink.get(), csv.get()}) {
      EXPECT_THAT(
          [&] { each->write(1, metrics); },
          testing::ThrowsMessage<Error>(HasSubstr(fmt::format("two metrics of a report are called '{}'", name))));
    }
  }
  const MetricValue printed_alike[] = {{"a\nb", 1}, {"ab", 2}};
  EXPECT_THAT([&] { csv->write(1, printed_alike); },
              testing::ThrowsMessage<Error>(HasSubstr("two metrics of a report are called 'ab'")));
}

}  // namespace
}  // namespace lockstep
