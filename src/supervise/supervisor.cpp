#include "supervise/supervisor.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>

#include "base/duration.h"
#include "base/mapped.h"
#include "base/text.h"
#include "environment/process_name.h"
#include "failure/deadlines.h"
#include "supervise/run_outcome.h"
#include "supervise/watched_rank.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kMessagesPerTurn = 1000;  // more than fit into the channel
constexpr int kReadsPerTurn = 16;       // one rank with much output must not starve the others

std::vector<pid_t> pids_of(const std::vector<WorkerProcess>& workers) { return mapped(workers, &WorkerProcess::pid); }

class Supervisor {
 public:
  Supervisor(std::vector<WorkerProcess> workers, std::vector<RankDestination> destinations, ProgressBoard progress,
             SignalInbox& signals, TerminalQueue& terminal, const SupervisorOptions& options)
      : progress_(std::move(progress)),
        signals_(signals),
        options_(options),
        terminal_(terminal),
        outcome_(host_name(), pids_of(workers), options.first_rank),
        stall_watch_(options.stall, static_cast<int>(workers.size()),
                     /*sees_all=*/static_cast<int>(workers.size()) == options.world_size, options.first_rank) {
    for (std::size_t i = 0; i < workers.size(); ++i) {
      // A line that is in a file is left out if the terminal is too slow.
      auto show = [this, i](OutputStream stream, std::string text) {
        terminal_.line(stream, std::move(text), /*may_be_left_out=*/ranks_[i].output().is_kept(stream));
      };
      ranks_.emplace_back(std::move(workers[i]),
                          RankOutput(options.first_rank + static_cast<int>(i), options.world_size, std::move(show),
                                     std::move(destinations[i])));
    }
  }

  LaunchReport run() {
    while (running() > 0 && !given_up()) {
      const auto looked = Clock::now();  // later events are handled in the next iteration
      const std::vector<int> ended = wait_for_events();
      take_signals();
      for (int rank = 0; rank < size(); ++rank) {
        read_messages(rank);
      }
      for (const int rank : ended) {
        if (watched(rank).has_ended()) {
          handle_exit(rank);
        }
      }
      if (options_.each_turn) {
        options_.each_turn();
      }
      look_for_stalls();
      outcome_.settle(looked);
      stop_the_rest();
    }
    LaunchReport report = outcome_.report();
    for (int rank = 0; rank < size(); ++rank) {
      const ProgressRecord& record = progress_[rank];
      std::tie(report.earlier_steps, report.step) =
          std::max(std::tuple(report.earlier_steps, report.step),
                   std::tuple(record.earlier_steps.load(std::memory_order_relaxed), view(record).step));
    }
    report.stop_requested = !forwarded_.empty();
    if (const std::optional<TrainingStart> start = progress_[0].training_start()) {
      report.first_step = start->step;
      report.training_s = seconds_since(start->time);
    }
    if (options_.ended) {
      options_.ended(report);
    }
    print_summary(report);
    return report;
  }

