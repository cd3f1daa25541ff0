// The bytes of an event file, decoded independently of the writer; tests/parity/tensorboard_parity.py reads them with
// TensorBoard's own reader.
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/report/metric_sink.h>

#include "base/crc32c.h"
#include "support/captured_stderr.h"
#include "support/message_of.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::SizeIs;
using testing::StartsWith;

template <class T>
T number(std::string_view bytes) {
  T value{};
  std::memcpy(&value, bytes.data(), sizeof value);  // this machine is little-endian
  return value;
}

std::uint32_t masked(std::string_view bytes) {
  const std::uint32_t crc = crc32c_portable(std::as_bytes(std::span(bytes)));
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

/// Field number -> values: bytes of a length-delimited field, else 4 or 8 bytes, or the decimal digits of a varint.
std::multimap<int, std::string> fields(std::string_view bytes) {
  std::multimap<int, std::string> found;
  const auto varint = [&] {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes.at(0));
      bytes.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) {
        return value;
      }
    }
  };
  while (!bytes.empty()) {
    const std::uint64_t key = varint();
    const std::uint64_t type = key & 7;
    if (type == 0) {
      found.emplace(key >> 3, std::to_string(varint()));
      continue;
    }
    const std::size_t size = type == 2 ? varint() : type == 1 ? 8 : 4;
    found.emplace(key >> 3, bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  return found;
}

std::string field(std::string_view bytes, int number) {
  const auto all = fields(bytes);
  const auto found = all.find(number);
  return found == all.end() ? std::string() : found->second;
}

class TensorboardFiles : public testing::Test {
 protected:
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> found;
    for (const std::string& name : real_file_system().list(dir_.path())) {
      EXPECT_THAT(name, StartsWith("events.out.tfevents."));
      found.push_back(dir_.path() / name);
    }
    return found;
  }

  /// The events of a file, with all checksums checked.
  static std::vector<std::string> events(const std::filesystem::path& file) {
    const std::string bytes = read_file(real_file_system(), file);
    std::vector<std::string> found;
    for (std::string_view rest = bytes; !rest.empty();) {
      const auto size = number<std::uint64_t>(rest);
      EXPECT_EQ(number<std::uint32_t>(rest.substr(8)), masked(rest.substr(0, 8)));
      found.emplace_back(rest.substr(12, size));
      EXPECT_EQ(number<std::uint32_t>(rest.substr(12 + size)), masked(found.back()));
      rest.remove_prefix(16 + size);
    }
    return found;
  }

  TempDir dir_;
};

// TensorBoard reads them in this order.
TEST_F(TensorboardFiles, AreNamedInTheOrderOfTheirStartsAlsoIfTheClockWasSetBack) {
  const std::string ahead = "events.out.tfevents.4000000000.lockstep";
  write_file(real_file_system(), dir_.path() / ahead, "");
  for (int start = 0; start < 2; ++start) {
    tensorboard_sink(real_file_system(), dir_.path(), /*resume_step=*/0, "");
  }
  ASSERT_EQ(files().size(), 3U);
  EXPECT_EQ(files()[0].filename(), ahead);
  EXPECT_EQ(files()[1].filename(), "events.out.tfevents.4000000001.lockstep");
}

TEST_F(TensorboardFiles, HoldVersionStartConfigurationAndScalars) {
  const auto sink = tensorboard_sink(real_file_system(), dir_.path(), /*resume_step=*/300, "lr = 1");
  const std::vector<MetricValue> metrics{{"loss", 0.5}, {"lr", 1e-3}};
  sink->write(320, metrics);
  ASSERT_EQ(files().size(), 1U);
  const auto found = events(files()[0]);
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(field(found[0], 3), "brain.Event:2");
  EXPECT_GT(number<double>(field(found[0], 1)), 1.7e9) << "seconds since 1970";
  EXPECT_EQ(field(found[1], 2), "301");
  EXPECT_EQ(field(field(found[1], 7), 1), "1");
  const std::string config = field(field(found[2], 5), 1);
  EXPECT_EQ(field(config, 1), "config");
  EXPECT_EQ(field(field(config, 8), 8), "lr = 1");
  EXPECT_EQ(field(found[3], 2), "320");
  std::vector<std::string> row;
  for (const auto& [key, value] : fields(field(found[3], 5))) {
    row.push_back(field(value, 1) + " " + std::to_string(number<float>(field(value, 2))));
  }
  EXPECT_THAT(row, ElementsAre("loss 0.500000", "lr 0.001000"));
}

