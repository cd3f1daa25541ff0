#include "storage/names.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/run_files.h"
#include "base/text.h"

namespace lockstep {
namespace {

constexpr std::string_view kPrefix = kStepPrefix;
constexpr std::string_view kAside = ".old.";
constexpr std::string_view kTemporary = ".tmp.";
constexpr std::string_view kAbandoned = ".abandoned.";

struct Parts {
  std::int64_t step = 0;
  std::string_view rest{};  // from the first dot on
};

std::optional<Parts> parts_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  const std::string_view base = name.substr(0, name.find('.'));
  const std::optional<std::int64_t> step = parse_int(base.substr(kPrefix.size()));
  if (!step || *step < 0 || step_name(*step) != base) {
    return std::nullopt;
  }
  return Parts{*step, name.substr(base.size())};
}

bool is_nonce_after(std::string_view rest, std::string_view kind) {
  return rest.starts_with(kind) && is_random_id(rest.substr(kind.size()));
}

// 1 to 128 letters, digits and `others`.
bool has_only(std::string_view name, std::string_view others) noexcept {
  const auto allowed = [others](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           others.find(c) != std::string_view::npos;
  };
  return !name.empty() && name.size() <= 128 && std::ranges::all_of(name, allowed);
}

}  // namespace

std::string metric_key(std::string_view metric) { return fmt::format("metric.{}", metric); }

std::string step_name(std::int64_t step) { return fmt::format("{}{:010}", kPrefix, step); }
std::string aside_name(std::int64_t step) { return fmt::format("{}{}{}", step_name(step), kAside, random_id()); }
std::string temporary_name(std::int64_t step) {
  return fmt::format("{}{}{}", step_name(step), kTemporary, random_id());
}
std::string abandoned_name(std::int64_t step) {
  return fmt::format("{}{}{}", step_name(step), kAbandoned, random_id());
}

std::optional<std::int64_t> parse_abandoned_name(std::string_view name) {
  const auto parts = parts_of(name);
  return parts && is_nonce_after(parts->rest, kAbandoned) ? std::optional(parts->step) : std::nullopt;
}

std::optional<DirectoryName> parse_directory_name(std::string_view name) {
  const auto parts = parts_of(name);
  if (!parts) {
    return std::nullopt;
  }
  if (parts->rest.empty()) {
    return DirectoryName{parts->step, DirectoryKind::committed};
  }
  if (is_nonce_after(parts->rest, kAside)) {
    return DirectoryName{parts->step, DirectoryKind::aside};
  }
  if (is_nonce_after(parts->rest, kTemporary)) {
    return DirectoryName{parts->step, DirectoryKind::temporary};
  }
  return std::nullopt;
}

bool is_link_name(std::string_view name) {
  return has_only(name, "._=,+-") && name.front() != '.' && !parse_directory_name(name);
}

bool is_temporary_link_name(std::string_view name) {
  const std::size_t end = name.rfind(kTemporary);
  return end != std::string_view::npos && is_random_id(name.substr(end + kTemporary.size())) &&
         is_link_name(name.substr(0, end));
}

bool is_file_name(std::string_view name) noexcept { return has_only(name, "._-") && name != "." && name != ".."; }

}  // namespace lockstep
