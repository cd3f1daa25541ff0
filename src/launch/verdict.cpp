#include "launch/verdict.h"

#include <algorithm>

#include <fmt/format.h>
#include <signal.h>
#include <string.h>

#include <lockstep/base/error.h>

#include "base/text.h"

namespace lockstep {
namespace {

constexpr int kStopped = static_cast<int>(ExitCode::stopped);
constexpr int kInterrupted = static_cast<int>(ExitCode::interrupted);

std::string signal_text(int signal) {
  const char* name = sigdescr_np(signal);
  return fmt::format("signal {} ({})", signal, name == nullptr ? "unknown" : name);
}

/// The worker's own words, line by line without anything that drives a terminal.
std::string clean_message(std::string_view text) {
  constexpr std::string_view kLabel = "error: ";
  std::vector<std::string> lines = split(text.starts_with(kLabel) ? text.substr(kLabel.size()) : text, '\n');
  std::transform(lines.begin(), lines.end(), lines.begin(), [](const std::string& line) { return printable(line); });
  while (!lines.empty() && trim(lines.back()).empty()) {
    lines.pop_back();
  }
  return join(lines, "\n");
}

}  // namespace

Verdict::Verdict(std::vector<pid_t> pids, int first_rank) : first_rank_(first_rank) {
  for (const pid_t pid : pids) {
    ranks_.push_back({.pid = pid});
  }
}

Verdict::Outcome Verdict::blame(int rank, std::string_view what, int exit_code, bool explained) const {
  const pid_t pid = ranks_[static_cast<std::size_t>(rank)].pid;
  return {.exit_code = exit_code,
          .rank = first_rank_ + rank,
          .what = fmt::format("rank {} (pid {}) {}", first_rank_ + rank, pid, what),
          .explained = explained};
}

void Verdict::decide(Outcome outcome) {
  if (!outcome_) {
    outcome_ = std::move(outcome);
  }
}

void Verdict::announced(int rank, const Message& message, Time now) {
  Rank& state = ranks_[static_cast<std::size_t>(rank)];
  if (message.kind == Message::Kind::finished) {
    state.finished = message.code;
    return;
  }
  state.failed = true;
  const int code = message.code == 0 ? static_cast<int>(ExitCode::failed) : message.code;
  Outcome outcome = blame(rank, fmt::format("failed: {}", clean_message(message.text)), code, /*explained=*/true);
  if (!message.secondary) {
    decide(std::move(outcome));
  } else if (!secondary_) {
    secondary_ = Secondary{.outcome = std::move(outcome), .due = now + kWaitForCause};
  }
}

void Verdict::exited(int rank, ExitStatus status) {
  constexpr int kFailed = static_cast<int>(ExitCode::failed);
  Rank& state = ranks_[static_cast<std::size_t>(rank)];
  state.gone = true;
  if (state.failed) {
    return;  // judged when it was announced
  }
  if (status.signal != 0) {
    const int code = 128 + status.signal;
    if (status.signal == SIGKILL && killed_) {
      return;
    }
    if (forwarded_.contains(status.signal)) {
      decide({.exit_code = code,
              .what = fmt::format("stopped by {} before the ranks could save", signal_text(status.signal))});
      return;
    }
    decide(blame(rank, fmt::format("died of {}", signal_text(status.signal)), code));
  } else if (!state.finished) {
    decide(blame(rank, fmt::format("exited with code {} without finishing", status.code), kFailed));
  } else if (*state.finished != status.code) {
    decide(
        blame(rank, fmt::format("exited with code {} after it announced {}", status.code, *state.finished), kFailed));
  } else if (status.code == 0 || status.code == kStopped || status.code == kInterrupted) {
    state.ended_well = true;
    stop_code_ = stop_code_ == 0 ? status.code : stop_code_;
  } else {
    decide(blame(rank, fmt::format("finished with code {}", status.code), status.code));
  }
}

void Verdict::killed_by_user() {
  killed_by_us();
  decide({.exit_code = kInterrupted, .what = "stopped at once by a second Ctrl-C"});
}

void Verdict::settle(Time now) {
  const bool all_gone = std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.gone; });
  if (secondary_ && !outcome_ && (all_gone || now >= secondary_->due)) {
    decide(secondary_->outcome);
  }
}

std::optional<Verdict::Time> Verdict::due() const {
  return secondary_ && !outcome_ ? std::optional(secondary_->due) : std::nullopt;
}

LaunchReport Verdict::report() const {
  if (!outcome_) {
    return {.exit_code = stop_code_};
  }
  return {.exit_code = outcome_->exit_code,
          .failed_rank = outcome_->rank,
          .failure = outcome_->rank >= 0 ? outcome_->what : std::string{},
          .explained = outcome_->explained};
}

std::string Verdict::text() const {
  if (!outcome_) {
    return {};
  }
  if (outcome_->rank < 0) {
    return outcome_->what;
  }
  std::string text = "error: " + outcome_->what;
  if (outcome_->exit_code == 128 + SIGKILL) {
    text += "\n  hint: the system kills with signal 9 when memory runs out; dmesg says so";
  }
  const auto others =
      std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return !rank.ended_well; }) - 1;
  if (others > 0) {
    text += fmt::format("\n  {} other rank{} stopped because of it", others, others == 1 ? "" : "s");
  }
  return text + fmt::format("\n  exit code {}", outcome_->exit_code);
}

}  // namespace lockstep
