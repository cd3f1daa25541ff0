#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <optional>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/storage/safetensors.h>

#include "base/assertion.h"
#include "base/json.h"
#include "base/little_endian.h"
#include "base/mapped.h"
#include "base/text.h"
#include "storage/safetensors_item_size.h"

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are written in the byte order of memory");

constexpr std::size_t kLengthBytes = 8;
constexpr std::int64_t kMaxHeaderBytes = 100'000'000;  // the safetensors of Python reads no more
constexpr std::size_t kMaxTensors = 1'000'000;
constexpr std::size_t kMaxDimensions = 16;
constexpr std::size_t kMaxNameBytes = 1024;
constexpr std::size_t kAlignment = 8;
constexpr std::string_view kMetadataKey = "__metadata__";

// The number of bytes for shape and dtype; nullopt: more than 2^63 - 1.
std::optional<std::int64_t> byte_count(const std::vector<std::int64_t>& shape, std::int64_t item_size) {
  std::int64_t bytes = item_size;
  for (const std::int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) {
      return std::nullopt;
    }
  }
  return bytes;
}

// The problem in the description of one tensor, for reading and writing; empty: none.
std::string find_fault(const std::string& name, const std::string& dtype, const std::vector<std::int64_t>& shape,
                       std::int64_t bytes) {
  if (name.empty() || name.size() > kMaxNameBytes || name == kMetadataKey) {
    return fmt::format("a tensor name of {} bytes, expected 1 to {} and not {}", name.size(), kMaxNameBytes,
                       kMetadataKey);
  }
  if (name.find('\0') != std::string::npos) {
    return fmt::format("{}: the name has a zero byte", printable(name));
  }
  const std::int64_t item_size = safetensors_item_size(dtype);
  if (item_size == 0) {
    const bool is_packed = dtype == "F4" || dtype == "F6_E2M3" || dtype == "F6_E3M2";
    return fmt::format("{}: {} dtype {}", name, is_packed ? "lockstep does not support the" : "unknown", dtype);
  }
  if (shape.size() > kMaxDimensions) {
    return fmt::format("{}: found {} dimensions, expected at most {}", name, shape.size(), kMaxDimensions);
  }
  if (const auto expected = byte_count(shape, item_size); expected != bytes) {
    return fmt::format("{}: found {} bytes, expected {}", name, bytes,
                       expected ? std::to_string(*expected) : "a shape of less than 2^63 bytes");
  }
  return {};
}

// Parses a header and accepts nothing else, so that memory never exceeds a few times the input. Levels: 0 outside the
// object, 1 in it, 2 in a tensor or the metadata, 3 in shape or data_offsets.
class HeaderParser final : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderParser(std::vector<TensorEntry>& entries, std::map<std::string, std::string>& metadata)
      : entries_(entries), metadata_(metadata) {}

  const std::string& fault() const noexcept { return fault_; }

  bool start_object(std::size_t /*size*/) override {
    if (level_ == 2 || level_ == 3) {
      return refuse("an unexpected object");
    }
    ++level_;
    if (level_ == 2 && !in_metadata_) {
      seen_ = 0;
      offsets_.clear();
    }
    return true;
  }

  bool end_object() override {
    --level_;
    if (level_ == 1) {
      return std::exchange(in_metadata_, false) || finish_tensor();
    }
    return true;
  }

  bool start_array(std::size_t /*size*/) override {
    if (level_ != 2 || in_metadata_ || (field_ != kShape && field_ != kOffsets)) {
      return refuse("an unexpected array");
    }
    ++level_;
    return true;
  }

  bool end_array() override {
    --level_;
    return true;
  }

  bool key(string_t& text) override {
    if (level_ == 1) {
      return begin_entry(text);
    }
    if (in_metadata_) {
      metadata_key_ = text;
      return metadata_.try_emplace(text).second || refuse("a duplicate key in " + std::string(kMetadataKey));
    }
    return begin_field(text);
  }

  bool string(string_t& text) override {
    if (level_ != 2) {
      return refuse("an unexpected string");
    }
    if (in_metadata_) {
      metadata_[metadata_key_] = text;
      return true;
    }
    if (field_ != kDtype) {
      return refuse(entries_.back().name + ": a string instead of an array");
    }
    entries_.back().dtype = text;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (level_ != 3) {
      return refuse("an unexpected number");
    }
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return refuse(entries_.back().name + ": a number above 2^63 - 1");
    }
    std::vector<std::int64_t>& numbers = field_ == kShape ? entries_.back().shape : offsets_;
    if (numbers.size() == kMaxDimensions) {
      return refuse(fmt::format("{}: more than {} dimensions", entries_.back().name, kMaxDimensions));
    }
    numbers.push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool null() override { return refuse("null"); }
  bool boolean(bool /*value*/) override { return refuse("a boolean"); }
  bool number_integer(number_integer_t /*value*/) override { return refuse("a negative number"); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return refuse("a fraction"); }
  bool binary(binary_t& /*value*/) override { return refuse("binary data"); }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return refuse(fmt::format("no valid JSON at byte {}", position));
  }

 private:
  enum Field : unsigned { kNone = 0, kDtype = 1, kShape = 2, kOffsets = 4, kAll = 7 };

  bool refuse(std::string what) {
    fault_ = std::move(what);
    return false;
  }

  bool begin_entry(const std::string& name) {
    if (name == kMetadataKey) {
      in_metadata_ = true;
      return !std::exchange(has_metadata_, true) || refuse("a second " + std::string(kMetadataKey));
    }
    if (name.size() > kMaxNameBytes) {
      return refuse(fmt::format("a tensor name of {} bytes, expected at most {}", name.size(), kMaxNameBytes));
    }
    if (!names_.insert(name).second) {
      return refuse("a duplicate tensor name: " + name);
    }
    if (entries_.size() == kMaxTensors) {
      return refuse(fmt::format("more than {} tensors", kMaxTensors));
    }
    entries_.push_back(TensorEntry{.name = name});
    return true;
  }

  bool begin_field(const std::string& text) {
    field_ = text == "dtype" ? kDtype : text == "shape" ? kShape : text == "data_offsets" ? kOffsets : kNone;
    if (field_ == kNone || (seen_ & field_) != 0) {
      return refuse(entries_.back().name + ": an unknown or duplicate key");
    }
    seen_ |= field_;
    return true;
  }

  bool finish_tensor() {
    TensorEntry& entry = entries_.back();
    if (seen_ != kAll) {
      return refuse(entry.name + ": dtype, shape or data_offsets is missing");
    }
    if (offsets_.size() != 2 || offsets_[0] > offsets_[1]) {
      return refuse(entry.name + ": data_offsets are not [begin, end]");
    }
    entry.begin = offsets_[0];
    entry.end = offsets_[1];
    fault_ = find_fault(entry.name, entry.dtype, entry.shape, entry.end - entry.begin);
    return fault_.empty();
  }

  std::vector<TensorEntry>& entries_;
  std::map<std::string, std::string>& metadata_;
  std::unordered_set<std::string> names_{};
  std::vector<std::int64_t> offsets_{};
  std::string metadata_key_{};
  std::string fault_{};
  int level_ = 0;
  unsigned seen_ = 0;
  Field field_ = kNone;
  bool in_metadata_ = false;
  bool has_metadata_ = false;
};

