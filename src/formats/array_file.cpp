#include "formats/array_file.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "base/text.h"

namespace lockstep {
namespace {

constexpr std::size_t kMaxNpyHeader = 64 << 10;
constexpr std::size_t kMaxDimensions = 16;

struct Dtype {
  std::string_view npy{};
  std::string_view name{};
  std::int64_t bytes = 0;
};
constexpr std::array<Dtype, 12> kDtypes{{{"b1", "BOOL", 1},
                                         {"u1", "U8", 1},
                                         {"i1", "I8", 1},
                                         {"u2", "U16", 2},
                                         {"i2", "I16", 2},
                                         {"f2", "F16", 2},
                                         {"u4", "U32", 4},
                                         {"i4", "I32", 4},
                                         {"f4", "F32", 4},
                                         {"u8", "U64", 8},
                                         {"i8", "I64", 8},
                                         {"f8", "F64", 8}}};

std::uint32_t byte_at(std::span<const std::byte> file, std::size_t index) {
  return std::to_integer<std::uint32_t>(file[index]);
}

void check_size(std::span<const std::byte> file, const ArrayLayout& layout, std::int64_t item_bytes) {
  std::int64_t bytes = item_bytes;
  for (const std::int64_t extent : layout.shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      throw DataError("the shape needs more than 2^63 bytes");
    }
  }
  if (const auto found = static_cast<std::int64_t>(file.size()) - layout.offset; found != bytes) {
    throw DataError(fmt::format("found {} bytes of data, but the header says {}", found, bytes),
                    "the file is truncated or has another format");
  }
}

/// The Python dict literal of an .npy header: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class NpyDict {
 public:
  explicit NpyDict(std::string_view text) : text_(trim(text)) {}

  void parse() {
    expect('{');
    while (!accept('}')) {
      const std::string key(quoted());
      expect(':');
      if (key == "descr") {
        set(descr, std::string(quoted()), key);
      } else if (key == "fortran_order") {
        set(fortran_order, boolean(), key);
      } else if (key == "shape") {
        set(shape, tuple(), key);
      } else {
        fail("the keys descr, fortran_order and shape");
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_blanks();
    if (at_ != text_.size() || !descr || !fortran_order || !shape) {
      fail("the keys descr, fortran_order and shape, once each");
    }
  }

  std::optional<std::string> descr{};
  std::optional<bool> fortran_order{};
  std::optional<std::vector<std::int64_t>> shape{};

 private:
  [[noreturn]] void fail(std::string_view expected) const {
    throw DataError(fmt::format("found '{}' at byte {} of the header, expected {}", printable(text_.substr(at_, 20)),
                                at_, expected));
  }

  template <class T>
  void set(std::optional<T>& field, T value, std::string_view key) const {
    if (field) {
      fail(fmt::format("{} once", key));
    }
    field = std::move(value);
  }

  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) {
      ++at_;
    }
  }

  bool accept(char c) {
    skip_blanks();
    if (at_ < text_.size() && text_[at_] == c) {
      ++at_;
      return true;
    }
    return false;
  }

  void expect(char c) {
    if (!accept(c)) {
      fail(std::string(1, c));
    }
  }

  std::string_view quoted() {
    skip_blanks();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    const std::size_t end = quote == '\'' || quote == '"' ? text_.find(quote, at_ + 1) : std::string_view::npos;
    if (end == std::string_view::npos) {
      fail(text_.substr(at_).starts_with('[') ? "a plain element type, not a structure" : "a quoted word");
    }
    const std::string_view word = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return word;
  }

  bool boolean() {
    skip_blanks();
    for (const auto& [word, value] : {std::pair<std::string_view, bool>{"True", true}, {"False", false}}) {
      if (text_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return value;
      }
    }
    fail("True or False");
  }

