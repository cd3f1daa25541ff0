// What a supervisor tells its ranks while they run. Torch-free.
#pragma once

#include <memory>
#include <thread>

#include "base/descriptor.h"
#include "control/channel.h"

namespace lockstep {

/// A thread of a rank that waits for orders while it lives. `abort`, or a supervisor that is gone, ends this process at
/// once with ExitCode::peer_lost, whatever its other threads wait for; `dump` writes their stacks.
class Orders {
 public:
  explicit Orders(std::shared_ptr<const Channel> channel);  ///< Throws: LaunchError
  ~Orders();
  Orders(const Orders&) = delete;
  Orders& operator=(const Orders&) = delete;

 private:
  void obey();

  std::shared_ptr<const Channel> channel_;
  Descriptor leave_{};
  std::thread thread_{};
};

}  // namespace lockstep
