#include "launch/restart_policy.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/text.h"

namespace lockstep {
namespace {

constexpr std::chrono::seconds kLongestWait{30};

bool is_hopeless(int exit_code) {
  constexpr ExitCode kHopeless[] = {ExitCode::usage, ExitCode::bad_data, ExitCode::disagree, ExitCode::cannot_run,
                                    ExitCode::not_found};
  return std::any_of(std::begin(kHopeless), std::end(kHopeless),
                     [&](ExitCode code) { return static_cast<int>(code) == exit_code; });
}

/// Pids, ports and addresses differ between attempts, so every number is replaced by '#'.
std::string without_numbers(std::string_view text) {
  const auto is_hex = [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    if (!is_digit(text[at])) {
      out += text[at++];
      continue;
    }
    const bool address = text.substr(at).starts_with("0x");
    at += address ? 2 : 0;
    while (at < text.size() && (address ? is_hex(text[at]) : is_digit(text[at]))) {
      ++at;
    }
    out += '#';
  }
  return out;
}

}  // namespace

RestartDecision RestartPolicy::after(const LaunchReport& report) {
  if (report.failed_rank < 0 || report.stop_requested) {
    return {};
  }
  constexpr int kMostHalvings = 30;  // of the largest batch_size
  const bool asks = report.explained && report.exit_code == static_cast<int>(ExitCode::out_of_memory);
  if (is_on_one_machine_ && asks && halvings_ < kMostHalvings) {
    ++halvings_;
    return {.restart = true, .halves = true};
  }
  if (max_ == 0) {
    return {};
  }
  if (is_hopeless(report.exit_code)) {
    return {.reason = fmt::format("exit code {} would be the same again", report.exit_code)};
  }
  const std::int64_t reached = report.all_steps();
  const Signature signature{without_numbers(report.failure), reached};
  // "died of signal 9" is not sufficient: there must also be a step or a reason.
  const bool telling = report.step >= 0 || report.explained;
  if (telling && last_ == signature) {
    return {.reason = report.step < 0
                          ? "deterministic failure: the same twice in a row"
                          : fmt::format("deterministic failure: the same twice in a row at step {}", report.step)};
  }
  last_ = signature;
  if (reached > furthest_) {
    furthest_ = reached;
    left_ = max_;
    next_wait_ = {};
  }
  if (left_ == 0) {
    return {.reason = fmt::format("no progress in {}", counted(max_, "restart"))};
  }
  --left_;
  const auto longer = std::clamp(2 * next_wait_, std::chrono::seconds(1), kLongestWait);
  return {.restart = true, .wait = std::exchange(next_wait_, longer)};
}

}  // namespace lockstep
