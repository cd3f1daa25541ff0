#include "supervise/supervisor.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "base/duration.h"
#include "base/text.h"
#include "environment/process_name.h"
#include "failure/deadlines.h"
#include "supervise/memory_watch.h"
#include "supervise/rank_output.h"
#include "supervise/run_outcome.h"
#include "supervise/terminal_queue.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kMessagesPerTurn = 1000;  // more than fit into the channel
constexpr int kReadsPerTurn = 16;       // one rank with much output must not starve the others
constexpr int kSaneReads = 64;          // more than a pipe holds, to drain the pipe of a dead worker

std::vector<pid_t> pids_of(const std::vector<WorkerProcess>& workers) {
  std::vector<pid_t> pids;
  std::transform(workers.begin(), workers.end(), std::back_inserter(pids),
                 [](const auto& worker) { return worker.pid(); });
  return pids;
}

class Supervisor {
 public:
  Supervisor(std::vector<WorkerProcess> workers, std::vector<RankDestination> destinations, ProgressBoard progress,
             SignalInbox& signals, const SupervisorOptions& options)
      : workers_(std::move(workers)),
        progress_(std::move(progress)),
        signals_(signals),
        options_(options),
        terminal_(options.terminal_status && isatty(STDOUT_FILENO) == 1),
        outcome_(host_name(), pids_of(workers_), options.first_rank),
        stall_watch_(options.stall, static_cast<int>(workers_.size())) {
    for (int rank = 0; rank < size(); ++rank) {
      outputs_.emplace_back(
          options.first_rank + rank, options.world_size,
          [this, rank](OutputStream stream, std::string text) { show(rank, stream, std::move(text)); },
          std::move(destinations[static_cast<std::size_t>(rank)]));
      talking_.push_back(true);
      memory_.emplace_back(worker(rank).pid());
    }
  }

