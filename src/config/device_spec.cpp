#include <algorithm>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include <lockstep/config/device_spec.h>

#include "base/text.h"
#include "config/shown_value.h"

namespace lockstep {
namespace {

constexpr int kLongestRange = 1024;
constexpr std::string_view kExamples = "use auto, a number of devices such as 2, or GPU indices such as 0,2 or 0-3";

/// The meaning of the text, or its problem.
struct Parsed {
  DeviceSpec::Kind kind = DeviceSpec::Kind::automatic;
  int count = 0;
  std::vector<int> indices{};
  std::int64_t min_free_bytes = 0;
  Problem problem{};  // what: "expected ..." without the flag; empty: no problem
};

Parsed refused(std::string what, std::string hint) {
  Parsed parsed;
  parsed.problem = {std::move(what), std::move(hint)};
  return parsed;
}

Parsed nothing_asked() { return refused("this requests no device", "use auto or -1 for all GPUs, \"0,\" for GPU 0"); }

Parsed negative(std::string_view piece) {
  return refused(fmt::format("found {}, expected a GPU index of 0 or more", piece), "use -1 alone for all GPUs");
}

std::optional<int> to_index(std::string_view text) {
  const auto value = text.find_first_not_of("0123456789") == std::string_view::npos ? parse_int(text) : std::nullopt;
  return value && *value <= std::numeric_limits<int>::max() ? std::optional(static_cast<int>(*value)) : std::nullopt;
}

Parsed check_indices(std::vector<int> indices) {
  for (auto index = indices.begin(); index != indices.end(); ++index) {
    if (*index < 0) {
      return negative(fmt::format("{}", *index));
    }
    if (std::find(indices.begin(), index, *index) != index) {
      return refused(fmt::format("GPU {} appears twice", *index), "list every GPU once; each GPU runs one rank");
    }
  }
  Parsed parsed;
  parsed.kind = DeviceSpec::Kind::indices;
  parsed.indices = std::move(indices);
  return parsed;
}

Parsed check_count(int count) {
  if (count == 0) {
    return nothing_asked();
  }
  if (count < -1) {
    return refused(fmt::format("found {}, expected a number of devices", count), "use -1 for all GPUs");
  }
  Parsed parsed;
  parsed.kind = count == -1 ? DeviceSpec::Kind::all : DeviceSpec::Kind::count;
  parsed.count = std::max(count, 0);
  return parsed;
}

/// Reports a piece that is neither an index nor a range, and suggests what was probably meant.
Parsed bad_piece(std::string_view piece) {
  if (piece.starts_with('-') && to_index(piece.substr(1))) {
    return negative(piece);
  }
  if (piece.starts_with('+') && to_index(piece.substr(1))) {
    return refused(fmt::format("found {}, expected a number without a sign", piece),
                   fmt::format("use {}", piece.substr(1)));
  }
  if (const auto number = parse_double(piece)) {
    return refused(fmt::format("found {}, expected a whole number", shown_value(piece)), std::string(kExamples));
  }
  if (const auto separator = piece.find_first_of("; \t/"); separator != std::string_view::npos) {
    std::string fixed(piece);
    fixed[separator] = ',';
    if (fixed.find_first_not_of("0123456789,-") == std::string::npos) {
      return refused(fmt::format("found \"{}\", expected a list with commas", shown_value(piece)), "use " + fixed);
    }
  }
  return refused(fmt::format("found \"{}\", expected GPU indices", shown_value(piece)), std::string(kExamples));
}

Parsed parse_list(std::string_view list) {
  std::vector<std::string> pieces = split(list, ',');
  if (pieces.size() > 1 && trim(pieces.back()).empty()) {
    pieces.pop_back();  // "2," is a list with one entry
  }
  std::vector<int> indices;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    std::string_view piece = trim(pieces[i]);
    if (piece.empty()) {
      if (pieces.size() == 1) {
        return nothing_asked();
      }
      std::erase_if(pieces, [](const std::string& text) { return trim(text).empty(); });
      return refused("empty entry in the list", pieces.empty()
                                                    ? std::string(kExamples)
                                                    : "use " + join(pieces, ",") + (pieces.size() == 1 ? "," : ""));
    }
    if (piece.starts_with("cuda:")) {
      piece = trim(piece.substr(5));
    }
    const auto dash = piece.find('-', 1);
    if (dash == std::string_view::npos) {
      const auto index = to_index(piece);
      if (!index || piece.empty()) {
        return bad_piece(piece);
      }
      indices.push_back(*index);
      continue;
    }
    const auto first = to_index(trim(piece.substr(0, dash)));
    const auto last = to_index(trim(piece.substr(dash + 1)));
    if (!first || !last) {
      return bad_piece(piece);
    }
    if (*first > *last) {
      return refused(fmt::format("range {} is descending", piece), fmt::format("use {}-{}", *last, *first));
    }
    if (*last - *first >= kLongestRange) {
      return refused(fmt::format("range {} contains {} GPUs, the limit is {}", piece, std::int64_t{*last} - *first + 1,
                                 kLongestRange),
                     "use -1 for all GPUs");
    }
    for (int index = *first; index <= *last; ++index) {
      indices.push_back(index);
    }
    if (indices.size() > kLongestRange) {
      return refused(fmt::format("more than {} GPUs are listed", kLongestRange), "use -1 for all GPUs");
    }
  }
  return check_indices(std::move(indices));
}

/// "usable:2", "free:2@8GiB", after the colon.
Parsed parse_choice(DeviceSpec::Kind kind, std::string_view argument) {
  const bool by_memory = kind == DeviceSpec::Kind::most_free;
  const auto at = argument.find('@');
  const auto count = to_index(trim(argument.substr(0, at)));
  if (!count || *count == 0) {
    return refused("expected a number of GPUs of 1 or more after the colon",
                   by_memory ? "use for example free:2 or free:2@8GiB" : "use for example usable:2");
  }
  Parsed parsed;
  parsed.kind = kind;
  parsed.count = *count;
  if (at != std::string_view::npos) {
    const auto bytes = parse_bytes(argument.substr(at + 1));
    if (!by_memory) {
      return refused("usable does not accept a memory size", fmt::format("use free:{}", argument));
    }
    if (!bytes || *bytes == 0) {
      return refused(fmt::format("found \"{}\", expected a memory size", shown_value(trim(argument.substr(at + 1)))),
                     fmt::format("use for example free:{}@8GiB", *count));
    }
    parsed.min_free_bytes = *bytes;
  }
  return parsed;
}

bool in_brackets(std::string_view text) {
  return text.size() >= 2 &&
         ((text.front() == '[' && text.back() == ']') || (text.front() == '(' && text.back() == ')') ||
          (text.front() == '{' && text.back() == '}'));
}

Parsed parse(std::string_view written) {
  const std::string lowered = to_lower(trim(written));
  const std::string_view text = lowered;
  if (text == "auto") {
    return {};
  }
  if (text == "cpu") {
    Parsed parsed;
    parsed.kind = DeviceSpec::Kind::cpu;
    return parsed;
  }
  if (text.empty() || text == "none" || text == ",") {
    return nothing_asked();
  }
  if (text == "gpu" || text == "cuda" || text == "all") {
    return refused("expected GPUs by number", "use -1 for all GPUs, 1 for the first, \"0,\" for GPU 0");
  }
  if (text.starts_with("usable:")) {
    return parse_choice(DeviceSpec::Kind::usable, text.substr(7));
  }
  if (text.starts_with("free:")) {
    return parse_choice(DeviceSpec::Kind::most_free, text.substr(5));
  }
  if (text == "usable" || text == "free") {
    return refused("expected a number of GPUs", fmt::format("use for example {}:2", text));
  }
  if (text.starts_with("cpu:")) {
    return refused("CPU ranks have no indices", "use --compute_setup cpu --devices 2 for two CPU ranks");
  }
  if (text.starts_with("gpu:")) {
    return refused("expected GPU indices", fmt::format("use cuda:{}", text.substr(4)));
  }
  if (in_brackets(text)) {
    return parse_list(trim(text.substr(1, text.size() - 2)));
  }
  const bool is_number = text.find_first_not_of("0123456789", text.front() == '-' ? 1 : 0) == std::string_view::npos;
  if (is_number && text != "-") {
    const auto count = parse_int(text);
    if (!count || *count > std::numeric_limits<int>::max() || *count < std::numeric_limits<int>::min()) {
      return refused("the number of devices is out of range", std::string(kExamples));
    }
    return check_count(static_cast<int>(*count));
  }
  return parse_list(text);
}

std::string list_text(const std::vector<int>& indices) {
  if (indices.empty()) {
    return "[]";
  }
  std::string text;
  for (const int index : indices) {
    text += fmt::format("{}{}", text.empty() ? "" : ",", index);
  }
  return indices.size() == 1 ? text + "," : text;  // "2" without a comma would be a count
}

}  // namespace

