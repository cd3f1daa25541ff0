#include <array>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/storage/safetensors.h>

#include "storage/safetensors_item_size.h"
#include "support/message_of.h"
#include "unit/storage/checkpoint_samples.h"

namespace lockstep {
namespace {

using namespace testing_storage;
using testing::ElementsAre;
using testing::HasSubstr;
using Metadata = std::map<std::string, std::string>;

class BytesFile final : public RandomAccessFile {
 public:
  explicit BytesFile(std::string bytes) : bytes_(std::move(bytes)) {}
  std::int64_t size() const override { return static_cast<std::int64_t>(bytes_.size()); }
  void read(std::int64_t offset, std::span<std::byte> out) const override {
    if (offset < 0 || out.size() > bytes_.size() || static_cast<std::size_t>(offset) > bytes_.size() - out.size()) {
      throw IoError("read beyond the end");
    }
    std::memcpy(out.data(), bytes_.data() + offset, out.size());
  }

 private:
  std::string bytes_;
};

SafetensorsReader open_bytes(std::string bytes) {
  return SafetensorsReader(std::make_unique<BytesFile>(std::move(bytes)), "model.safetensors");
}

std::string written(const std::vector<TensorView>& tensors, const Metadata& metadata = {}) {
  std::string file;
  write_safetensors(tensors, metadata, [&](std::span<const std::byte> bytes) {
    file.append(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  });
  return file;
}

std::string length_prefix(std::uint64_t length) {
  std::string prefix;
  for (int i = 0; i < 8; ++i) {
    prefix += static_cast<char>(length >> (8 * i) & 0xff);
  }
  return prefix;
}

std::string with_header(const std::string& header, std::size_t data_size) {
  return length_prefix(header.size()) + header + std::string(data_size, 'd');
}

std::string fault(const std::string& bytes) {
  return message_of<CheckpointError>([&] { open_bytes(bytes); });
}

std::string read_tensor(const SafetensorsReader& reader, const TensorEntry& entry) {
  std::string bytes(static_cast<std::size_t>(entry.end - entry.begin), '\0');
  reader.read(entry, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

// Printed by safetensors 0.8.0 for Python: save({"w": float32 [1, 2], "n": int64 7}, metadata={"a": "b"})
const std::string kFromPython = std::string("\x88\0\0\0\0\0\0\0", 8) +
                                R"({"__metadata__":{"a":"b"},"n":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)" +
                                R"("w":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}    )" +
                                std::string("\x07\0\0\0\0\0\0\0", 8) + std::string("\0\0\x80\x3f\0\0\0\x40", 8);

TEST(Safetensors, ReadsWhatPythonWrites) {
  const SafetensorsReader reader = open_bytes(kFromPython);
  EXPECT_EQ(reader.metadata(), (Metadata{{"a", "b"}}));
  EXPECT_EQ(reader.data_offset(), 8 + 0x88);
  ASSERT_EQ(reader.entries().size(), 2U);
  EXPECT_EQ(reader.entries()[0].name, "n");
  EXPECT_EQ(reader.entries()[0].dtype, "I64");
  EXPECT_THAT(reader.entries()[0].shape, ElementsAre());
  EXPECT_EQ(reader.entries()[1].name, "w");
  EXPECT_THAT(reader.entries()[1].shape, ElementsAre(2));
  EXPECT_EQ(read_tensor(reader, reader.entries()[1]), std::string("\0\0\x80\x3f\0\0\0\x40", 8));
}

TEST(Safetensors, WritesTheBytesThatPythonWrites) {
  const std::array<float, 2> w = {1, 2};
  const std::int64_t n = 7;
  EXPECT_EQ(written({{"n", "I64", {}, std::as_bytes(std::span(&n, 1))}, {"w", "F32", {2}, std::as_bytes(std::span(w))}},
                    {{"a", "b"}}),
            kFromPython);
}

TEST(Safetensors, ReadsEveryTensorInOrderAndAligned) {
  const std::string data = "0123456789abcdefghijklmnopqrstuv";
  const auto first = [&](std::size_t count) { return as_bytes(std::string_view(data).substr(0, count)); };
  const std::vector<TensorView> tensors = {{"mask", "BOOL", {3}, first(3)},
                                           {"empty", "F32", {0, 7}, first(0)},
                                           {"half", "BF16", {3}, first(6)},
                                           {"double", "F64", {2, 2}, first(32)},
                                           {"odd name \"\\\n\xc3\xa9", "F32", {1}, first(4)},
                                           {"scalar", "I64", {}, first(8)}};
  for (std::size_t count = 0; count <= tensors.size(); ++count) {
    const std::vector<TensorView> some(tensors.begin(), tensors.begin() + static_cast<std::ptrdiff_t>(count));
    const SafetensorsReader reader = open_bytes(written(some, {{"k\"", "v\n"}}));
    EXPECT_EQ(reader.metadata(), (Metadata{{"k\"", "v\n"}}));
    EXPECT_EQ(reader.data_offset() % 8, 0);
    ASSERT_EQ(reader.entries().size(), count);
    for (std::size_t i = 0; i < count; ++i) {
      const TensorEntry& entry = reader.entries()[i];
      EXPECT_EQ(entry.name, some[i].name);
      EXPECT_EQ(entry.dtype, some[i].dtype);
      EXPECT_EQ(entry.shape, some[i].shape);
      EXPECT_EQ(entry.begin % safetensors_item_size(entry.dtype), 0) << entry.name;
      EXPECT_EQ(read_tensor(reader, entry), data.substr(0, some[i].bytes.size()));
    }
  }
}

TEST(Safetensors, RejectsTensorsThatItCouldNotRead) {
  const std::string data(64, 'x');
  const auto bytes = [&](std::size_t count) { return as_bytes(std::string_view(data).substr(0, count)); };
  struct Case {
    std::vector<TensorView> tensors;
    const char* message;
  };
  const std::vector<Case> cases = {
      {{{"a", "F32", {2}, bytes(8)}, {"a", "F32", {2}, bytes(8)}}, "found the tensor name a twice"},
      {{{"", "F32", {2}, bytes(8)}}, "a tensor name of 0 bytes"},
      {{{std::string(1025, 'n'), "F32", {2}, bytes(8)}}, "a tensor name of 1025 bytes"},
      {{{std::string("a\0b", 3), "F32", {2}, bytes(8)}}, "the name has a zero byte"},
      {{{"__metadata__", "F32", {2}, bytes(8)}}, "not __metadata__"},
      {{{"a", "F32", {2}, bytes(7)}}, "a: found 7 bytes, expected 8"},
      {{{"a", "f32", {2}, bytes(8)}}, "a: unknown dtype f32"},
      {{{"a", "F4", {2}, bytes(1)}}, "a: lockstep does not support the dtype F4"},
      {{{"a", "U8", {-1}, bytes(1)}}, "expected a shape of less than 2^63 bytes"},
      {{{"a", "U8", std::vector<std::int64_t>(17, 1), bytes(1)}}, "a: found 17 dimensions, expected at most 16"},
      {{{"\xff", "U8", {1}, bytes(1)}}, "the name or metadata text '\xef\xbf\xbd' is not UTF-8"},
  };
  for (const Case& wrong : cases) {
    EXPECT_THAT(message_of<CheckpointError>([&] { written(wrong.tensors); }), HasSubstr(wrong.message));
  }
}

TEST(Safetensors, RefusesMalformedHeaders) {
  const std::string good =
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[3],"data_offsets":[2,5]}})";
  ASSERT_EQ(fault(with_header(good, 5)), "no error") << "the control";
  ASSERT_EQ(fault(with_header(good + "    ", 5)), "no error") << "padding";
  const auto one = [](const std::string& tensor) { return R"({"a":)" + tensor + "}"; };
  const auto shaped = [&](const std::string& shape, const std::string& offsets) {
    return one(R"({"dtype":"U8","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}");
  };
  struct Case {
    std::string header;
    std::size_t data_size;
    const char* message;
  };
  const std::vector<Case> cases = {
      {good, 4, "found 4 bytes of data, expected 5"},
      {good, 6, "found 6 bytes of data, expected 5"},
      {"", 0, "JSON that starts with {"},
      {" {}", 0, "JSON that starts with {"},
      {"\xef\xbb\xbf{}", 0, "JSON that starts with {"},
      {"[]", 0, "JSON that starts with {"},
      {std::string("{}\0{}", 5), 0, "JSON that starts with {"},
      {"{}{}", 0, "no valid JSON at byte"},
      {"{", 0, "no valid JSON at byte"},
      {"{\"a\xff\":1}", 0, "no valid JSON at byte"},
      {"{/**/}", 0, "no valid JSON at byte"},
      {R"({"a":[)", 0, "an unexpected array"},
      {R"({"a":1})", 0, "an unexpected number"},
      {R"({"a":"x"})", 0, "an unexpected string"},
      {R"({"a":null})", 0, "null"},
      {R"({"a":true})", 0, "a boolean"},
      {R"({"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0, "a tensor name of 0 bytes"},
      {"{\"" + std::string(1025, 'n') + "\":{}}", 0, "a tensor name of 1025 bytes"},
      {R"({"a\u0000b":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0, "the name has a zero byte"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
       2, "a duplicate tensor name: a"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"\u0061":{}})", 2, "a duplicate tensor name: a"},
      {R"({"__metadata__":{},"__metadata__":{}})", 0, "a second __metadata__"},
      {R"({"__metadata__":{"k":"1","k":"2"}})", 0, "a duplicate key in __metadata__"},
      {R"({"__metadata__":{"k":1}})", 0, "an unexpected number"},
      {R"({"__metadata__":{"k":["1"]}})", 0, "an unexpected array"},
      {R"({"__metadata__":{"k":{}}})", 0, "an unexpected object"},
      {R"({"__metadata__":"k"})", 0, "an unexpected string"},
      {one("{}"), 0, "a: dtype, shape or data_offsets is missing"},
      {one(R"({"dtype":"U8","shape":[0]})"), 0, "a: dtype, shape or data_offsets is missing"},
      {one(R"({"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":1})"), 0, "a: an unknown or duplicate key"},
      {one(R"({"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]})"), 0, "a: an unknown or duplicate key"},
      {one(R"({"dtype":"U9","shape":[2],"data_offsets":[0,2]})"), 2, "a: unknown dtype U9"},
      {one(R"({"dtype":["U8"],"shape":[2],"data_offsets":[0,2]})"), 2, "an unexpected array"},
      {one(R"({"dtype":"U8","shape":"2","data_offsets":[0,2]})"), 2, "a: a string instead of an array"},
      {shaped("2", "[0,2]"), 2, "an unexpected number"},
      {shaped("[[2]]", "[0,2]"), 2, "an unexpected array"},
      {shaped("[{}]", "[0,2]"), 2, "an unexpected object"},
      {shaped("[2.0]", "[0,2]"), 2, "a fraction"},
      {shaped("[2e0]", "[0,2]"), 2, "a fraction"},
      {shaped("[-2]", "[0,2]"), 2, "a negative number"},
      {shaped("[-0]", "[0,0]"), 0, "a negative number"},
      {shaped("[02]", "[0,2]"), 2, "no valid JSON at byte"},
      {shaped("[9223372036854775808]", "[0,2]"), 2, "a: a number above 2^63 - 1"},
      {shaped("[99999999999999999999]", "[0,2]"), 2, "a fraction"},
      {shaped("[4294967296,4294967296]", "[0,0]"), 0, "expected a shape of less than 2^63 bytes"},
      {shaped("[4294967296,4294967296,0]", "[0,0]"), 0, "expected a shape of less than 2^63 bytes"},
      {shaped("[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, "a: more than 16 dimensions"},
      {shaped("[2]", "[0,3]"), 3, "a: found 3 bytes, expected 2"},
      {shaped("[2]", "[2,0]"), 2, "a: data_offsets are not [begin, end]"},
      {shaped("[2]", "[0]"), 2, "a: data_offsets are not [begin, end]"},
      {shaped("[2]", "[0,2,2]"), 2, "a: data_offsets are not [begin, end]"},
      {shaped("[2]", "[1,3]"), 3, "a: data begin at 1, expected 0"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, "b: data begin at 1, expected 2"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
       2, "data begin at 0, expected 2"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
       5, "b: data begin at 3, expected 2"},
  };
  for (const Case& wrong : cases) {
    EXPECT_THAT(fault(with_header(wrong.header, wrong.data_size)),
                testing::AllOf(testing::StartsWith("model.safetensors: "), HasSubstr(wrong.message)))
        << wrong.header;
  }
}

TEST(Safetensors, AcceptsLegalOddities) {
  for (
      const auto& [header, data_size] : std::vector<std::pair<std::string, std::size_t>>{
          {"{}", 0},
          {"{ }   ", 0},
          {R"({"__metadata__":{}})", 0},
          {R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},"a":{"shape":[1],"data_offsets":[0,1],"dtype":"U8"}})",
           3},
          {R"({"a":{"dtype":"F32","shape":[0,9223372036854775807],"data_offsets":[0,0]}})", 0},
          {R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})",
           0},
          {R"({"a":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})", 8}}) {
    EXPECT_EQ(fault(with_header(header, data_size)), "no error") << header;
  }
}

