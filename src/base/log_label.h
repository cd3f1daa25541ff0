// Whose lines a thread logs, and who gets them. Torch-free.
#pragma once

#include <memory>
#include <string_view>

#include <lockstep/base/log.h>

namespace lockstep {

/// The label of a thread, for the threads that it starts.
struct LogLabel {
  int rank = 0;
  int world_size = 1;
  std::shared_ptr<const LogHandler> handler{};  ///< nullptr: standard error
};
LogLabel log_label();  ///< of this thread

/// While it exists, this thread has the label.
class [[nodiscard]] LogLabelScope {
 public:
  explicit LogLabelScope(LogLabel label);
  ~LogLabelScope();
  LogLabelScope(const LogLabelScope&) = delete;
  LogLabelScope& operator=(const LogLabelScope&) = delete;

 private:
  LogLabel label_;
  int rank_before_;
  int world_size_before_;
  const std::shared_ptr<const LogHandler>* handler_before_;
};

/// Gives a line to the handler of this thread, whatever its level. False: there is none, or it has thrown.
bool give_to_log_handler(LogLevel level, std::string_view message) noexcept;

}  // namespace lockstep
