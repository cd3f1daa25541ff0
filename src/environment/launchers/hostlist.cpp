#include "environment/launchers/hostlist.h"

#include <fmt/format.h>

#include "base/text.h"

namespace lockstep {
namespace {

constexpr std::size_t kLongestName = 255;

constexpr bool is_separator(char c) { return c == ',' || c == ' '; }
constexpr bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
         c == '_' || c == ':';
}

class HostlistParser {
 public:
  explicit HostlistParser(std::string_view text) : text_(text) {}

  Hostlist parse() {
    while (ok() && !at_end()) {
      if (is_separator(peek())) {
        ++position_;
      } else {
        parse_host();
      }
    }
    if (ok() && result_.hosts.empty()) {
      fail("contains no host");
    }
    if (!ok()) {
      result_.hosts.clear();
    }
    return std::move(result_);
  }

 private:
  bool ok() const { return result_.problem.empty(); }
  bool at_end() const { return position_ == text_.size(); }
  char peek() const { return text_[position_]; }
  void fail(std::string_view what) {
    if (ok()) {
      result_.problem = fmt::format("{} at position {}", what, position_ + 1);
    }
  }

  /// One host, or the product of its brackets: every name so far with every text that follows it.
  void parse_host() {
    std::vector<std::string> names{""};
    while (ok() && !at_end() && !is_separator(peek())) {
      if (peek() == '[') {
        names = product(names, parse_bracket());  // empty after a problem
      } else if (names.front().size() == kLongestName) {
        fail("a host name that is too long");
      } else if (is_name(peek())) {
        const char c = text_[position_++];
        for (std::string& name : names) {
          name += c;
        }
      } else {
        fail("a character that is not allowed in a host name");
      }
    }
    if (ok() && result_.hosts.size() + names.size() > kMaxHosts) {
      fail(fmt::format("more than {} hosts", kMaxHosts));
    }
    if (ok()) {
      result_.hosts.insert(result_.hosts.end(), names.begin(), names.end());
    }
  }

  std::vector<std::string> product(const std::vector<std::string>& names, const std::vector<std::string>& ends) {
    std::vector<std::string> all;
    if (names.size() * ends.size() > kMaxHosts) {
      fail(fmt::format("more than {} hosts", kMaxHosts));
      return all;
    }
    for (const std::string& name : names) {
      for (const std::string& end : ends) {
        all.push_back(name + end);
      }
    }
    return all;
  }

  /// "[1-3,007]"
  std::vector<std::string> parse_bracket() {
    const std::size_t close = text_.find(']', position_);
    std::vector<std::string> numbers;
    if (close == std::string_view::npos) {
      fail("a bracket that is not closed");
      return numbers;
    }
    for (const std::string& part : split(text_.substr(position_ + 1, close - position_ - 1), ',')) {
      append_range(trim(part), numbers);
    }
    position_ = close + 1;
    return numbers;
  }

  void append_range(std::string_view range, std::vector<std::string>& numbers) {
    const std::size_t dash = range.find('-');
    const std::string_view first = range.substr(0, dash);
    const std::string_view last = dash == std::string_view::npos ? first : range.substr(dash + 1);
    const auto from = parse_number(first);
    const auto to = parse_number(last);
    if (!from || !to || *from > *to) {
      fail("an invalid range in the bracket");
    } else if (static_cast<std::size_t>(*to - *from) >= kMaxHosts - numbers.size()) {
      fail(fmt::format("more than {} hosts", kMaxHosts));
    } else {
      for (std::int64_t number = *from; number <= *to; ++number) {
        numbers.push_back(fmt::format("{:0{}}", number, first.size()));
      }
    }
  }

  /// Only digits, and few enough for a host name.
  static std::optional<std::int64_t> parse_number(std::string_view digits) {
    constexpr std::size_t kMostDigits = 18;
    const bool plain = digits.size() <= kMostDigits && digits.find_first_not_of("0123456789") == std::string_view::npos;
    return plain ? parse_int(digits) : std::nullopt;
  }

  std::string_view text_;
  std::size_t position_ = 0;
  Hostlist result_{};
};

}  // namespace

Hostlist parse_hostlist(std::string_view text) { return HostlistParser(text).parse(); }

}  // namespace lockstep
