#include "supervise/run_outcome.h"

#include <algorithm>
#include <array>

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

/// " at step 812 in data", or "".
std::string after_blank(const std::string& text) { return text.empty() ? text : " " + text; }

/// The worker's message without terminal control sequences. All lines except the first are indented, so that they do
/// not look like our own lines.
std::string clean_message(std::string_view text) {
  constexpr std::string_view kIndent = "  ";
  std::vector<std::string> lines = split(without_label(text), '\n');
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
    return "the kernel sends signal 9 if memory runs out; check dmesg";
  }
  constexpr std::array kCrashes{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
  return std::ranges::find(kCrashes, signal) == kCrashes.end()
             ? std::string()
             : "run `ulimit -c unlimited` before the start to get a core file";
}

}  // namespace

RunOutcome::RunOutcome(std::string host, const std::vector<pid_t>& pids, int first_rank)
    : first_rank_(first_rank), host_(std::move(host)) {
  for (const pid_t pid : pids) {
    ranks_.push_back({.pid = pid});
  }
}

Failure RunOutcome::blame(int rank, std::string_view what, int code) const {
  const pid_t pid = ranks_[static_cast<std::size_t>(rank)].pid;
  return {.rank = first_rank_ + rank,
          .code = code,
          .text = fmt::format("rank {} (host {}, pid {}) {}", first_rank_ + rank, host_, pid, what)};
}

void RunOutcome::announced(int rank, const Message& message, const ProgressView& place, Time now) {
  Rank& state = ranks_[static_cast<std::size_t>(rank)];
  if (message.kind == Message::Kind::started) {  // perhaps the next program of a script
    state.finished.reset();
    return;
  }
  if (message.kind == Message::Kind::finished) {
    state.finished = message.code;
    return;
  }
  state.failed = true;
  const int code = message.code == 0 ? static_cast<int>(ExitCode::failed) : message.code;
  Failure failure =
      blame(rank, fmt::format("failed{}: {}", after_blank(place_of(place)), clean_message(message.text)), code);
  failure.is_consequence = message.secondary;
  verdict_.add(std::move(failure), now);
}

void RunOutcome::exited(int rank, const Ending& ending) {
  const ExitStatus& status = ending.status;
  Rank& state = ranks_[static_cast<std::size_t>(rank)];
  state.gone = true;
  if (state.failed) {
    return;  // the failure was added when it was announced
  }
  // Another program may use the codes 75 and 130 for anything.
  const bool may_stop = ending.tells_steps || !forwarded_.empty();
  const bool stopped = may_stop && (state.finished == kStopped || state.finished == kInterrupted);
  // After a stop everything is saved, and main() may end with any code. A stop request may arrive after the work, when
  // its handler is no longer installed.
  const bool as_announced =
      status.signal == 0 ? stopped || status.code == state.finished : is_stop_request(status.signal);
  if ((state.finished == 0 || stopped) && as_announced) {
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

Failure RunOutcome::judge_signal(int rank, const Ending& ending) const {
  const int signal = ending.status.signal;
  const int code = 128 + signal;
  const std::string place = after_blank(place_of(ending.place));
  if (ending.of_script && ending.has_trained && is_stop_request(signal)) {
    return blame(rank,
                 fmt::format("ended{} without saying that its work is saved, after {} had ended its script", place,
                             signal_text(signal)),
                 static_cast<int>(ExitCode::failed));
  }
  if (forwarded_.contains(signal) || (is_stop_request(signal) && ending.tells_steps && !ending.has_trained)) {
    const bool before_training = ending.tells_steps && !ending.has_trained;
    return {.code = signal == SIGINT ? kInterrupted : kStopped,
            .text = fmt::format("stopped by {}{}", signal_text(signal),
                                before_training ? " before the training began; run the same command again" : "")};
  }
  if (signal == SIGKILL && ending.out_of_memory) {
    const std::string limit =
        ending.memory_limit ? fmt::format(" (memory limit {})", human_bytes(*ending.memory_limit)) : std::string();
    Failure failure = blame(rank, fmt::format("was killed by the kernel's OOM killer{}{}", limit, place), code);
    failure.hint =
        "use a smaller --batch_size, fewer --data.workers or a smaller --data.prefetch, or allow more memory";
    return failure;
  }
  Failure failure = blame(rank, fmt::format("died of {}{}", signal_text(signal), place), code);
  failure.hint = signal_hint(signal);
  return failure;
}

Failure RunOutcome::judge_exit(int rank, const Ending& ending) const {
  constexpr int kFailed = static_cast<int>(ExitCode::failed);
  const int code = ending.status.code;
  const std::optional<int> announced = ranks_[static_cast<std::size_t>(rank)].finished;
  if (announced == code) {
    return blame(rank, fmt::format("finished with code {}", code), code);
  }
  if (announced) {
    return blame(rank, fmt::format("exited with code {} after it announced {}", code, *announced), kFailed);
  }
  const std::string place = place_of(ending.place);
  Failure failure = blame(
      rank,
      fmt::format("ended with exit code {} before its training was done{}{}", code, place.empty() ? "" : ": ", place),
      kFailed);
  if (code == 0) {
    failure.hint =
        "exit() ends one rank and leaves the others waiting: call request_stop(), or return from the worker "
        "function on every rank";
  }
  return failure;
}

void RunOutcome::stalled(int rank, std::string_view what, std::string hint) {
  Failure failure = blame(rank, what, static_cast<int>(ExitCode::timeout));
  failure.hint = std::move(hint);
  has_stalled_ = true;
  decide(std::move(failure));
}

bool RunOutcome::is_unaware(int rank) const {
  const Rank& state = ranks_[static_cast<std::size_t>(rank)];
  return !state.gone && !state.failed;
}

void RunOutcome::killed_by_user() {
  killed_by_us();
  decide({.code = kInterrupted, .text = "stopped at once by a second Ctrl-C"});
}

void RunOutcome::settle(Time now) {
  const bool all_gone = std::ranges::all_of(ranks_, [](const Rank& rank) { return rank.gone; });
  verdict_.settle(now, all_gone);
}

bool RunOutcome::is_explained(const Failure& cause) const {
  return cause.rank >= 0 && (has_stalled_ || ranks_[static_cast<std::size_t>(cause.rank - first_rank_)].failed);
}

LaunchReport RunOutcome::report() const {
  const std::optional<Failure>& cause = verdict_.cause();
  if (!cause) {
    return {.exit_code = stop_code_};
  }
  return {.exit_code = cause->code,
          .failed_rank = cause->rank,
          .failure = cause->rank >= 0 ? cause->text : std::string{},
          .explained = is_explained(*cause),
          .ended_by_signal = cause->rank < 0};
}

std::string RunOutcome::text() const {
  const std::optional<Failure>& cause = verdict_.cause();
  if (!cause) {
    return {};
  }
  if (cause->rank < 0) {
    return cause->text;
  }
  std::string text = "error: " + cause->text;
  if (!cause->hint.empty()) {
    text += "\n  hint: " + cause->hint;
  }
  const auto others = std::ranges::count_if(ranks_, [](const Rank& rank) { return !rank.ended_well; }) - 1;
  if (others > 0) {
    text += fmt::format("\n  {} stopped because of it", counted(others, "other rank"));
  }
  return text + fmt::format("\n  exit code {}", cause->code);
}

}  // namespace lockstep