// The tensors must cover the data section exactly.
void check_layout(const std::vector<TensorEntry>& entries, std::int64_t data_size) {
  auto ordered = mapped(entries, [](const TensorEntry& entry) { return &entry; });
  std::ranges::sort(ordered, [](const TensorEntry* a, const TensorEntry* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  std::int64_t position = 0;
  for (const TensorEntry* entry : ordered) {
    if (entry->begin != position) {
      throw CheckpointError(fmt::format("header: {}: data begin at {}, expected {} (no holes, no overlaps)",
                                        printable(entry->name), entry->begin, position));
    }
    position = entry->end;
  }
  if (position != data_size) {
    throw CheckpointError(fmt::format("found {} bytes of data, expected {}", data_size, position));
  }
}

std::string quoted(const std::string& text) {
  try {
    return Json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw CheckpointError(fmt::format("the name or metadata text '{}' is not UTF-8", printable(text)),
                          "write the names of tensors and the texts of the metadata in UTF-8");
  }
}

std::string header_text(std::span<const TensorView> tensors, std::span<const std::int64_t> begins,
                        const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  const auto separate = [&] { return text.size() > 1 ? "," : ""; };
  if (!metadata.empty()) {
    text += quoted(std::string(kMetadataKey)) + ":{";
    const char* separator = "";
    for (const auto& [key, value] : metadata) {
      text += separator + quoted(key) + ":" + quoted(value);
      separator = ",";
    }
    text += "}";
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorView& tensor = tensors[i];
    const std::int64_t end = begins[i] + static_cast<std::int64_t>(tensor.bytes.size());
    text += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", separate(), quoted(tensor.name),
                        tensor.dtype, fmt::join(tensor.shape, ","), begins[i], end);
  }
  text += "}";
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  return text;
}

// Throws if the first bytes are those of a file of torch.save.
void refuse_pytorch_file(std::string_view begin, const std::string& name) {
  if (begin.starts_with("PK\3\4")) {
    throw CheckpointError(name + ": this is a PyTorch file (.pt), not a safetensors file", "load_tensors() reads it");
  }
  if (begin.starts_with("\x80\2")) {
    throw CheckpointError(name + ": this is a PyTorch file (.pt) in the format before PyTorch 1.6",
                          "save it again in Python: torch.save(torch.load(old), new)");
  }
}

}  // namespace

