#include <string>
#include <utility>

#include <sys/socket.h>

#include "base/text.h"
#include "fuzz/target.h"
#include "ipc/channel.h"
#include "supervise/run_outcome.h"

namespace lockstep::fuzz {

/// One control message of a worker, up to the words printed because of it.
LOCKSTEP_FUZZ_TARGET(channel) {
  static const std::pair<Channel, Channel> ends = make_channel_pair();
  const auto& [supervisor, worker] = ends;
  if (input.empty() || send(worker.fd(), input.data(), input.size(), MSG_DONTWAIT) < 0) {
    return;  // an empty packet looks like the end
  }
  RunOutcome verdict("host", {70, 71}, /*first_rank=*/0);
  while (const auto message = supervisor.receive()) {
    promise(message->text.size() <= Channel::kMaxText, "a bounded text", input);
    promise(message->code >= 0 && message->code <= 255, "an exit code", input);
    if (message->kind == Message::Kind::failure || message->kind == Message::Kind::finished) {
      verdict.announced(0, *message, ProgressView{}, {});
    }
    const std::string line = printable(message->text);
    promise(line == printable(line), "clean text stays as it is", input);
  }
  const std::string text = verdict.text();
  promise(text.find('\x1b') == std::string::npos, "nothing that drives a terminal", input);
  promise(text.empty() || text.starts_with("error: rank 0 (host host, pid 70)"), "words of our own first", input);
}

}  // namespace lockstep::fuzz
