#include "supervise/terminal_queue.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/signals_blocked.h"
#include "base/terminal.h"

namespace lockstep {

TerminalQueue::TerminalQueue(bool shared_screen)
    : shared_screen_(shared_screen), room_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!room_.is_open()) {
    throw LaunchError(fmt::format("cannot watch workers: eventfd: {}", std::strerror(errno)));
  }
  const AllSignalsBlocked blocked;  // the main thread handles them, and a closed pipe is an error code
  writer_ = std::thread([this] { write_all(); });
}

TerminalQueue::~TerminalQueue() {
  {
    const std::lock_guard lock(mutex_);
    say_what_is_left_out();
    closing_ = true;
  }
  changed_.notify_one();
  writer_.join();
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
