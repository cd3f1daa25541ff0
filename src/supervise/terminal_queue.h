// Between workers that print and a terminal that may be slow. Torch-free.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/descriptor.h"
#include "supervise/rank_output.h"

namespace lockstep {

/// Lines wait here and a thread writes them, so that whoever adds one never waits for the terminal. No line is lost:
/// when the queue is full, the owner stops reading from the workers until there is room again.
class TerminalQueue {
 public:
  static constexpr std::size_t kFullBytes = 4 << 20;

  /// `shared_screen`: both streams end on the terminal that has the status line.
  explicit TerminalQueue(bool shared_screen);
  ~TerminalQueue();  ///< writes what is left
  TerminalQueue(const TerminalQueue&) = delete;
  TerminalQueue& operator=(const TerminalQueue&) = delete;

  void line(OutputStream stream, std::string text);
  void status(std::string text);  ///< only the latest one matters
  bool is_full();
  int room_fd() const noexcept { return room_.get(); }  ///< readable when a full queue has room again
  void take_room() noexcept;                            ///< makes it unreadable

 private:
  struct Line {
    OutputStream stream;
    std::string text;
  };
  void write_all();
  void write_lines(const std::deque<Line>& lines) const;

  const bool shared_screen_;
  Descriptor room_{};
  std::mutex mutex_{};
  std::condition_variable changed_{};
  std::deque<Line> lines_{};
  std::optional<std::string> status_{};
  std::size_t bytes_ = 0;  // not written yet
  bool is_full_ = false;
  bool closing_ = false;
  std::thread writer_{};
};

}  // namespace lockstep
