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
#include "supervise/signal_inbox.h"

namespace lockstep {

/// A thread writes the queued lines, so that adding a line never waits for the terminal. No line is lost: if the queue
/// is full, the owner stops reading from the workers until there is room. Only lines that are also in a file are then
/// left out, and the next line is preceded by their number. After a stop request, lines are lost that nobody reads.
class TerminalQueue {
 public:
  static constexpr std::size_t kFullBytes = 4 << 20;

  /// `shared_screen`: both streams go to the terminal that shows the status line.
  explicit TerminalQueue(bool shared_screen);
  ~TerminalQueue();  ///< writes the remaining lines, and waits for their reader
  TerminalQueue(const TerminalQueue&) = delete;
  TerminalQueue& operator=(const TerminalQueue&) = delete;

  void line(OutputStream stream, std::string text, bool may_be_left_out = false);
  void status(std::string text);  ///< replaces a status that was not written yet
  /// Writes the remaining lines. False: a stop was requested, before or meanwhile, and until the next such request, or
  /// for deadlines::kLastLines, nobody has read all of them. Then the thread still waits in a write: do not destroy
  /// this queue.
  bool finish(SignalInbox& signals, bool stop_requested);
  bool is_full();
  int room_fd() const noexcept { return room_.get(); }  ///< readable when a full queue has room, or all is written
  void take_room() noexcept;                            ///< resets room_fd()

 private:
  struct Line {
    OutputStream stream;
    std::string text;
  };
  void add(OutputStream stream, std::string text);
  void say_what_is_left_out();
  void close();
  bool is_finished();
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
  bool finished_ = false;  // the thread has written everything
  std::thread writer_{};
};

}  // namespace lockstep