std::int64_t safetensors_item_size(std::string_view dtype) noexcept {
  struct Item {
    std::string_view dtype;
    std::int64_t size;
  };
  constexpr Item kItems[] = {{"F32", 4},         {"BF16", 2},    {"F16", 2},         {"F64", 8},    {"I64", 8},
                             {"I32", 4},         {"I16", 2},     {"I8", 1},          {"U8", 1},     {"U16", 2},
                             {"U32", 4},         {"U64", 8},     {"BOOL", 1},        {"C64", 8},    {"F8_E4M3", 1},
                             {"F8_E4M3FNUZ", 1}, {"F8_E5M2", 1}, {"F8_E5M2FNUZ", 1}, {"F8_E8M0", 1}};
  for (const Item& item : kItems) {
    if (item.dtype == dtype) {
      return item.size;
    }
  }
  return 0;
}

void write_safetensors(std::span<const TensorView> tensors, const std::map<std::string, std::string>& metadata,
                       const std::function<void(std::span<const std::byte>)>& append) {
  if (tensors.size() > kMaxTensors) {
    throw CheckpointError(
        fmt::format("safetensors: found {} tensors, expected at most {}", tensors.size(), kMaxTensors));
  }
  std::unordered_set<std::string_view> names;
  for (const TensorView& tensor : tensors) {
    const std::string fault =
        find_fault(tensor.name, tensor.dtype, tensor.shape, static_cast<std::int64_t>(tensor.bytes.size()));
    if (!fault.empty()) {
      throw CheckpointError("safetensors: " + fault);
    }
    if (!names.insert(tensor.name).second) {
      throw CheckpointError("safetensors: found the tensor name " + tensor.name + " twice");
    }
  }

  // Data in order of falling item size: every tensor is then aligned for readers that map the file, without padding,
  // which the format forbids.
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return safetensors_item_size(tensors[a].dtype) > safetensors_item_size(tensors[b].dtype);
  });
  std::vector<std::int64_t> begins(tensors.size());
  std::int64_t position = 0;
  for (const std::size_t i : order) {
    begins[i] = position;
    position += static_cast<std::int64_t>(tensors[i].bytes.size());
  }

  const std::string header = header_text(tensors, begins, metadata);
  if (header.size() > static_cast<std::size_t>(kMaxHeaderBytes)) {
    throw CheckpointError(
        fmt::format("safetensors: found a header of {} bytes, expected at most {}", header.size(), kMaxHeaderBytes));
  }
  std::string length;
  append_little_endian(length, header.size(), kLengthBytes);
  append(std::as_bytes(std::span(length)));
  append(std::as_bytes(std::span(header)));
  for (const std::size_t i : order) {
    append(tensors[i].bytes);
  }
}

void parse_safetensors_header(std::string_view json, std::int64_t data_size, std::vector<TensorEntry>& entries,
                              std::map<std::string, std::string>& metadata) {
  entries.clear();
  metadata.clear();
  // The parser would skip a byte order mark, and treat a zero byte as the end.
  if (!json.starts_with('{') || json.find('\0') != std::string_view::npos) {
    throw CheckpointError("header: it is not JSON that starts with {");
  }
  HeaderParser parser(entries, metadata);
  if (!nlohmann::json::sax_parse(json, &parser)) {
    throw CheckpointError("header: " + printable(parser.fault()));
  }
  check_layout(entries, data_size);
}

SafetensorsReader::SafetensorsReader(std::unique_ptr<RandomAccessFile> file, std::string name)
    : file_(std::move(file)), name_(std::move(name)) {
  const std::int64_t rest = file_->size() - static_cast<std::int64_t>(kLengthBytes);
  if (rest < 0) {
    throw CheckpointError(fmt::format("{}: found {} bytes, expected a safetensors file", name_, file_->size()));
  }
  std::string prefix(kLengthBytes, '\0');
  file_->read(0, std::as_writable_bytes(std::span(prefix)));
  const std::uint64_t length = little_endian(prefix);
  const auto limit = static_cast<std::uint64_t>(std::min(rest, kMaxHeaderBytes));
  if (length > limit) {
    refuse_pytorch_file(prefix, name_);
    throw CheckpointError(fmt::format("{}: found a header of {} bytes, expected at most {}", name_, length, limit),
                          "it is no safetensors file, or it is damaged");
  }
  std::string header(static_cast<std::size_t>(length), '\0');
  file_->read(static_cast<std::int64_t>(kLengthBytes), std::as_writable_bytes(std::span(header)));
  data_offset_ = static_cast<std::int64_t>(kLengthBytes + header.size());
  try {
    parse_safetensors_header(header, file_->size() - data_offset_, entries_, metadata_);
  } catch (const CheckpointError& error) {
    throw CheckpointError(name_ + ": " + error.what(), error.hint());
  }
}

void SafetensorsReader::read(const TensorEntry& entry, std::span<std::byte> out) const {
  LOCKSTEP_ASSERT(static_cast<std::int64_t>(out.size()) == entry.end - entry.begin,
                  "the buffer must have the size of the tensor");
  file_->read(data_offset_ + entry.begin, out);
}

}  // namespace lockstep
