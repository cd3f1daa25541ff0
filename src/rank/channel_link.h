// A rank's end of the channel to its supervisor. Torch-free.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "failure/failure_link.h"
#include "ipc/channel.h"

namespace lockstep {

/// The message `abort`, or the end of the supervisor, ends this rank at once, even if its threads are blocked. `dump`
/// writes their stacks.
class ChannelLink final : public FailureLink {
 public:
  ChannelLink(int rank, std::shared_ptr<const Channel> channel) : rank_(rank), channel_(std::move(channel)) {}

  void announce(const Failure& failure) override;
  void step(Time now) override;
  const std::optional<Failure>& cause() const override { return cause_; }
  bool ends_at_once() const override { return cause_.has_value(); }
  int fd() const noexcept override { return channel_->fd(); }

 private:
  void end_because(const std::string& why);

  const int rank_;
  std::shared_ptr<const Channel> channel_;
  std::optional<Failure> cause_{};
  bool announced_ = false;
};

/// A failure as the message that the rank sends. The supervisor knows the place from the rank's record.
Message to_message(const Failure& failure);

}  // namespace lockstep
