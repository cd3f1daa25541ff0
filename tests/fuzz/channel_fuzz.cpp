// Control messages of a worker that is broken or hostile, up to the words that the supervisor prints because of them.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include <sys/socket.h>

#include "base/text.h"
#include "control/channel.h"
#include "launch/verdict.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep;
  static const std::pair<Channel, Channel> ends = make_channel_pair();
  const auto& [supervisor, worker] = ends;
  if (size == 0 || send(worker.fd(), data, size, MSG_DONTWAIT) < 0) {
    return 0;  // an empty packet looks like the end
  }
  Verdict verdict("host", {70, 71});
  while (const auto message = supervisor.receive()) {
    if (message->text.size() > Channel::kMaxText || message->code < 0 || message->code > 255) {
      std::abort();
    }
    if (message->kind == Message::Kind::failure || message->kind == Message::Kind::finished) {
      verdict.announced(0, *message, ProgressView{}, {});
    }
    const std::string line = printable(message->text);
    if (line != printable(line)) {
      std::abort();
    }
  }
  const std::string text = verdict.text();
  if (text.find('\x1b') != std::string::npos ||
      (!text.empty() && text.find("error: rank 0 (host host, pid 70)") != 0)) {
    std::abort();
  }
  return 0;
}
