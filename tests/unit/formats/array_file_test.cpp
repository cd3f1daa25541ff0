#include "formats/array_file.h"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "formats/cifar10.h"
#include "support/message_of.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

/// What numpy.save writes.
std::string npy(const std::string& dict, std::size_t data, char version = 1) {
  std::string file = "\x93NUMPY";
  file += version;
  file += '\0';
  file += static_cast<char>(dict.size() % 256);
  file += static_cast<char>(dict.size() / 256);
  if (version > 1) {
    file += std::string(2, '\0');
  }
  return file + dict + std::string(data, 'x');
}

std::string npy_message(const std::string& file) {
  return message_of<DataError>([&] { parse_npy(bytes_of(file)); });
}

TEST(Npy, FindsDtypeShapeAndData) {
  for (const char version : {'\1', '\2', '\3'}) {
    const std::string file =
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }          \n", 48, version);
    const ArrayLayout layout = parse_npy(bytes_of(file));
    EXPECT_EQ(layout.dtype, "F32");
    EXPECT_THAT(layout.shape, ElementsAre(3, 4));
    EXPECT_EQ(layout.offset, static_cast<std::int64_t>(file.size()) - 48);
  }
  EXPECT_THAT(parse_npy(bytes_of(npy("{'descr': '|u1', 'fortran_order': True, 'shape': (5,), }\n", 5))).shape,
              ElementsAre(5));
  EXPECT_THAT(parse_npy(bytes_of(npy("{'descr': '<i8', 'fortran_order': False, 'shape': (), }\n", 8))).shape,
              ElementsAre());
}

TEST(Npy, DoesNotHaveEveryDtype) {
  EXPECT_TRUE(has_npy_dtype("F16"));
  for (const char* dtype : {"BF16", "F8_E4M3", "C64", ""}) {
    EXPECT_FALSE(has_npy_dtype(dtype)) << dtype;
    EXPECT_THROW(npy_header(dtype, {1}), DataError) << dtype;
  }
}

TEST(Npy, ReadsTheHeadersItWrites) {
  const std::vector<std::vector<std::int64_t>> shapes = {{}, {7}, {2, 3, 4}, {0, 5}};
  for (const std::vector<std::int64_t>& shape : shapes) {
    std::int64_t bytes = 2;
    for (const std::int64_t extent : shape) {
      bytes *= extent;
    }
    const std::string header = npy_header("F16", shape);
    EXPECT_EQ(header.size() % 64, 0U);
    EXPECT_EQ(header.back(), '\n');
    const std::string file = header + std::string(static_cast<std::size_t>(bytes), 'x');
    const ArrayLayout layout = parse_npy(bytes_of(file));
    EXPECT_EQ(layout.dtype, "F16");
    EXPECT_EQ(layout.shape, shape);
    EXPECT_EQ(layout.offset, static_cast<std::int64_t>(header.size()));
  }
  EXPECT_THROW(npy_header("BF16", {1}), DataError);
}

TEST(Npy, RejectsUnsupportedArrays) {
  EXPECT_THAT(npy_message("PK\3\4 an npz archive"), HasSubstr("not an .npy file"));
  EXPECT_THAT(npy_message(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 8, 4)),
              HasSubstr("found .npy version 4, expected 1 to 3"));
  EXPECT_THAT(npy_message(npy("{'descr': '>f4', 'fortran_order': False, 'shape': (2,), }", 8)),
              HasSubstr("found elements of type '>f4'"));
  EXPECT_THAT(npy_message(npy("{'descr': '|O', 'fortran_order': False, 'shape': (2,), }", 8)), HasSubstr("'|O'"));
  EXPECT_THAT(npy_message(npy("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (2,), }", 8)),
              HasSubstr("expected a plain element type"));
  EXPECT_THAT(npy_message(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (2, 1), }", 8)),
              HasSubstr("found an array in Fortran order, expected C order | convert it in Python: numpy.save"));
  EXPECT_THAT(npy_message(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 7)),
              HasSubstr("found 7 bytes of data, but the header says 8"));
  EXPECT_THAT(npy_message(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 9)), HasSubstr("found 9"));
  EXPECT_THAT(npy_message(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }", 0)),
              HasSubstr("more than 2^63 bytes"));
  EXPECT_THAT(npy_message(npy("{'descr': '<f4', 'descr': '<f8', }", 0)), HasSubstr("expected descr once"));
  EXPECT_THAT(npy_message(npy("{'descr': '<f4'}", 0)), HasSubstr("once each"));
  EXPECT_THAT(npy_message(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 8).substr(0, 40)),
              HasSubstr("found a header of 57 bytes, expected at most 30"));
}

TEST(Idx, FindsShapeAndData) {
  const std::string labels("\0\0\x08\x01\0\0\0\x02xy", 10);
  EXPECT_THAT(parse_idx(bytes_of(labels)).shape, ElementsAre(2));
  const std::string images = std::string("\0\0\x08\x03\0\0\1\0\0\0\0\x02\0\0\0\x01", 16) + std::string(512, 'x');
  const ArrayLayout layout = parse_idx(bytes_of(images));
  EXPECT_THAT(layout.shape, ElementsAre(256, 2, 1));
  EXPECT_EQ(layout.offset, 16);
  const auto message = [](const std::string& file) {
    return message_of<DataError>([&] { parse_idx(bytes_of(file)); });
  };
  EXPECT_THAT(message(labels.substr(0, 9)), HasSubstr("found 1 bytes of data, but the header says 2"));
  EXPECT_THAT(message("labels"), HasSubstr("not an IDX file"));
  EXPECT_THAT(message(std::string("\0\0\x0d\x01\0\0\0\0", 8)), HasSubstr("type 0x0d, expected 0x08"));
  EXPECT_THAT(message(std::string("\0\0\x08\x05\0\0\0\0", 8)), HasSubstr("of 5 dimensions"));
}

TEST(Cifar10, CountsWholeRecordsWithLabels) {
  std::string file(2 * kCifar10Record, '\x07');
  EXPECT_EQ(count_cifar10(bytes_of(file)), 2);
  file[kCifar10Record] = 10;
  EXPECT_THAT(message_of<DataError>([&] { count_cifar10(bytes_of(file)); }), HasSubstr("sample 1 has label 10"));
  file.pop_back();
  EXPECT_THAT(message_of<DataError>([&] { count_cifar10(bytes_of(file)); }),
              HasSubstr("found 6145 bytes, expected records of 3073"));
}

}  // namespace
}  // namespace lockstep
