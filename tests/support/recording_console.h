// A console that keeps what it is given.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/console.h"

namespace lockstep {

class RecordingConsole final : public Console {
 public:
  explicit RecordingConsole(bool interactive) : interactive_(interactive) {}
  void line(std::string_view text) override { lines.emplace_back(text); }
  void status(std::string_view text) override { statuses.emplace_back(text); }
  bool interactive() const override { return interactive_; }
  int width() const override { return 100; }

  std::vector<std::string> lines{};
  std::vector<std::string> statuses{};

 private:
  bool interactive_;
};

}  // namespace lockstep
