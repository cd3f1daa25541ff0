#include "supervise/watched_rank.h"

#include <array>
#include <cstddef>
#include <utility>

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace lockstep {

WatchedRank::WatchedRank(WorkerProcess process, RankOutput output)
    : process_(std::move(process)), output_(std::move(output)), memory_(process_.pid()), program_pid_(process_.pid()) {}

// Not always to the group: a program that saves needs its helpers.
void WatchedRank::send_signal(int signal) const noexcept {
  const int program = program_.is_open() ? program_.get() : has_sent_ ? process_.pidfd() : -1;
  if (program < 0 || syscall(SYS_pidfd_send_signal, program, signal, nullptr, 0) != 0) {
    process_.signal_group(signal);
  }
}

int WatchedRank::end_fd() const noexcept {
  return script_is_gone_ && program_.is_open() ? program_.get() : process_.pidfd();
}

bool WatchedRank::has_ended() {
  pollfd program{.fd = program_.get(), .events = POLLIN, .revents = 0};
  if (!program_.is_open() || poll(&program, 1, 0) > 0) {
    return true;
  }
  if (const int signal = process_.status().signal; is_stop_request(signal)) {
    if (!std::exchange(script_is_gone_, true)) {
      send_signal(signal);
    }
    return false;
  }
  return true;
}

std::optional<Message> WatchedRank::receive() {
  std::optional<Message> message = process_.channel().receive();
  has_sent_ = has_sent_ || message.has_value();
  const bool started = message && message->kind == Message::Kind::started && message->sender > 0;
  if (started && message->sender != program_pid_) {
    program_ = open_process(message->sender);
    program_pid_ = message->sender;
  }
  return message;
}

Descriptor& WatchedRank::pipe(OutputStream stream) noexcept {
  return stream == OutputStream::out ? process_.output() : process_.errors();
}

void WatchedRank::read_pipe(OutputStream stream, int reads) {
  std::array<char, 16 << 10> buffer;
  for (; reads > 0 && pipe(stream).is_open(); --reads) {
    const ssize_t size = retry([&] { return read(pipe(stream).get(), buffer.data(), buffer.size()); });
    if (size < 0) {
      return;
    }
    if (size == 0) {
      close_pipe(stream);
    } else {
      output_.feed(stream, {buffer.data(), static_cast<std::size_t>(size)});
    }
  }
}

void WatchedRank::finish_output() {
  constexpr int kReads = 64;  // more than a pipe holds
  for (const OutputStream stream : {OutputStream::out, OutputStream::err}) {
    read_pipe(stream, kReads);
    close_pipe(stream);
  }
}

void WatchedRank::close_pipe(OutputStream stream) {
  output_.finish(stream);
  pipe(stream).close();
}

}  // namespace lockstep