  LaunchReport run() {
    while (running() > 0 && !given_up()) {
      const auto looked = Clock::now();  // later events are handled in the next iteration
      wait_for_events();
      take_signals();
      for (int rank = 0; rank < size(); ++rank) {
        read_messages(rank);
      }
      for (int rank = 0; rank < size(); ++rank) {
        if (ended_.contains(rank)) {
          handle_exit(rank);
        }
      }
      ended_.clear();
      if (options_.each_turn) {
        options_.each_turn();
      }
      look_for_stalls();
      outcome_.settle(looked);
      stop_the_rest();
    }
    LaunchReport report = outcome_.report();
    for (int rank = 0; rank < size(); ++rank) {
      report.step = std::max(report.step, view(progress_[rank]).step);
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
  int size() const { return static_cast<int>(workers_.size()); }
  WorkerProcess& worker(int rank) { return workers_[static_cast<std::size_t>(rank)]; }
  RankOutput& output(int rank) { return outputs_[static_cast<std::size_t>(rank)]; }
  int running() const {
    return static_cast<int>(
        std::count_if(workers_.begin(), workers_.end(), [](const auto& w) { return w.is_running(); }));
  }
  bool is_main(int rank) const { return options_.first_rank + rank == 0; }
  /// A program without run(): another library's, or one that creates its own Session.
  bool is_stranger(int rank) const { return options_.any_program && !heard_.contains(rank); }
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

  void wait_for_events() {
    std::vector<pollfd> entries;
    std::vector<std::function<void(short)>> actions;
    const auto watch = [&](int fd, std::function<void(short)> action) {
      entries.push_back({.fd = fd, .events = POLLIN, .revents = 0});
      actions.push_back(std::move(action));
    };
    const bool read_pipes = !terminal_.is_full();
    watch(signals_.fd(), [](short) {});
    watch(terminal_.room_fd(), [this](short) { terminal_.take_room(); });
    for (int rank = 0; rank < size(); ++rank) {
      WorkerProcess& process = worker(rank);
      if (!process.is_running()) {
        continue;
      }
      watch(process.pidfd(), [this, rank](short) { ended_.insert(rank); });
      if (talking_[static_cast<std::size_t>(rank)]) {
        watch(process.channel().fd(), [this, rank](short events) {
          read_messages(rank);
          talking_[static_cast<std::size_t>(rank)] =
              (events & POLLHUP) == 0;  // otherwise poll would always return at once
        });
      }
      if ((read_pipes || output(rank).is_kept(OutputStream::out)) && process.output().is_open()) {
        watch(process.output().get(), [this, rank](short) { read_pipe(rank, OutputStream::out, kReadsPerTurn); });
      }
      if ((read_pipes || output(rank).is_kept(OutputStream::err)) && process.errors().is_open()) {
        watch(process.errors().get(), [this, rank](short) { read_pipe(rank, OutputStream::err, kReadsPerTurn); });
      }
    }
    if (poll(entries.data(), entries.size(), timeout()) <= 0) {
      return;
    }
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].revents != 0) {
        actions[i](entries[i].revents);
      }
    }
  }

  void take_signals() {
    while (const std::optional<int> signal = signals_.take()) {
      if (*signal == SIGUSR2) {
        order(Message::Kind::dump);
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
    for (const WorkerProcess& process : workers_) {
      if (process.is_running()) {
        process.send_signal(signal);
        process.send_signal(SIGCONT);  // a stopped rank would not receive the signal
      }
    }
  }

  /// Sends to the ranks that run and have not announced their end.
  void order(Message::Kind kind, const std::string& why = {}) {
    for (int rank = 0; rank < size(); ++rank) {
      if (worker(rank).is_running() && outcome_.is_unaware(rank)) {
        worker(rank).channel().send({.kind = kind, .text = why});
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
    std::vector<RankSample> samples;
    for (int rank = 0; rank < size(); ++rank) {
      const bool runs = worker(rank).is_running();
      const pid_t pid = worker(rank).pid();
      stall_watch_.set_limits(progress_[rank].stall_warning_ms.load(std::memory_order_relaxed),
                              progress_[rank].stall_deadline_ms.load(std::memory_order_relaxed));
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
  void end_stalled() {
    const std::vector<int> others(stall_->ranks.begin() + 1, stall_->ranks.end());
    outcome_.stalled(stall_->ranks.front(),
                     stall_->what + (others.empty() ? "" : fmt::format(", with ranks {}", format_ranges(others))),
                     stall_->hint);
  }

  void read_messages(int rank) {
    for (int heard = 0; heard < kMessagesPerTurn; ++heard) {
      const std::optional<Message> message = worker(rank).channel().receive();
      if (!message) {
        return;
      }
      heard_.insert(rank);
      switch (message->kind) {
        case Message::Kind::line:
          if (is_main(rank)) {
            output(rank).report_line(message->text);
          } else {
            output(rank).line(message->text);
          }
          break;
        case Message::Kind::status:
          if (is_main(rank) && options_.terminal_status) {
            terminal_.status(printable(message->text));
          }
          break;
        case Message::Kind::failure:
        case Message::Kind::finished:
          outcome_.announced(rank, *message, view(progress_[rank]), Clock::now());
          break;
        case Message::Kind::started:
          break;
        case Message::Kind::abort:  // only the supervisor sends these
        case Message::Kind::dump:
          break;
      }
    }
  }

  void read_pipe(int rank, OutputStream stream, int reads) {
    Descriptor& pipe = stream == OutputStream::out ? worker(rank).output() : worker(rank).errors();
    std::array<char, 16 << 10> buffer;
    for (; reads > 0 && pipe.is_open(); --reads) {
      const ssize_t size = read(pipe.get(), buffer.data(), buffer.size());
      if (size > 0) {
        output(rank).feed(stream, {buffer.data(), static_cast<std::size_t>(size)});
      } else if (size == 0) {
        close_pipe(rank, stream);
      } else if (errno != EINTR) {
        return;
      }
    }
  }

  void close_pipe(int rank, OutputStream stream) {
    output(rank).finish(stream);
    (stream == OutputStream::out ? worker(rank).output() : worker(rank).errors()).close();
  }

  /// A process outside the worker's group may hold its pipes forever: drain them; do not wait for EOF.
  void handle_exit(int rank) {
    read_messages(rank);
    const ExitStatus status = worker(rank).reap();
    if (is_stranger(rank) && status.signal == 0) {
      outcome_.announced(rank, {.kind = Message::Kind::finished, .code = status.code}, view(progress_[rank]),
                         Clock::now());
    }
    const std::optional<TrainingStart> start = progress_[rank].training_start();
    const MemoryWatch& memory = memory_[static_cast<std::size_t>(rank)];
    outcome_.exited(rank, {.status = status,
                           .place = view(progress_[rank]),
                           .first_step = start ? start->step : -1,
                           .out_of_memory = memory.killed_since(),
                           .memory_limit = memory.limit_bytes()});
    for (const OutputStream stream : {OutputStream::out, OutputStream::err}) {
      read_pipe(rank, stream, kSaneReads);
      close_pipe(rank, stream);
    }
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
      const int left = running();
      say(fmt::format("{}; {} still running, killed {} after it", cause_line(outcome_.report()), counted(left, "rank"),
                      in_seconds(options_.grace)));
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
      samples.push_back({.view = view(progress_[rank]), .pid = worker(rank).pid()});
    }
    if (call_different_collectives(samples)) {
      say("warning: the ranks are in different collectives:");
      for (const std::string& line : stall_table(samples)) {
        say(line);
      }
      say(fmt::format("  hint: {}", kSameOrderHint));
    }
  }

  /// Ranks of this library detect a lost peer themselves; any other program may wait for it forever.
  void ask_strangers_to_end() {
    for (int rank = 0; rank < size(); ++rank) {
      if (is_stranger(rank) && worker(rank).is_running()) {
        worker(rank).send_signal(SIGTERM);
      }
    }
  }

  void kill_all() {
    for (const WorkerProcess& process : workers_) {
      if (process.is_running()) {
        process.kill_group();
      }
    }
    killed_at_ = killed_at_.value_or(Clock::now());
    kill_at_ = *killed_at_ + deadlines::kDying;
    notice_at_.reset();
  }

  static std::string cause_line(const LaunchReport& report) {
    return report.failed_rank < 0 ? "stopped" : std::string(first_line(report.failure));
  }

  void print_summary(const LaunchReport& report) {
    say_what_is_missing();
    if (options_.terminal_status) {
      terminal_.status("");
    }
    for (int rank = 0; rank < size(); ++rank) {
      if (worker(rank).is_running()) {
        const std::string state = to_string(read_process_state(worker(rank).pid()));
        worker(rank).abandon();
        say(fmt::format("rank {} (pid {}) does not end although it was killed{}{}", options_.first_rank + rank,
                        worker(rank).pid(), state.empty() ? "" : ": it is ", state));
      }
    }
    if (report.failed_rank >= 0 && !report.explained) {
      const auto& tail = output(report.failed_rank - options_.first_rank).error_tail();
      if (!tail.empty()) {
        say(fmt::format("last lines of rank {}'s standard error:", report.failed_rank));
      }
      for (const std::string& line : tail) {
        say("  | " + line);
      }
    }
    if (options_.what_is_left && report.failed_rank >= 0 && report.step > 0) {
      if (std::string left = options_.what_is_left(); !left.empty()) {
        say(std::move(left));
      }
    }
    if (const std::string text = outcome_.text(); !text.empty()) {
      for (const std::string& line : split(text, '\n')) {
        say(line);
      }
    }
  }

  /// A line that is in a file is dropped if the terminal is too slow.
  void show(int rank, OutputStream stream, std::string text) {
    if (terminal_.is_full() && output(rank).is_kept(stream)) {
      ++not_shown_;
      return;
    }
    say_what_is_missing();
    terminal_.line(stream, std::move(text));
  }

  void say_what_is_missing() {
    if (const std::int64_t missing = std::exchange(not_shown_, 0); missing > 0) {
      say(fmt::format("{} lines are only in the log files: the reader of this output is too slow", missing));
    }
  }

  void say(std::string text) { terminal_.line(OutputStream::err, std::move(text)); }

  std::vector<WorkerProcess> workers_;
  ProgressBoard progress_;
  SignalInbox& signals_;
  SupervisorOptions options_;
  TerminalQueue terminal_;
  RunOutcome outcome_;
  StallWatch stall_watch_;
  std::vector<MemoryWatch> memory_{};
  std::vector<RankOutput> outputs_{};
  std::vector<bool> talking_{};  // the control channel is open
  std::int64_t not_shown_ = 0;   // lines since the last one that was shown
  std::set<int> heard_{};        // ranks that sent a message
  std::set<int> ended_{};
  std::set<int> forwarded_{};
  std::optional<Clock::time_point> first_interrupt_{};
  std::optional<Clock::time_point> notice_at_{};
  std::optional<Clock::time_point> kill_at_{};  // time of the kill; after it, time to give up
  std::optional<Clock::time_point> killed_at_{};
  std::optional<Clock::time_point> look_at_ = Clock::now();  // the next check for stalls
  std::optional<StallFinding> stall_{};                      // a stall that ends the run after the stacks are written
};

}  // namespace

LaunchReport supervise(std::vector<WorkerProcess> workers, std::vector<RankDestination> destinations,
                       ProgressBoard progress, SignalInbox& signals, const SupervisorOptions& options) {
  return Supervisor(std::move(workers), std::move(destinations), std::move(progress), signals, options).run();
}

}  // namespace lockstep