TEST_F(TensorboardFiles, HoldHistogramsTextsImagesAndSettings) {
  const auto sink = tensorboard_sink(real_file_system(), dir_.path(), 0, "");
  sink->write_histogram(7, "weights", {.min = -1, .max = 2, .count = 5, .sum = 3, .limits = {0, 2}, .counts = {2, 3}});
  sink->write_text(8, "sample", "*hello*");
  sink->write_image(9, "picture", {.width = 2, .height = 1, .channels = 3, .pixels = "abcdef"});
  const std::vector<RunSetting> settings{{"optim.lr", "0.1"}};
  const std::vector<MetricValue> last{{"loss", 0.5}};
  sink->finish(settings, last);
  const auto found = events(files().at(0));
  ASSERT_EQ(found.size(), 9U);
  const auto value = [&](std::size_t event) { return field(field(found[event], 5), 1); };
  const std::string histogram = field(value(3), 5);
  EXPECT_EQ(field(found[3], 2), "7");
  EXPECT_EQ(number<double>(field(histogram, 2)), 2);
  EXPECT_EQ(number<double>(field(histogram, 7).substr(8)), 3);
  EXPECT_EQ(field(field(value(4), 8), 8), "*hello*");
  const std::string image = field(value(5), 4);
  EXPECT_EQ(field(image, 2), "2");
  EXPECT_THAT(field(image, 4), StartsWith("\x89PNG\r\n\x1a\n"));
  EXPECT_THAT(field(image, 4), HasSubstr("abcdef"));
  const auto plugin_data = [&](std::size_t event) { return field(field(field(value(event), 9), 1), 2); };
  EXPECT_EQ(field(value(6), 1), "_hparams_/experiment");
  EXPECT_EQ(field(field(plugin_data(6), 2), 4).substr(2, 8), "optim.lr");
  EXPECT_EQ(field(value(7), 1), "_hparams_/session_start_info");
  EXPECT_EQ(field(field(field(plugin_data(7), 3), 1), 1), "optim.lr");
  EXPECT_EQ(field(value(8), 1), "_hparams_/session_end_info");
}

// google.protobuf.Value: a number is the field 2, a text 3, true or false 4.
TEST_F(TensorboardFiles, HaveNumbersTextsTrueAndFalseAsSettings) {
  const auto sink = tensorboard_sink(real_file_system(), dir_.path(), 0, "");
  const std::vector<RunSetting> settings{{"lr", "0.25"},
                                         {"steps", "0"},
                                         {"fresh", "false"},
                                         {"plot", "true"},
                                         {.name = "devices", .text = "2", .is_text = true},
                                         {.name = "word", .text = "true", .is_text = true},
                                         {"limit", ""},
                                         {"clip", "inf"}};
  sink->finish(settings, {});
  const auto found = events(files().at(0));
  const auto plugin_data = [&](std::size_t event) {
    return field(field(field(field(field(found.at(event), 5), 1), 9), 1), 2);
  };
  std::map<std::string, std::string> types;
  for (const auto& [key, info] : fields(field(plugin_data(3), 2))) {
    types[field(info, 1)] = field(info, 4);
  }
  const std::string text = "1";
  const std::string boolean = "2";
  const std::string float64 = "3";
  EXPECT_THAT(types,
              ElementsAre(Pair("clip", float64), Pair("devices", text), Pair("fresh", boolean), Pair("limit", float64),
                          Pair("lr", float64), Pair("plot", boolean), Pair("steps", float64), Pair("word", text)));
  std::map<std::string, std::string> values;
  for (const auto& [key, setting] : fields(field(plugin_data(4), 3))) {
    if (key == 1) {
      values[field(setting, 1)] = field(setting, 2);
    }
  }
  EXPECT_THAT(values, SizeIs(6)) << "TensorBoard refuses infinity, and an empty text is no number";
  EXPECT_EQ(number<double>(field(values["lr"], 2)), 0.25);
  EXPECT_EQ(number<double>(field(values["steps"], 2)), 0);
  EXPECT_EQ(field(values["fresh"], 4), "0");
  EXPECT_EQ(field(values["plot"], 4), "1");
  EXPECT_EQ(field(values["devices"], 3), "2");
  EXPECT_EQ(field(values["word"], 3), "true");
}

TEST_F(TensorboardFiles, AreNewForEachAttempt) {
  const std::vector<MetricValue> metrics{{"loss", 0.5}};
  for (int attempt = 0; attempt < 3; ++attempt) {
    tensorboard_sink(real_file_system(), dir_.path(), attempt, "")->write(attempt + 1, metrics);
  }
  ASSERT_EQ(files().size(), 3U);
  for (const auto& file : files()) {
    EXPECT_EQ(events(file).size(), 4U);
  }
}

TEST_F(TensorboardFiles, BeginAgainAfterTheyWereDeleted) {
  const std::vector<MetricValue> metrics{{"loss", 0.5}};
  const auto sink = tensorboard_sink(real_file_system(), dir_.path(), 0, "");
  std::filesystem::remove(files().at(0));
  CapturedStderr captured;
  sink->write(1, metrics);
  sink->write(2, metrics);
  EXPECT_THAT(captured.text(), HasSubstr("missing rows: 1"));
  sink->write(3, metrics);
  const auto found = events(files().at(0));
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(field(found[0], 2), "2");
  EXPECT_EQ(field(found[1], 2), "3");
}

TEST_F(TensorboardFiles, RefuseTwoMetricsOfOneName) {
  const auto sink = tensorboard_sink(real_file_system(), dir_.path(), 0, "");
  const std::vector<MetricValue> metrics{{"loss", 0.5}, {"loss", 0.5}};
  EXPECT_THAT(message_of([&] { sink->write(1, metrics); }), HasSubstr("two metrics of a report are called 'loss'"));
}

}  // namespace
}  // namespace lockstep
