#include "report/console.h"

#include <string>
#include <utility>

#include <lockstep/base/log.h>

#include "base/log_label.h"
#include "base/terminal.h"
#include "ipc/channel.h"

namespace lockstep {
namespace {

class SilentConsole final : public Console {
 public:
  void line(std::string_view) override {}
  void status(std::string_view) override {}
  bool interactive() const override { return false; }
  int width() const override { return 0; }
};

class TerminalConsole final : public Console {
 public:
  TerminalConsole(bool interactive, int width) : interactive_(interactive), width_(width) {}
  void line(std::string_view text) override {
    if (is_logged(LogLevel::info) && !give_to_log_handler(LogLevel::info, text)) {
      write_line(text);
    }
  }
  void status(std::string_view text) override {
    if (interactive_ && is_logged(LogLevel::info)) {
      write_status(text);
    }
  }
  bool interactive() const override { return interactive_; }
  int width() const override { return width_; }

 private:
  bool interactive_;
  int width_;
};

class ChannelConsole final : public Console {
 public:
  ChannelConsole(std::shared_ptr<Channel> channel, int width) : channel_(std::move(channel)), width_(width) {}
  void line(std::string_view text) override {
    if (is_logged(LogLevel::info) && !give_to_log_handler(LogLevel::info, text)) {
      channel_->send({.kind = Message::Kind::line, .text = std::string(text)});
    }
  }
  void status(std::string_view text) override {
    if (interactive() && is_logged(LogLevel::info)) {
      channel_->send({.kind = Message::Kind::status, .text = std::string(text)});
    }
  }
  bool interactive() const override { return width_ > 0; }
  int width() const override { return width_; }

 private:
  std::shared_ptr<Channel> channel_;
  int width_;
};

}  // namespace

std::shared_ptr<Console> silent_console() { return std::make_shared<SilentConsole>(); }

std::shared_ptr<Console> terminal_console(bool interactive, int width) {
  return std::make_shared<TerminalConsole>(interactive, width);
}

std::shared_ptr<Console> channel_console(std::shared_ptr<Channel> channel, int width) {
  return std::make_shared<ChannelConsole>(std::move(channel), width);
}

}  // namespace lockstep
