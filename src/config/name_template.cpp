#include "config/name_template.h"

#include <algorithm>

#include <fmt/format.h>

namespace lockstep {
namespace {

constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";

constexpr std::size_t kMaxNameLength = 128;  // limit of CheckpointDir::link()

struct Placeholder {
  std::string_view name{};
  int digits = -1;  // -1: not given
};

/// Parses the text between the braces: name, or name:.Nf.
std::optional<Placeholder> parse_placeholder(std::string_view text) {
  Placeholder result{.name = text.substr(0, text.find(':'))};
  if (result.name.empty() || result.name.find_first_not_of(kLetters) != std::string_view::npos) {
    return std::nullopt;
  }
  if (const std::string_view format = text.substr(result.name.size()); !format.empty()) {
    if (format.size() != 4 || !format.starts_with(":.") || format[2] < '0' || format[2] > '9' || format[3] != 'f') {
      return std::nullopt;
    }
    result.digits = format[2] - '0';
  }
  return result;
}

/// Calls literal(text) and placeholder(text between braces) in order; false: the braces do not match.
template <class Literal, class Braces>
bool walk(std::string_view text, const Literal& literal, const Braces& braces) {
  while (!text.empty()) {
    const auto open = std::min(text.find_first_of("{}"), text.size());
    literal(text.substr(0, open));
    text.remove_prefix(open);
    if (text.empty()) {
      return true;
    }
    const auto close = text.find('}');
    if (text.front() == '}' || close == std::string_view::npos) {
      return false;
    }
    braces(text.substr(1, close - 1));
    text.remove_prefix(close + 1);
  }
  return true;
}

}  // namespace

std::optional<std::string> find_name_fault(std::string_view text) {
  if (text.empty()) {
    return std::nullopt;
  }
  std::optional<std::string> fault;
  bool tells_apart = false;
  std::size_t length = 0;  // of the shortest possible name
  const bool matched = walk(
      text,
      [&](std::string_view literal) {
        length += literal.size();
        const auto odd = std::ranges::find_if(literal, [](char c) {
          return kLetters.find(c) == std::string_view::npos && c != '.' && c != '-' && c != '=';
        });
        if (odd != literal.end()) {
          fault = fmt::format("found '{}', expected letters, digits and . _ - =", *odd);
        }
      },
      [&](std::string_view braces) {
        const auto placeholder = parse_placeholder(braces);
        if (!placeholder) {
          fault = fmt::format("found {{{}}}, expected {{name}} or {{name:.3f}}", braces);
        } else {
          length += placeholder->digits > 0 ? 2 + static_cast<std::size_t>(placeholder->digits) : 1;  // 0.123
          tells_apart = tells_apart || placeholder->name == "step" || placeholder->name == "epoch";
        }
      });
  if (!matched) {
    return text.find('{') == std::string_view::npos ? "found } without {" : "found { without }";
  }
  if (!fault && (text.starts_with("step-") || text.starts_with('.'))) {
    return "a name must not begin with step- or a dot";
  }
  if (!fault && !tells_apart) {
    return "a name must contain {step} or {epoch}";
  }
  if (!fault && length > kMaxNameLength) {
    return fmt::format("the name has at least {} characters, the limit is {}", length, kMaxNameLength);
  }
  return fault;
}

std::optional<std::string> fill_name(std::string_view text,
                                     const std::function<std::optional<double>(std::string_view name)>& value) {
  std::string filled;
  bool known = true;
  walk(
      text, [&](std::string_view literal) { filled += literal; },
      [&](std::string_view braces) {
        const Placeholder placeholder = *parse_placeholder(braces);
        const auto number = value(placeholder.name);
        known = known && number.has_value();
        const double shown = number.value_or(0);
        const bool whole = placeholder.name == "step" || placeholder.name == "epoch";
        filled += placeholder.digits >= 0 ? fmt::format("{:.{}f}", shown, placeholder.digits)
                  : whole                 ? fmt::format("{:.0f}", shown)
                                          : fmt::format("{:.4g}", shown);
      });
  return known ? std::optional(filled) : std::nullopt;
}

}  // namespace lockstep
