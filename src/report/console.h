// Receives the main rank's report lines and status line. Torch-free.
#pragma once

#include <memory>
#include <string_view>

namespace lockstep {

/// Prints nothing below LogLevel::info. The implementations: a null object on other ranks, the terminal for a single
/// process, the supervisor's terminal for a launched rank.
class Console {
 public:
  virtual ~Console() = default;
  virtual void line(std::string_view text) = 0;    ///< a whole line that stays
  virtual void status(std::string_view text) = 0;  ///< replaces the status line; "" removes it
  virtual bool interactive() const = 0;            ///< a status line can be shown
  virtual int width() const = 0;
};

class Channel;
std::shared_ptr<Console> silent_console();
std::shared_ptr<Console> terminal_console(bool interactive, int width);
/// Sends lines through the supervisor, which set LOCKSTEP_TERMINAL_WIDTH (0: not interactive).
std::shared_ptr<Console> channel_console(std::shared_ptr<Channel> channel, int width);

}  // namespace lockstep