 private:
  int size() const { return static_cast<int>(ranks_.size()); }
  WatchedRank& watched(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  WorkerProcess& process(int rank) { return watched(rank).process(); }
  int running() const {
    return static_cast<int>(
        std::ranges::count_if(ranks_, [](const auto& rank) { return rank.process().is_running(); }));
  }
  bool is_main(int rank) const { return options_.first_rank + rank == 0; }
  /// A program without run(): another library's, or one that creates its own Session.
  bool is_stranger(int rank) { return options_.any_program && !watched(rank).has_sent(); }
  bool given_up() const { return killed_at_ && Clock::now() >= *kill_at_; }

  /// Time until the next action without an event; -1: none.
  int timeout() const {
    auto next = Clock::time_point::max();
    for (const auto& due : {outcome_.due(), notice_at_, kill_at_, look_at_}) {
      next = std::min(next, due.value_or(next));
    }
    if (next == Clock::time_point::max()) {
      return -1;
    }
    return static_cast<int>(std::max<std::int64_t>(0, std::chrono::ceil<milliseconds>(next - Clock::now()).count()));
  }

  /// Returns the ranks whose processes have ended.
  std::vector<int> wait_for_events() {
    std::vector<int> ended;
    std::vector<pollfd> entries;
    std::vector<std::function<void(short)>> actions;
    const auto watch = [&](int fd, std::function<void(short)> action) {  // poll ignores the descriptor -1
      entries.push_back({.fd = fd, .events = POLLIN, .revents = 0});
      actions.push_back(std::move(action));
    };
    // A rank that waits until we read its output cannot save.
    const bool reads_all = !terminal_.is_full() || !forwarded_.empty();
    watch(signals_.fd(), [](short) {});
    watch(terminal_.room_fd(), [this](short) { terminal_.take_room(); });
    for (int rank = 0; rank < size(); ++rank) {
      WatchedRank& of_rank = watched(rank);
      if (!of_rank.process().is_running()) {
        continue;
      }
      watch(of_rank.end_fd(), [&ended, rank](short) { ended.push_back(rank); });
      watch(of_rank.channel_fd(), [this, rank](short events) {
        read_messages(rank);
        if ((events & POLLHUP) != 0) {  // otherwise poll would always return at once
          watched(rank).leave_channel();
        }
      });
      for (const OutputStream stream : {OutputStream::out, OutputStream::err}) {
        if (reads_all || of_rank.output().is_kept(stream)) {
          watch(of_rank.pipe(stream).get(), [&of_rank, stream](short) { of_rank.read_pipe(stream, kReadsPerTurn); });
        } else if (of_rank.pipe(stream).is_open()) {
          left_unread_ = true;
        }
      }
    }
    if (poll(entries.data(), entries.size(), timeout()) > 0) {
      for (std::size_t i = 0; i < entries.size(); ++i) {
        if (entries[i].revents != 0) {
          actions[i](entries[i].revents);
        }
      }
    }
    return ended;
  }

  void take_signals() {
    while (const std::optional<int> signal = signals_.take()) {
      if (*signal == SIGUSR2) {
        order(Message::Kind::dump);
        continue;
      }
      if (*signal == SIGTSTP) {
        suspend();
        continue;
      }
      if (*signal == SIGINT && first_interrupt_ && Clock::now() > *first_interrupt_ + deadlines::kSecondInterrupt) {
        outcome_.killed_by_user();
        kill_all();
        continue;
      }
      if (*signal == SIGINT && !first_interrupt_) {
        first_interrupt_ = Clock::now();
      }
      forward(*signal == SIGHUP ? SIGTERM : *signal);
    }
  }

  void forward(int signal) {
    if (!forwarded_.insert(signal).second) {
      return;
    }
    outcome_.signal_forwarded(signal);
    stall_watch_.stop_asked_for(Clock::now());
    for (const WatchedRank& rank : ranks_) {
      if (rank.process().is_running()) {
        rank.send_signal(signal);
        rank.send_signal(SIGCONT);  // a stopped rank would not receive the signal
      }
    }
  }

  /// Ctrl-Z stops the whole job, as of any program; the ranks have process groups of their own.
  void suspend() {
    const auto signal_ranks = [this](int signal) {
      for (const WatchedRank& rank : ranks_) {
        if (rank.process().is_running()) {
          rank.process().signal_group(signal);
        }
      }
    };
    const auto began = Clock::now();
    signal_ranks(SIGSTOP);
    SignalInbox::suspend();
    signal_ranks(SIGCONT);
    const auto now = Clock::now();
    stall_watch_.leave_out(now);
    for (std::optional<Clock::time_point>* const due : {&kill_at_, &notice_at_}) {
      if (*due) {
        **due += now - began;
      }
    }
  }

  /// Sends to the ranks that run and have not announced their end.
  void order(Message::Kind kind, const std::string& why = {}) {
    for (int rank = 0; rank < size(); ++rank) {
      if (process(rank).is_running() && outcome_.is_unaware(rank)) {
        process(rank).channel().send({.kind = kind, .text = why});
      }
    }
  }

  void look_for_stalls() {
    const auto now = Clock::now();
    if (outcome_.is_decided()) {
      look_at_.reset();
      return;
    }
    if (look_at_ && now < *look_at_) {
      return;
    }
    look_at_ = now + StallWatch::kPeriod;
    if (stall_) {
      end_stalled();
      return;
    }
    if (std::exchange(left_unread_, false)) {  // ranks may have waited until we read theirs
      stall_watch_.leave_out(now);
      return;
    }
    std::vector<RankSample> samples;
    for (int rank = 0; rank < size(); ++rank) {
      const bool runs = process(rank).is_running();
      const pid_t pid = watched(rank).pid();
      stall_watch_.take_limits(progress_[rank]);
      samples.push_back({.view = view(progress_[rank]),
                         .process = runs ? read_process_state(pid) : ProcessState{},
                         .pid = pid,
                         .running = runs});
    }
    for (StallFinding& finding : stall_watch_.observe(samples, now)) {
      say("warning: " + finding.lines.front());
      std::for_each(finding.lines.begin() + 1, finding.lines.end(), [&](const std::string& line) { say(line); });
      if (!finding.hint.empty() && !finding.ends_the_run) {  // otherwise the final message contains it
        say("  hint: " + finding.hint);
      }
      if (finding.ends_the_run) {
        order(Message::Kind::dump);
        look_at_ = now + deadlines::kStacks;
        stall_ = std::move(finding);
      }
    }
  }

  /// The stacks are written: report the stalled ranks.
  void end_stalled() { outcome_.stalled(stall_->ranks.front(), stall_->what, stall_->hint); }

  void read_messages(int rank) {
    RankOutput& output = watched(rank).output();
    for (int count = 0; count < kMessagesPerTurn; ++count) {
      const std::optional<Message> message = watched(rank).receive();
      if (!message) {
        return;
      }
      switch (message->kind) {
        case Message::Kind::line:
          if (is_main(rank)) {
            output.report_line(message->text);
          } else {
            output.line(message->text);
          }
          break;
        case Message::Kind::status:
          if (is_main(rank) && options_.terminal_status) {
            terminal_.status(printable(message->text));
          }
          break;
        case Message::Kind::started:
        case Message::Kind::failure:
        case Message::Kind::finished:
          outcome_.announced(rank, *message, view(progress_[rank]), Clock::now());
          break;
        case Message::Kind::left:
          watched(rank).keep_what_is_left(message->text);
          break;
        case Message::Kind::abort:  // only the supervisor sends these
        case Message::Kind::dump:
          break;
      }
    }
  }

  void handle_exit(int rank) {
    read_messages(rank);
    const ExitStatus status = process(rank).reap();
    if (is_stranger(rank) && status.signal == 0) {
      outcome_.announced(rank, {.kind = Message::Kind::finished, .code = status.code}, view(progress_[rank]),
                         Clock::now());
    }
    const MemoryWatch& memory = watched(rank).memory();
    outcome_.exited(rank, {.status = status,
                           .of_script = watched(rank).has_script(),
                           .place = view(progress_[rank]),
                           .has_trained = progress_[rank].has_trained(),
                           .tells_steps = !is_stranger(rank),
                           .out_of_memory = memory.killed_since(),
                           .memory_limit = memory.limit_bytes()});
    watched(rank).finish_output();
  }

  void stop_the_rest() {
    if (!outcome_.is_decided() || killed_at_ || running() == 0) {
      return;
    }
    const auto now = Clock::now();
    if (!kill_at_) {
      kill_at_ = now + options_.grace;
      notice_at_ = now + deadlines::kNotice;
      look_for_a_mismatch();
      ask_strangers_to_end();
      const LaunchReport report = outcome_.report();
      order(Message::Kind::abort, report.failed_rank < 0 ? std::string() : cause_line(report));
    }
    if (notice_at_ && now >= *notice_at_) {
      const LaunchReport report = outcome_.report();
      const int left = running();
      const int failed = report.failed_rank - options_.first_rank;
      const bool is_only_it = left == 1 && failed >= 0 && failed < size() && process(failed).is_running();
      say(fmt::format("{}; {} still running, killed {} after it", cause_line(report),
                      is_only_it ? "this rank" : counted(left, "rank"), in_seconds(options_.grace)));
      notice_at_.reset();
    }
    if (now >= *kill_at_) {
      outcome_.killed_by_us();
      kill_all();
    }
  }

  /// Some libraries end a process that receives unexpected bytes before a stall is detected.
  void look_for_a_mismatch() {
    std::vector<RankSample> samples;
    for (int rank = 0; rank < size(); ++rank) {
      samples.push_back({.view = view(progress_[rank]), .pid = watched(rank).pid()});
    }
    if (call_different_collectives(samples)) {
      say("warning: the ranks are in different collectives:");
      for (const std::string& line : stall_table(samples, options_.first_rank)) {
        say(line);
      }
      say(fmt::format("  hint: {}", kSameOrderHint));
    }
  }

  /// Ranks of this library detect a lost peer themselves; any other program may wait for it forever.
  void ask_strangers_to_end() {
    for (int rank = 0; rank < size(); ++rank) {
      if (is_stranger(rank) && process(rank).is_running()) {
        watched(rank).send_signal(SIGTERM);
      }
    }
  }

  void kill_all() {
    for (const WatchedRank& rank : ranks_) {
      if (rank.process().is_running()) {
        rank.process().kill_group();
      }
    }
    killed_at_ = killed_at_.value_or(Clock::now());
    kill_at_ = *killed_at_ + deadlines::kDying;
    notice_at_.reset();
  }

  static std::string cause_line(const LaunchReport& report) {
    return report.failed_rank < 0 ? "stopped" : std::string(first_line(report.failure));
  }

  /// What the rank said before it failed, and what the launcher knows of the run, for example if the rank was killed.
  std::vector<std::string> what_is_left(const LaunchReport& report) {
    std::vector<std::string> left;
    if (report.failed_rank >= 0) {
      left.push_back(printable(watched(report.failed_rank - options_.first_rank).what_is_left()));
      if (options_.what_is_left && report.step > 0) {
        left.push_back(options_.what_is_left());
      }
      std::erase(left, "");
    }
    return left;
  }

  void print_summary(const LaunchReport& report) {
    if (options_.terminal_status) {
      terminal_.status("");
    }
    for (int rank = 0; rank < size(); ++rank) {
      if (process(rank).is_running()) {
        const std::string state = to_string(read_process_state(process(rank).pid()));
        process(rank).abandon();
        say(fmt::format("rank {} (pid {}) does not end although it was killed{}{}", options_.first_rank + rank,
                        process(rank).pid(), state.empty() ? "" : ": it is ", state));
      }
    }
    if (report.failed_rank >= 0 && !report.explained) {
      const auto& tail = watched(report.failed_rank - options_.first_rank).output().error_tail();
      if (!tail.empty()) {
        say(fmt::format("last lines of rank {}'s standard error:", report.failed_rank));
      }
      for (const std::string& line : tail) {
        say("  | " + line);
      }
    }
    for (std::string& left : what_is_left(report)) {
      say(std::move(left));
    }
    if (const std::string text = outcome_.text(); !text.empty()) {
      for (const std::string& line : split(text, '\n')) {
        say(line);
      }
    }
  }

  void say(std::string text) { terminal_.line(OutputStream::err, std::move(text)); }

  std::vector<WatchedRank> ranks_{};
  ProgressBoard progress_;
  SignalInbox& signals_;
  SupervisorOptions options_;
  TerminalQueue& terminal_;
  RunOutcome outcome_;
  StallWatch stall_watch_;
  std::set<int> forwarded_{};
  std::optional<Clock::time_point> first_interrupt_{};
  std::optional<Clock::time_point> notice_at_{};
  std::optional<Clock::time_point> kill_at_{};  // time of the kill; after it, time to give up
  std::optional<Clock::time_point> killed_at_{};
  std::optional<Clock::time_point> look_at_ = Clock::now();  // the next check for stalls
  bool left_unread_ = false;             // since the last check the output of ranks had to wait for the terminal
  std::optional<StallFinding> stall_{};  // a stall that ends the run after the stacks are written
};

}  // namespace

LaunchReport supervise(std::vector<WorkerProcess> workers, std::vector<RankDestination> destinations,
                       ProgressBoard progress, SignalInbox& signals, TerminalQueue& terminal,
                       const SupervisorOptions& options) {
  return Supervisor(std::move(workers), std::move(destinations), std::move(progress), signals, terminal, options).run();
}

}  // namespace lockstep