  std::vector<std::int64_t> tuple() {
    std::vector<std::int64_t> numbers;
    expect('(');
    while (!accept(')')) {
      skip_blanks();
      std::size_t end = at_;
      while (end < text_.size() && std::isdigit(static_cast<unsigned char>(text_[end])) != 0) {
        ++end;
      }
      const auto number = parse_int(text_.substr(at_, end - at_));
      if (!number || numbers.size() == kMaxDimensions) {
        fail("a shape of up to 16 numbers");
      }
      numbers.push_back(*number);
      at_ = end;
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return numbers;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

const Dtype& npy_dtype(std::string_view descr) {
  if (!descr.empty() && (descr[0] == '<' || descr[0] == '|' || descr[0] == '=')) {
    for (const Dtype& dtype : kDtypes) {
      if (descr.substr(1) == dtype.npy) {
        return dtype;
      }
    }
  }
  throw DataError(
      fmt::format("found elements of type '{}', expected bool, integers or floats, little-endian", printable(descr)),
      "convert it in Python: numpy.save(file, array.astype('<f4'))");
}

}  // namespace

ArrayLayout parse_npy(std::span<const std::byte> file) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (!text.starts_with(kMagic) || file.size() < 12) {
    throw DataError("not an .npy file (numpy.save)");
  }
  const std::uint32_t version = byte_at(file, 6);
  if (version < 1 || version > 3) {
    throw DataError(fmt::format("found .npy version {}, expected 1 to 3", version));
  }
  const std::size_t begin = version == 1 ? 10 : 12;
  std::size_t length = byte_at(file, 8) | (byte_at(file, 9) << 8);
  if (version > 1) {
    length |= static_cast<std::size_t>(byte_at(file, 10)) << 16 | static_cast<std::size_t>(byte_at(file, 11)) << 24;
  }
  if (length > kMaxNpyHeader || length > file.size() - begin) {
    throw DataError(fmt::format("found a header of {} bytes, expected at most {}", length,
                                std::min(kMaxNpyHeader, file.size() - begin)));
  }
  NpyDict header(text.substr(begin, length));
  header.parse();
  const Dtype& dtype = npy_dtype(*header.descr);
  if (*header.fortran_order && header.shape->size() > 1) {
    throw DataError("found an array in Fortran order, expected C order",
                    "convert it in Python: numpy.save(file, numpy.ascontiguousarray(array))");
  }
  ArrayLayout layout{.dtype = std::string(dtype.name),
                     .shape = std::move(*header.shape),
                     .offset = static_cast<std::int64_t>(begin + length)};
  check_size(file, layout, dtype.bytes);
  return layout;
}

bool has_npy_dtype(std::string_view dtype) noexcept {
  return std::ranges::find(kDtypes, dtype, &Dtype::name) != kDtypes.end();
}

std::string npy_header(const std::string& dtype, const std::vector<std::int64_t>& shape) {
  constexpr std::size_t kAlignment = 64;
  constexpr std::size_t kFixed = 10;
  const auto* const found = std::ranges::find(kDtypes, dtype, &Dtype::name);
  if (found == kDtypes.end()) {
    throw DataError(fmt::format("the .npy format has no type {}", dtype));
  }
  std::string dict =
      fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}{}), }}", found->bytes == 1 ? '|' : '<',
                  found->npy, fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  dict.resize((kFixed + dict.size() + kAlignment) / kAlignment * kAlignment - kFixed, ' ');
  dict.back() = '\n';
  std::string header = "\x93NUMPY\x01";
  header += '\0';
  header += static_cast<char>(dict.size() % 256);
  header += static_cast<char>(dict.size() / 256);
  return header + dict;
}

ArrayLayout parse_idx(std::span<const std::byte> file) {
  constexpr std::uint32_t kUnsignedByte = 8;
  if (file.size() < 4 || byte_at(file, 0) != 0 || byte_at(file, 1) != 0) {
    throw DataError("not an IDX file: its header must be two zero bytes, a type and a number of dimensions");
  }
  if (byte_at(file, 2) != kUnsignedByte) {
    throw DataError(fmt::format("found IDX elements of type {:#04x}, expected 0x08, bytes", byte_at(file, 2)));
  }
  const std::size_t dimensions = byte_at(file, 3);
  const std::size_t offset = 4 + 4 * dimensions;
  if (dimensions < 1 || dimensions > 4 || file.size() < offset) {
    throw DataError(
        fmt::format("found an IDX header of {} dimensions, expected 1 to 4 and a size for each", dimensions));
  }
  ArrayLayout layout{.dtype = "U8", .offset = static_cast<std::int64_t>(offset)};
  for (std::size_t at = 4; at < offset; at += 4) {
    layout.shape.push_back(std::int64_t{byte_at(file, at)} << 24 | byte_at(file, at + 1) << 16 |
                           byte_at(file, at + 2) << 8 | byte_at(file, at + 3));
  }
  check_size(file, layout, /*item_bytes=*/1);
  return layout;
}

}  // namespace lockstep
