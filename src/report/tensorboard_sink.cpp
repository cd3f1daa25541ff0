// The format: records of TFRecord files with protocol buffers of type tensorflow.Event
// (tensorflow/core/util/event.proto, framework/summary.proto; tensorboard/plugins/hparams/*.proto). Only the fields
// that are written here are encoded.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <lockstep/report/metric_sink.h>

#include "base/crc32c.h"
#include "base/little_endian.h"
#include "base/report_file.h"
#include "base/text.h"
#include "base/wall_clock.h"
#include "report/metric_file.h"
#include "report/png.h"

namespace lockstep {
namespace {

/// A message of the protocol buffers format.
class Message {
 public:
  Message& integer(int field, std::int64_t value) {
    varint(key(field, 0));
    varint(static_cast<std::uint64_t>(value));
    return *this;
  }
  Message& number(int field, double value) {
    varint(key(field, 1));
    append_little_endian(bytes_, std::bit_cast<std::uint64_t>(value), sizeof value);
    return *this;
  }
  Message& number(int field, float value) {
    varint(key(field, 5));
    append_little_endian(bytes_, std::bit_cast<std::uint32_t>(value), sizeof value);
    return *this;
  }
  Message& numbers(int field, std::span<const double> values) {
    std::string packed;
    for (const double value : values) {
      append_little_endian(packed, std::bit_cast<std::uint64_t>(value), sizeof value);
    }
    return text(field, packed);
  }
  Message& text(int field, std::string_view value) {
    varint(key(field, 2));
    varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return text(field, value.bytes_); }
  const std::string& bytes() const noexcept { return bytes_; }

 private:
  static std::uint64_t key(int field, unsigned wire_type) { return static_cast<std::uint64_t>(field) << 3 | wire_type; }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) {
      bytes_ += static_cast<char>(value | 0x80);
    }
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_{};
};

/// The checksum of TFRecord files: CRC-32C, rotated by 15 bits plus a constant.
std::uint32_t masked_checksum(std::string_view bytes) {
  return std::rotr(crc32c(std::as_bytes(std::span(bytes))), 15) + 0xa282ead8U;
}

std::string record(const Message& event) {
  std::string bytes;
  append_little_endian(bytes, event.bytes().size(), 8);
  append_little_endian(bytes, masked_checksum(bytes), 4);
  bytes += event.bytes();
  append_little_endian(bytes, masked_checksum(event.bytes()), 4);
  return bytes;
}

Message event() { return Message().number(1, unix_time()); }

enum class HparamType { string = 1, boolean = 2, number = 3 };  // tensorboard.hparams.DataType

/// The same in all runs: TensorBoard cannot sort a column of numbers and texts.
HparamType type_of(const RunSetting& setting) {
  return setting.is_text                                     ? HparamType::string
         : setting.text == "true" || setting.text == "false" ? HparamType::boolean
                                                             : HparamType::number;
}

/// google.protobuf.Value. {}: no number, or infinity or NaN, which TensorBoard refuses.
Message hparam_value(const RunSetting& setting, HparamType type) {
  if (type == HparamType::string) {
    return Message().text(3, setting.text);
  }
  if (type == HparamType::boolean) {
    return Message().integer(4, setting.text == "true" ? 1 : 0);
  }
  const auto number = parse_double(setting.text);
  return number ? Message().number(2, *number) : Message();
}

class TensorboardSink final : public MetricSink {
 public:
  TensorboardSink(FileSystem& fs, const std::filesystem::path& directory, std::int64_t resume_step,
                  std::string_view description)
      : file_(fs, directory / file_name(fs, directory), "rows",
              [this](WritableFile& file, const RandomAccessFile& content) {
                written_ = std::min(written_, content.size());  // less in a new file, after this one was deleted
                file.truncate(written_);                        // a failed write may have left a part of a record
                return true;
              }) {
    append(record(event().text(3, "brain.Event:2")));
    constexpr int kStart = 1;  // of tensorflow.SessionLog: TensorBoard drops rows of earlier files from this step on
    append(record(event().integer(2, resume_step + 1).message(7, Message().integer(1, kStart))));
    write_text(std::max(resume_step, std::int64_t{0}), "config", description);
  }

