// Messages between supervisor and workers over an inherited SEQPACKET socket. Torch-free.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include <sys/types.h>

#include "base/descriptor.h"

namespace lockstep {

struct Message {
  enum class Kind : char {
    line = 'L',      ///< worker: a whole line for the terminal, without a rank prefix (the main rank's report)
    status = 'S',    ///< worker: replaces the status line
    started = 'B',   ///< worker: run() is active and will announce the end
    left = 'W',      ///< worker: what is left of its work, for the case that its failure is the cause
    failure = 'F',   ///< worker: code, secondary flag and text of the exception that ends it
    finished = 'E',  ///< worker: announced exit code; an exit that was not announced is a failure
    abort = 'A',     ///< supervisor: end at once, without waiting for other ranks; text: the failure
    dump = 'D',      ///< supervisor: write the stacks of all threads
  };
  Kind kind = Kind::line;
  std::string text{};
  int code = 0;            ///< failure, finished
  bool secondary = false;  ///< failure: caused by another rank, which is lost or reports it itself
  pid_t sender = 0;        ///< set by the kernel in what the supervisor receives: the process that sent it
};

/// One end of the channel. A status or an order that does not fit into the socket is dropped. A failure and an
/// announced end wait until there is room, or the other end is closed. Other messages wait briefly, and not again
/// before there was room.
class Channel {
 public:
  static constexpr std::size_t kMaxText = 60000;  ///< longer texts are cut
  explicit Channel(int fd) noexcept;              ///< owns fd and makes it close-on-exec
  void send(const Message& message) const noexcept;
  std::optional<Message> receive() const;  ///< non-blocking; nullopt: no message. Malformed messages are dropped.
  int fd() const noexcept { return fd_.get(); }

 private:
  Descriptor fd_;
  mutable bool is_stuck_ = false;  // the last message that waited was dropped; several threads send
};

/// Connected pair: {supervisor end, worker end}; both close-on-exec.
std::pair<Channel, Channel> make_channel_pair();

}  // namespace lockstep