TEST(Safetensors, RefusesLengthsThatTheFileDoesNotHave) {
  EXPECT_THAT(fault(""), HasSubstr("found 0 bytes, expected a safetensors file"));
  EXPECT_THAT(fault(std::string(7, '\0')), HasSubstr("found 7 bytes"));
  EXPECT_THAT(fault(length_prefix(3) + "{}"), HasSubstr("found a header of 3 bytes, expected at most 2"));
  EXPECT_THAT(fault(length_prefix(~std::uint64_t{0}) + "{}"), HasSubstr("expected at most 2"));
  const std::string long_header = "{}" + std::string(100'000'000, ' ');
  EXPECT_THAT(fault(with_header(long_header, 0)), HasSubstr("expected at most 100000000"));
  EXPECT_EQ(fault(with_header(long_header.substr(0, 100'000'000), 0)), "no error") << "the control";
}

TEST(Safetensors, ReadsAMillionTensorsAndNoMore) {
  std::string header = "{";
  for (int i = 0; i < 1'000'000; ++i) {
    header += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", i == 0 ? "" : ",", i);
  }
  EXPECT_EQ(open_bytes(with_header(header + "}", 0)).entries().size(), 1'000'000U);
  EXPECT_THAT(fault(with_header(header + R"(,"last":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0)),
              HasSubstr("more than 1000000 tensors"));
}

// A header has no checksum of its own: a damaged one may be legal, but never leads outside the file.
TEST(Safetensors, NeverReadsOutsideTheFile) {
  int points = 0, accepted = 0;
  const std::size_t header_end = 8 + 0x88;
  for (std::size_t at = 0; at < header_end; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = kFromPython;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      ++points;
      try {
        const SafetensorsReader reader = open_bytes(bytes);
        ++accepted;
        for (const TensorEntry& entry : reader.entries()) {
          read_tensor(reader, entry);
        }
      } catch (const CheckpointError&) {
      }
    }
  }
  std::cout << points << " points, " << accepted << " legal\n";
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, points / 10);
}

TEST(Safetensors, MakesNamesPrintable) {
  EXPECT_EQ(fault(with_header("{\"\\u001b[31mred\":{}}", 0)),
            "model.safetensors: header: red: dtype, shape or data_offsets is missing");
}

TEST(SafetensorsDeathTest, RefusesABufferOfAnotherSize) {
  const SafetensorsReader reader = open_bytes(kFromPython);
  std::array<std::byte, 4> small{};
  EXPECT_DEATH(reader.read(reader.entries()[0], small), "the buffer must have the size of the tensor");
}

}  // namespace
}  // namespace lockstep
