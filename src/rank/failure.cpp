#include "rank/failure.h"

#include <atomic>
#include <cstdlib>

#include <cxxabi.h>
#include <fmt/format.h>
#include <signal.h>

#include <lockstep/base/error.h>

#include "base/text.h"

namespace lockstep {
namespace {

struct Announcement {
  std::atomic<const Channel*> channel{nullptr};
  std::atomic<std::terminate_handler> before{nullptr};
};

// A terminate handler gets nothing at all, so what it acts on has to be static.
constinit Announcement announcement;

Message terminate_failure() {
  Message message = std::current_exception() ? current_failure()
                                             : Message{.kind = Message::Kind::failure,
                                                       .text = "error: no exception; a thread that was not joined?"};
  constexpr std::string_view kLabel = "error: ";
  message.text.insert(message.text.starts_with(kLabel) ? kLabel.size() : 0, "std::terminate after ");
  message.code = 128 + SIGABRT;
  return message;
}

void on_terminate() {
  // The first of several threads speaks for the process.
  if (const Channel* channel = announcement.channel.exchange(nullptr)) {
    channel->send(terminate_failure());
  }
  if (const std::terminate_handler before = announcement.before) {
    before();
  }
  std::abort();
}

}  // namespace

Message current_failure() {
  Message failure{.kind = Message::Kind::failure, .code = static_cast<int>(ExitCode::failed)};
  try {
    throw;
  } catch (const std::exception& error) {
    failure.text = error_text(error);
    failure.code = static_cast<int>(exit_code_of(error));
    failure.secondary =
        dynamic_cast<const CommError*>(&error) != nullptr && failure.code == static_cast<int>(ExitCode::peer_lost);
  } catch (...) {
    const std::type_info* type = abi::__cxa_current_exception_type();
    failure.text = fmt::format("error: unknown exception of type {}", type == nullptr ? "unknown" : type_name(*type));
  }
  return failure;
}

TerminateScope::TerminateScope(const Channel& channel) : before_(std::set_terminate(on_terminate)) {
  announcement.before = before_;
  announcement.channel = &channel;
}

TerminateScope::~TerminateScope() {
  announcement.channel = nullptr;
  std::set_terminate(before_);
}

}  // namespace lockstep
