#include "supervise/rank_output.h"

#include <algorithm>
#include <exception>
#include <span>
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

RankDestination open_destination(const OutputRoute& route, FileSystem& fs, const std::filesystem::path& file) {
  RankDestination destination{.route = route};
  if (route.out_in_file || route.err_in_file) {
    fs.create_directories(file.parent_path());
    destination.file = fs.open_append(file);
  }
  return destination;
}

RankOutput::RankOutput(int rank, int world_size, Sink sink, RankDestination destination)
    : prefix_(world_size > 1 ? fmt::format("[rank{}]:", rank) : std::string{}),
      sink_(std::move(sink)),
      destination_(std::move(destination)) {}

void RankOutput::feed(OutputStream stream, std::string_view bytes) {
  if (is_kept(stream)) {
    keep(bytes);
  }
  if (is_shown(stream) || stream == OutputStream::err) {  // its last lines may be shown after a failure
    splitter(stream).feed(bytes, [&](std::string_view text) { show(stream, text); });
  }
}

void RankOutput::finish(OutputStream stream) {
  splitter(stream).finish([&](std::string_view text) { show(stream, text); });
}

void RankOutput::line(std::string_view text) {
  keep_line(text);
  show(OutputStream::err, text);
}

void RankOutput::report_line(std::string_view text) {
  keep_line(text);
  if (is_shown(OutputStream::err)) {
    sink_(OutputStream::err, printable(text));
  }
}

void RankOutput::show(OutputStream stream, std::string_view text) {
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
  if (is_shown(stream)) {
    sink_(stream, std::move(clean));
  }
}

bool RankOutput::is_kept(OutputStream stream) const noexcept {
  const OutputRoute& route = destination_.route;
  return destination_.file && (stream == OutputStream::out ? route.out_in_file : route.err_in_file);
}

bool RankOutput::is_shown(OutputStream stream) const noexcept {
  const OutputRoute& route = destination_.route;
  return stream == OutputStream::out ? route.out_on_terminal : route.err_on_terminal;
}

void RankOutput::keep_line(std::string_view text) noexcept {
  if (is_kept(OutputStream::err)) {
    keep(text);
    keep("\n");
  }
}

/// A full disk must not end the training.
void RankOutput::keep(std::string_view bytes) noexcept {
  if (!destination_.file) {
    return;
  }
  try {
    destination_.file->append(std::as_bytes(std::span(bytes)));
  } catch (const std::exception& error) {
    destination_.file.reset();
    sink_(OutputStream::err, fmt::format("warning: {} output is no longer logged: {}", prefix_, error.what()));
  }
}

}  // namespace lockstep
