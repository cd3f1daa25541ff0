// Report files on disks with temporary or permanent errors: the run does not end, no row is incomplete, and missing
// rows are reported.
#include <cerrno>
#include <regex>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/report/metric_sink.h>

#include "base/event_log.h"
#include "base/json.h"
#include "base/text.h"
#include "report/step_records.h"
#include "support/captured_stderr.h"
#include "support/memory_file_system.h"
#include "support/sweep.h"

namespace lockstep {
namespace {

constexpr std::int64_t kSteps = 60;
const std::filesystem::path kFile = "/report";

/// Writes every step and reads the steps back. Throws if the file is damaged.
struct Report {
  const char* name;
  std::function<void(FileSystem& fs)> write_all;
  std::function<std::set<std::int64_t>(const std::vector<std::string>& lines)> steps;  // nullptr: records
};

std::set<std::int64_t> json_steps(const std::vector<std::string>& lines) {
  std::set<std::int64_t> steps;
  for (const std::string& line : lines) {
    steps.insert(parse_json(line).at("step").get<std::int64_t>());
  }
  return steps;
}

std::set<std::int64_t> csv_steps(const std::vector<std::string>& lines) {
  std::set<std::int64_t> steps;
  for (const std::string& line : lines) {
    if (std::count(line.begin(), line.end(), ',') != std::count(lines[0].begin(), lines[0].end(), ',')) {
      throw std::runtime_error("a row of other columns than the header: " + line);
    }
    if (&line != &lines[0]) {
      steps.insert(parse_int(line.substr(0, line.find(','))).value());
    }
  }
  return steps;
}

void write_metrics(MetricSink& sink) {
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    const MetricValue metrics[] = {{"loss", 1.0 / static_cast<double>(step)},
                                   {step > kSteps / 2 ? "late" : "early", 0.5}};
    sink.write(step, metrics);
  }
}

const std::vector<Report>& reports() {
  static const std::vector<Report> all = {
      {"events",
       [](FileSystem& fs) {
         EventLog log(fs, kFile);
         for (std::int64_t step = 1; step <= kSteps; ++step) {
           log.write("save", {{"step", step}});
         }
       },
       json_steps},
      {"metrics.jsonl", [](FileSystem& fs) { write_metrics(*jsonl_sink(fs, kFile, 0)); }, json_steps},
      {"metrics.csv", [](FileSystem& fs) { write_metrics(*csv_sink(fs, kFile, 0)); }, csv_steps},
      {"records",
       [](FileSystem& fs) {
         RecordWriter writer(fs, kFile, 0, 1, {});
         for (std::int64_t step = 1; step <= kSteps; ++step) {
           writer.add({.step = step});
           if (step % 7 == 0) {
             writer.flush();
           }
         }
       },
       nullptr}};
  return all;
}

std::set<std::int64_t> steps_of(const Report& report, FileSystem& fs) {
  std::set<std::int64_t> steps;
  if (!fs.exists(kFile)) {
    return steps;
  }
  if (report.steps == nullptr) {
    for (const auto& entry : read_records(fs, kFile).entries) {
      steps.insert(entry.record.step);
    }
    return steps;
  }
  const std::string text = read_file(fs, kFile);
  auto lines = split(text.substr(0, text.rfind('\n') + 1), '\n');  // a reader ignores a row that is being written
  lines.pop_back();
  // The supervisor also appends to the events, so an incomplete line stays, as a separate line.
  if (std::string_view(report.name) == "events") {
    std::erase_if(lines, [](const std::string& line) { return !line.ends_with('}'); });
  }
  return report.steps(lines);
}

std::int64_t missing_in(const std::string& log) {
  static const std::regex pattern("missing [a-z]+: ([0-9]+)");
  std::int64_t missing = 0;
  for (std::sregex_iterator match(log.begin(), log.end(), pattern); match != std::sregex_iterator(); ++match) {
    missing += std::stoll((*match)[1]);
  }
  return missing;
}

std::int64_t count(const std::string& text, const std::string& what) {
  std::int64_t found = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) {
    ++found;
  }
  return found;
}

/// Whether the run continued, the file contains only complete entries, and missing ones were counted.
bool holds(const Report& report, int operation, int error, int times) {
  MemoryFileSystem fs;
  fs.fail_at(operation, error, times);
  CapturedStderr captured;
  report.write_all(fs);
  const std::string log = captured.text();
  const bool reached = fs.operations() > operation;
  const bool recovered = fs.operations() > operation + times;
  std::set<std::int64_t> steps;
  try {
    steps = steps_of(report, fs);
  } catch (const DataError&) {  // the disk rejected even the first record
    return !recovered && missing_in(log) == kSteps;
  }
  const std::int64_t told = static_cast<std::int64_t>(steps.size()) + missing_in(log);
  // If a write of several records fails, some of them may be complete: they can be read although they are reported as
  // missing.
  const bool adds_up = told == kSteps || (told > kSteps && report.steps == nullptr && !recovered);
  return adds_up && (!recovered || steps.contains(kSteps)) &&
         count(log, "the run goes on without") == (reached ? 1 : 0);
}

int operations(const Report& report) {
  MemoryFileSystem fs;
  report.write_all(fs);
  return fs.operations();
}

TEST(ReportOnARefusingDisk, NeverEndsTheRunAndSaysWhatIsMissing) {
  for (const Report& report : reports()) {
    EXPECT_TRUE(holds(report, operations(report), EIO, 1)) << report.name << ": the control, without a failure";
    Sweep sweep(std::string("refused operations, ") + report.name);
    for (const int error : {ENOSPC, EIO, EROFS}) {
      for (const int times : {1, 2, 9, 1'000'000}) {
        for (int operation = 0; operation < operations(report); operation += times == 1 ? 1 : 5) {
          const bool held = holds(report, operation, error, times);
          sweep.count(held);
          EXPECT_TRUE(held) << report.name << ": operation " << operation << ", errno " << error << ", " << times;
        }
      }
    }
    EXPECT_EQ(sweep.lost(), 0);
    EXPECT_GE(sweep.points(), 50);
  }
}

// Control: the same operations on ordinary files.
TEST(ReportOnARefusingDisk, WouldEndTheRunOrTearARowWithoutItsGuard) {
  const auto write_plainly = [](FileSystem& fs, bool go_on) {
    const auto file = fs.open_append(kFile);
    for (std::int64_t step = 1; step <= kSteps; ++step) {
      const std::string line = dump_json({{"step", step}}) + "\n";
      try {
        file->append(std::as_bytes(std::span(line)));
      } catch (const IoError&) {
        if (!go_on) {
          throw;
        }
      }
    }
  };
  MemoryFileSystem fs;
  fs.fail_at(20, ENOSPC);
  EXPECT_THROW(write_plainly(fs, /*go_on=*/false), IoError);
  MemoryFileSystem other;
  other.fail_at(20, ENOSPC);
  write_plainly(other, /*go_on=*/true);
  EXPECT_THROW(json_steps(split(read_file(other, kFile), '\n')), std::exception) << "two rows in one line";
}

}  // namespace
}  // namespace lockstep