DeviceSpec::DeviceSpec(int count) : DeviceSpec(fmt::format("{}", count)) {}
DeviceSpec::DeviceSpec(std::initializer_list<int> indices) : DeviceSpec(std::vector<int>(indices)) {}
DeviceSpec::DeviceSpec(const std::vector<int>& indices) : DeviceSpec(list_text(indices)) {}

DeviceSpec::DeviceSpec(std::string_view text) : text_(trim(text)) {
  Parsed parsed = parse(text);
  kind_ = parsed.kind;
  count_ = parsed.count;
  indices_ = std::move(parsed.indices);
  min_free_bytes_ = parsed.min_free_bytes;
  if (!parsed.problem.what.empty()) {
    const std::string shown = text_.empty() ? "\"\"" : shown_value(text_);
    problems_.push_back(
        {fmt::format("--devices {}: {}", shown, printable(parsed.problem.what)), printable(parsed.problem.hint)});
  }
}

bool DeviceSpec::operator==(const DeviceSpec& other) const {
  if (!problems_.empty() || !other.problems_.empty()) {
    return text_ == other.text_;
  }
  return kind_ == other.kind_ && count_ == other.count_ && indices_ == other.indices_ &&
         min_free_bytes_ == other.min_free_bytes_;
}

}  // namespace lockstep
