#include "environment/launchers/launch_variables.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "base/crc32c.h"
#include "base/text.h"

namespace lockstep {
bool is_host(std::string_view text) {
  constexpr std::size_t kLongest = 255;  // limit of a domain name
  constexpr std::string_view kAllowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:%";
  return !text.empty() && text.size() <= kLongest && text.find_first_not_of(kAllowed) == std::string_view::npos;
}

std::optional<std::string> VariableReader::noted(const char* name) {
  auto value = variables_.get(name);
  if (value && std::ranges::find(names_, name) == names_.end()) {
    names_.emplace_back(name);
  }
  return value;
}

std::optional<int> VariableReader::number(const char* name, std::int64_t min, std::int64_t max) {
  const auto value = noted(name);
  if (!value) {
    return std::nullopt;
  }
  const auto number = parse_int(*value);
  if (!number || *number < min || *number > max) {
    problem(fmt::format("{}=\"{}\": expected a whole number from {} to {}", name, printable(*value), min, max));
    return std::nullopt;
  }
  return static_cast<int>(*number);
}

std::optional<std::string> VariableReader::text(const char* name) {
  auto value = noted(name);
  if (value && trim(*value).empty()) {
    problem(fmt::format("{}=\"{}\": expected a text", name, printable(*value)));
    return std::nullopt;
  }
  return value;
}

std::optional<std::string> VariableReader::host(const char* name) {
  auto value = noted(name);
  if (value && !is_host(*value)) {
    problem(fmt::format("{}=\"{}\": expected the name or address of a machine", name, printable(*value)));
    return std::nullopt;
  }
  return value;
}

int VariableReader::required_number(const char* name, std::int64_t min, std::string_view meaning,
                                    std::string_view hint) {
  if (!has(name)) {
    missing(name, meaning, hint);
  }
  return number(name, min).value_or(kRefused);
}

std::string VariableReader::required_text(const char* name, std::string_view meaning, std::string_view hint) {
  if (!has(name)) {
    missing(name, meaning, hint);
  }
  return text(name).value_or("");
}

void VariableReader::check_below(const char* name, int value, const char* limit_name, int limit) {
  if (limit != kRefused && value >= limit) {
    problem(fmt::format("{}={} and {}={}: expected 0 to {}", name, value, limit_name, limit, limit - 1));
  }
}

void VariableReader::missing(const char* name, std::string_view meaning, std::string_view hint) {
  problem(fmt::format("{} is not set, expected {}", name, meaning), std::string(hint));
}

int derived_port(std::string_view launch) {
  return 20000 + static_cast<int>(crc32c(std::as_bytes(std::span(launch))) % 10000);
}

void read_master(VariableReader& reader, Identity& identity) {
  const bool alone = identity.world_size == 1;
  if (!alone && !reader.has("MASTER_ADDR")) {
    reader.missing("MASTER_ADDR", "the address of rank 0's machine");
  }
  if (!alone && !reader.has("MASTER_PORT")) {
    reader.missing("MASTER_PORT", "a free port of rank 0's machine");
  }
  identity.master_addr = reader.host("MASTER_ADDR").value_or(identity.master_addr);
  identity.master_port = reader.number("MASTER_PORT", 1, 65535).value_or(0);
}

}  // namespace lockstep
