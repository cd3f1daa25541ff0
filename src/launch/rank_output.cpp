#include "launch/rank_output.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"

namespace lockstep {

void LineSplitter::feed(std::string_view bytes, const OnLine& on_line) {
  while (!bytes.empty()) {
    if (std::exchange(after_return_, false) && bytes.front() == '\n') {
      bytes.remove_prefix(1);
      continue;
    }
    const std::size_t room = kMaxLine - partial_.size();
    const std::size_t end = bytes.substr(0, room).find_first_of("\r\n");
    if (end == std::string_view::npos) {
      partial_ += bytes.substr(0, room);
      bytes.remove_prefix(std::min(room, bytes.size()));
      if (partial_.size() == kMaxLine) {
        finish(on_line);
      }
      continue;
    }
    after_return_ = bytes[end] == '\r';
    partial_ += bytes.substr(0, end);
    bytes.remove_prefix(end + 1);
    if (!after_return_ || !partial_.empty()) {
      on_line(std::exchange(partial_, {}));
    }
  }
}

void LineSplitter::finish(const OnLine& on_line) {
  if (!partial_.empty()) {
    on_line(std::exchange(partial_, {}));
  }
}

RankOutput::RankOutput(int rank, int world_size, Sink sink)
    : prefix_(world_size > 1 ? fmt::format("[rank{}]:", rank) : std::string{}), sink_(std::move(sink)) {}

void RankOutput::feed(OutputStream stream, std::string_view bytes) {
  splitter(stream).feed(bytes, [&](std::string_view text) { line(stream, text); });
}

void RankOutput::finish(OutputStream stream) {
  splitter(stream).finish([&](std::string_view text) { line(stream, text); });
}

void RankOutput::line(OutputStream stream, std::string_view text) {
  std::string clean = printable(text);
  if (!clean.starts_with(prefix_)) {
    clean = prefix_ + ' ' + clean;
  }
  if (stream == OutputStream::err) {
    error_tail_.push_back(clean);
    if (error_tail_.size() > kTailLines) {
      error_tail_.pop_front();
    }
  }
  sink_(stream, std::move(clean));
}

}  // namespace lockstep
