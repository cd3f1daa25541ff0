#include "supervise/watched_rank.h"

#include <array>
#include <cstddef>
#include <utility>

#include <unistd.h>

namespace lockstep {

WatchedRank::WatchedRank(WorkerProcess process, RankOutput output)
    : process_(std::move(process)), output_(std::move(output)), memory_(process_.pid()) {}

std::optional<Message> WatchedRank::receive() {
  std::optional<Message> message = process_.channel().receive();
  has_sent_ = has_sent_ || message.has_value();
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
