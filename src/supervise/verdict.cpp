#include "supervise/verdict.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <signal.h>
#include <string.h>

#include <lockstep/base/error.h>

#include "base/text.h"
#include "failure/deadlines.h"

namespace lockstep {
namespace {

constexpr int kStopped = static_cast<int>(ExitCode::stopped);
constexpr int kInterrupted = static_cast<int>(ExitCode::interrupted);

std::string signal_text(int signal) {
  const char* name = sigdescr_np(signal);
  return fmt::format("signal {} ({})", signal, name == nullptr ? "unknown" : name);
}

bool is_stop_request(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGUSR1 || signal == SIGHUP;
}

/// " at step 812 in data", or nothing.
std::string after_blank(const std::string& text) { return text.empty() ? text : " " + text; }

/// The worker's own words, without anything that drives a terminal. Only its first line may begin like one of ours: the
/// others are indented.
std::string clean_message(std::string_view text) {
  constexpr std::string_view kLabel = "error: ";
  constexpr std::string_view kIndent = "  ";
  std::vector<std::string> lines = split(text.starts_with(kLabel) ? text.substr(kLabel.size()) : text, '\n');
  for (std::string& line : lines) {
    line = printable(line);
    if (&line != &lines.front() && !line.starts_with(kIndent)) {
      line.insert(0, kIndent);
    }
  }
  while (!lines.empty() && trim(lines.back()).empty()) {
    lines.pop_back();
  }
  return join(lines, "\n");
}

std::string signal_hint(int signal) {
  if (signal == SIGKILL) {
    return "the system kills with signal 9 when memory runs out; dmesg says so";
  }
  constexpr std::array kCrashes{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
  return std::find(kCrashes.begin(), kCrashes.end(), signal) == kCrashes.end()
             ? std::string()
             : "`ulimit -c unlimited` before the start lets it leave a core file";
}

}  // namespace

Verdict::Verdict(std::string host, const std::vector<pid_t>& pids, int first_rank)
    : first_rank_(first_rank), host_(std::move(host)) {
  for (const pid_t pid : pids) {
    ranks_.push_back({.pid = pid});
  }
}

Verdict::Outcome Verdict::blame(int rank, std::string_view what, int exit_code) const {
  const pid_t pid = ranks_[static_cast<std::size_t>(rank)].pid;
  return {.exit_code = exit_code,
          .rank = first_rank_ + rank,
          .what = fmt::format("rank {} (host {}, pid {}) {}", first_rank_ + rank, host_, pid, what)};
}

void Verdict::decide(Outcome outcome) {
  if (!outcome_) {
    outcome_ = std::move(outcome);
  }
}

void Verdict::announced(int rank, const Message& message, const ProgressView& place, Time now) {
  Rank& state = ranks_[static_cast<std::size_t>(rank)];
  if (message.kind == Message::Kind::finished) {
    state.finished = message.code;
    return;
  }
  state.failed = true;
  const int code = message.code == 0 ? static_cast<int>(ExitCode::failed) : message.code;
  Outcome outcome =
      blame(rank, fmt::format("failed{}: {}", after_blank(place_of(place)), clean_message(message.text)), code);
  outcome.explained = true;
  if (!message.secondary) {
    decide(std::move(outcome));
  } else if (!secondary_) {
    secondary_ = Secondary{.outcome = std::move(outcome), .due = now + deadlines::kWaitForCause};
  }
}

void Verdict::exited(int rank, const Ending& ending) {
  const ExitStatus& status = ending.status;
  Rank& state = ranks_[static_cast<std::size_t>(rank)];
  state.gone = true;
  if (state.failed) {
    return;  // judged when it was announced
  }
  const bool well = state.finished == 0 || state.finished == kStopped || state.finished == kInterrupted;
  // A request to stop may come when the work is done and its handler gone.
  if (well && (status.signal == 0 ? status.code == state.finished : is_stop_request(status.signal))) {
    state.ended_well = true;
    stop_code_ = stop_code_ == 0 ? *state.finished : stop_code_;
  } else if (status.signal != 0) {
    if (status.signal != SIGKILL || !killed_) {
      decide(judge_signal(rank, ending));
    }
  } else {
    decide(judge_exit(rank, ending));
  }
}

Verdict::Outcome Verdict::judge_signal(int rank, const Ending& ending) const {
  const int signal = ending.status.signal;
  const int code = 128 + signal;
  const bool nothing_to_save = ending.place.step <= ending.first_step;
  if (forwarded_.contains(signal) || (is_stop_request(signal) && nothing_to_save)) {
    return {.exit_code = signal == SIGINT ? kInterrupted : kStopped,
            .what = fmt::format("stopped by {} before the training began; run the same command again",
                                signal_text(signal))};
  }
  const std::string place = after_blank(place_of(ending.place));
  if (signal == SIGKILL && ending.out_of_memory) {
    const std::string limit =
        ending.memory_limit ? fmt::format(" (memory limit {})", human_bytes(*ending.memory_limit)) : std::string();
    Outcome outcome = blame(rank, fmt::format("was killed by the kernel's OOM killer{}{}", limit, place), code);
    outcome.hint =
        "use a smaller --batch_size, fewer --data.workers or a smaller --data.prefetch, or allow more memory";
    return outcome;
  }
  Outcome outcome = blame(rank, fmt::format("died of {}{}", signal_text(signal), place), code);
  outcome.hint = signal_hint(signal);
  return outcome;
}

Verdict::Outcome Verdict::judge_exit(int rank, const Ending& ending) const {
  constexpr int kFailed = static_cast<int>(ExitCode::failed);
  const int code = ending.status.code;
  const std::optional<int> announced = ranks_[static_cast<std::size_t>(rank)].finished;
  if (announced == code) {
    return blame(rank, fmt::format("finished with code {}", code), code);
  }
  if (announced) {
    return blame(rank, fmt::format("exited with code {} after it announced {}", code, *announced), kFailed);
  }
  Outcome outcome = blame(
      rank, fmt::format("exited with code {} without finishing{}", code, after_blank(place_of(ending.place))), kFailed);
  if (code == 0) {
    outcome.hint = "exit() in one rank leaves the others waiting: return from the worker function instead";
  }
  return outcome;
}

void Verdict::stalled(int rank, std::string_view what, std::string hint) {
  Outcome outcome = blame(rank, what, static_cast<int>(ExitCode::timeout));
  outcome.hint = std::move(hint);
  outcome.explained = true;
  decide(std::move(outcome));
}

bool Verdict::is_unaware(int rank) const {
  const Rank& state = ranks_[static_cast<std::size_t>(rank)];
  return !state.gone && !state.failed;
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
  if (!outcome_->hint.empty()) {
    text += "\n  hint: " + outcome_->hint;
  }
  const auto others =
      std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return !rank.ended_well; }) - 1;
  if (others > 0) {
    text += fmt::format("\n  {} other rank{} stopped because of it", others, others == 1 ? "" : "s");
  }
  return text + fmt::format("\n  exit code {}", outcome_->exit_code);
}

}  // namespace lockstep
