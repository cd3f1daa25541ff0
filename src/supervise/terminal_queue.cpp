#include "supervise/terminal_queue.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/limit_hint.h"
#include "base/signals_blocked.h"
#include "base/terminal.h"
#include "failure/deadlines.h"

namespace lockstep {

TerminalQueue::TerminalQueue(bool shared_screen)
    : shared_screen_(shared_screen), room_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!room_.is_open()) {
    throw LaunchError(fmt::format("cannot watch workers: eventfd: {}", std::strerror(errno)), limit_hint(errno));
  }
  const AllSignalsBlocked blocked;  // the main thread handles them, and a closed pipe is an error code
  try {
    writer_ = std::thread([this] { write_all(); });
  } catch (const std::system_error& error) {
    throw LaunchError(fmt::format("cannot watch workers: thread: {}", error.code().message()),
                      limit_hint(error.code().value()));
  }
}

TerminalQueue::~TerminalQueue() {
  close();
  writer_.join();
}

void TerminalQueue::close() {
  {
    const std::lock_guard lock(mutex_);
    say_what_is_left_out();
    closing_ = true;
  }
  changed_.notify_one();
}

bool TerminalQueue::finish(SignalInbox& signals, bool stop_requested) {
  using Clock = std::chrono::steady_clock;
  close();
  auto until = stop_requested ? Clock::now() + deadlines::kLastLines : Clock::time_point::max();
  while (!is_finished()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    if (left.count() <= 0) {
      return false;
    }
    std::array<pollfd, 2> entries{
        {{.fd = room_.get(), .events = POLLIN, .revents = 0}, {.fd = signals.fd(), .events = POLLIN, .revents = 0}}};
    poll(entries.data(), entries.size(), until == Clock::time_point::max() ? -1 : static_cast<int>(left.count()));
    take_room();
    if (signals.take_stop()) {
      if (std::exchange(stop_requested, true)) {
        return false;
      }
      until = Clock::now() + deadlines::kLastLines;
    }
  }
  return true;
}

bool TerminalQueue::is_finished() {
  const std::lock_guard lock(mutex_);
  return finished_;
}

void TerminalQueue::line(OutputStream stream, std::string text, bool may_be_left_out) {
  {
    const std::lock_guard lock(mutex_);
    if (may_be_left_out && is_full_) {
      ++left_out_;
      return;
    }
    say_what_is_left_out();
    add(stream, std::move(text));
  }
  changed_.notify_one();
}

void TerminalQueue::add(OutputStream stream, std::string text) {
  bytes_ += text.size();
  is_full_ = is_full_ || bytes_ >= kFullBytes;
  lines_.push_back({stream, std::move(text)});
}

void TerminalQueue::say_what_is_left_out() {
  if (const std::int64_t left_out = std::exchange(left_out_, 0); left_out > 0) {
    add(OutputStream::err,
        fmt::format("{} lines are only in the log files: the reader of this output is too slow", left_out));
  }
}

void TerminalQueue::status(std::string text) {
  {
    const std::lock_guard lock(mutex_);
    status_ = std::move(text);
  }
  changed_.notify_one();
}

bool TerminalQueue::is_full() {
  const std::lock_guard lock(mutex_);
  return is_full_;
}

void TerminalQueue::take_room() noexcept {
  eventfd_t value = 0;
  eventfd_read(room_.get(), &value);
}

void TerminalQueue::write_all() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closing_ || status_ || !lines_.empty(); });
    if (!status_ && lines_.empty()) {
      finished_ = true;
      eventfd_write(room_.get(), 1);
      return;
    }
    const std::optional<std::string> status = std::exchange(status_, std::nullopt);
    const std::deque<Line> lines = std::exchange(lines_, {});
    const std::size_t bytes = bytes_;
    lock.unlock();
    if (status) {  // first, because writing a line redraws the status below it
      write_status(*status);
    }
    write_lines(lines);
    lock.lock();
    bytes_ -= bytes;
    if (is_full_ && bytes_ < kFullBytes) {
      is_full_ = false;
      eventfd_write(room_.get(), 1);
    }
  }
}

void TerminalQueue::write_lines(const std::deque<Line>& lines) const {
  std::string out;  // consecutive lines of one stream are one write
  for (const Line& line : lines) {
    if (line.stream == OutputStream::err || shared_screen_) {
      write_text(STDOUT_FILENO, std::exchange(out, {}));
      write_line(line.text);
    } else {
      out.append(line.text).append("\n");
    }
  }
  write_text(STDOUT_FILENO, out);
}

}  // namespace lockstep
