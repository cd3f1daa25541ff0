// Queue between the output of workers and a terminal that may be slow. Torch-free.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/descriptor.h"
#include "supervise/rank_output.h"

namespace lockstep {

/// A thread writes the queued lines, so that adding a line never waits for the terminal. No line is lost: if the queue
/// is full, the owner stops reading from the workers until there is room. Only lines that are also in a file are then
/// left out, and the next line is preceded by their number.
class TerminalQueue {
 public:
  static constexpr std::size_t kFullBytes = 4 << 20;

  /// `shared_screen`: both streams go to the terminal that shows the status line.
  explicit TerminalQueue(bool shared_screen);
  ~TerminalQueue();  ///< writes the remaining lines
  TerminalQueue(const TerminalQueue&) = delete;
  TerminalQueue& operator=(const TerminalQueue&) = delete;

  void line(OutputStream stream, std::string text, bool may_be_left_out = false);
  void status(std::string text);  ///< replaces a status that was not written yet
  bool is_full();
  int room_fd() const noexcept { return room_.get(); }  ///< readable after a full queue has room again
  void take_room() noexcept;                            ///< resets room_fd()

 private:
  struct Line {
    OutputStream stream;
    std::string text;
  };
  void add(OutputStream stream, std::string text);
  void say_what_is_left_out();
  void write_all();
  void write_lines(const std::deque<Line>& lines) const;

  const bool shared_screen_;
  Descriptor room_{};
  std::mutex mutex_{};
  std::condition_variable changed_{};
  std::deque<Line> lines_{};
  std::optional<std::string> status_{};
  std::size_t bytes_ = 0;      // of lines that are not written yet
  std::int64_t left_out_ = 0;  // lines since the last one that was added
  bool is_full_ = false;
  bool closing_ = false;
  std::thread writer_{};
};

}  // namespace lockstep
