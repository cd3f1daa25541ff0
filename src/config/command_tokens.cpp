#include "config/command_tokens.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/text.h"
#include "config/shown_value.h"

namespace lockstep {
namespace {

/// A token that begins with a dash and is not a value: "-1" and "-.5" are numbers, "-" means a file by custom.
bool looks_like_flag(std::string_view token) {
  return token.size() > 1 && token.front() == '-' && !(token[1] >= '0' && token[1] <= '9') && token[1] != '.';
}

}  // namespace

std::string FlagToken::with(std::string_view value) const {
  return fmt::format("{}{}{}", printable(written), attached ? "=" : " ", value.empty() ? "\"\"" : shown_value(value));
}

const std::string& CommandTokens::take() {
  const std::string& token = rest_.front();
  rest_ = rest_.subspan(1);
  return token;
}

std::optional<FlagToken> CommandTokens::take_flag() {
  if (rest_.empty() || rest_.front() == "--" || !looks_like_flag(rest_.front())) {
    return std::nullopt;
  }
  const std::string& token = take();
  const auto equals = token.find('=');
  FlagToken flag{.written = token.substr(0, equals)};
  flag.name = normal_name(std::string_view(flag.written).substr(token.starts_with("--") ? 2 : 1));
  if (equals != std::string::npos) {
    flag.attached = token.substr(equals + 1);
  }
  return flag;
}

const std::string* CommandTokens::value() const {
  return rest_.empty() || looks_like_flag(rest_.front()) ? nullptr : &rest_.front();
}

std::string normal_name(std::string_view name) {
  std::string result(name);
  std::ranges::replace(result, '-', '_');
  return result;
}

std::string variable_name(std::string_view prefix, std::string_view name) {
  std::string variable(prefix);
  for (const char c : name) {
    variable += c == '.' || c == '-' ? '_' : c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return variable;
}

}  // namespace lockstep