  void write(std::int64_t step, std::span<const MetricValue> metrics) override {
    require_distinct(metrics);
    Message summary;
    for (const MetricValue& metric : metrics) {
      summary.message(1, Message().text(1, metric.name).number(2, static_cast<float>(metric.value)));
    }
    append(record(event().integer(2, step).message(5, summary)));
  }

  void write_histogram(std::int64_t step, std::string_view name, const Histogram& histogram) override {
    const Message proto = Message()
                              .number(1, histogram.min)
                              .number(2, histogram.max)
                              .number(3, histogram.count)
                              .number(4, histogram.sum)
                              .number(5, histogram.sum_of_squares)
                              .numbers(6, histogram.limits)
                              .numbers(7, histogram.counts);
    append_value(step, Message().text(1, name).message(5, proto));
  }

  void write_text(std::int64_t step, std::string_view name, std::string_view text) override {
    constexpr int kString = 7;  // of tensorflow.DataType
    const Message tensor = Message().integer(1, kString).message(2, Message()).text(8, text);
    append_value(step, Message().text(1, name).message(8, tensor).message(9, plugin("text")));
  }

  void write_image(std::int64_t step, std::string_view name, const Image& image) override {
    const Message proto =
        Message().integer(1, image.height).integer(2, image.width).integer(3, image.channels).text(4, png(image));
    append_value(step, Message().text(1, name).message(4, proto));
  }

  // The page HPARAMS of TensorBoard: which settings and metrics there are, the settings of this run, and its end.
  void finish(std::span<const RunSetting> settings, std::span<const MetricValue> metrics) override {
    constexpr int kSuccess = 1;  // of tensorboard.hparams.Status
    Message experiment;
    Message start;
    for (const RunSetting& setting : settings) {
      const HparamType type = type_of(setting);
      experiment.message(4, Message().text(1, setting.name).integer(4, static_cast<int>(type)));
      if (const Message value = hparam_value(setting, type); !value.bytes().empty()) {
        start.message(1, Message().text(1, setting.name).message(2, value));
      }
    }
    for (const MetricValue& metric : metrics) {
      experiment.message(5, Message().message(1, Message().text(2, metric.name)));
    }
    start.number(5, began_);
    const Message end = Message().integer(1, kSuccess).number(2, unix_time());
    int field = 2;  // of HParamsPluginData
    using Part = std::pair<std::string_view, const Message*>;
    for (const auto& [name, part] :
         {Part("experiment", &experiment), Part("session_start_info", &start), Part("session_end_info", &end)}) {
      const Message metadata = plugin("hparams", Message().message(field++, *part).bytes());
      append_value(0, Message().text(1, fmt::format("_hparams_/{}", name)).message(9, metadata));
    }
  }

 private:
  /// tensorflow.SummaryMetadata
  static Message plugin(std::string_view name, std::string_view content = {}) {
    Message data = Message().text(1, name);
    if (!content.empty()) {
      data.text(2, content);
    }
    return Message().message(1, data);
  }

  void append_value(std::int64_t step, const Message& value) {
    append(record(event().integer(2, step).message(5, Message().message(1, value))));
  }

  // TensorBoard reads the files of a directory in the order of their names. The clock may have been set back.
  static std::string file_name(FileSystem& fs, const std::filesystem::path& directory) {
    constexpr std::string_view kPrefix = "events.out.tfevents.";
    constexpr std::size_t kDigits = 10;
    auto seconds = static_cast<std::int64_t>(unix_time());
    for (const std::string& name : fs.list(directory)) {
      if (name.starts_with(kPrefix)) {
        const auto of_name = parse_int(std::string_view(name).substr(kPrefix.size(), kDigits));
        seconds = std::max(seconds, of_name.value_or(-1) + 1);
      }
    }
    return fmt::format("{}{:0{}}.lockstep", kPrefix, seconds, kDigits);
  }

  void append(const std::string& bytes) {
    if (file_.write(1, [&](WritableFile& file) { append_text(file, bytes); })) {
      written_ += static_cast<std::int64_t>(bytes.size());
    }
  }

  const double began_ = unix_time();
  std::int64_t written_ = 0;  // bytes of complete records
  ReportFile file_;
};

}  // namespace

std::unique_ptr<MetricSink> tensorboard_sink(FileSystem& fs, const std::filesystem::path& directory,
                                             std::int64_t resume_step, std::string_view description) {
  return std::make_unique<TensorboardSink>(fs, directory, resume_step, description);
}

}  // namespace lockstep
