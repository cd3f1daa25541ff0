// What parallel/ and the tests see of a World beyond its public face.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <lockstep/config/train_config.h>
#include <lockstep/environment/identity.h>
#include <lockstep/plan/plan.h>
#include <lockstep/world/world.h>

#include "ipc/progress_record.h"

namespace lockstep {

/// Where a rank stands.
struct RankCoordinates {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int node = 0;
  int nodes = 1;
  std::string address = "127.0.0.1";  ///< of this machine, to listen on; "": GLOO_SOCKET_IFNAME's
};

class RunHold;

struct WorldAccess {
  /// World::connect. `met` is called when this rank has found the others, or is alone: before the first collective and
  /// before its device is used. The World has its place and its store then.
  static World connect(const Plan& plan, const Identity& identity, const std::function<void(const World&)>& met);
  /// Collective. A world over an already agreed store whose keys belong to this world alone. Every rank passes its own
  /// connection (ranks that are threads may share a HashStore).
  static World make(const c10::intrusive_ptr<c10d::Store>& store, const RankCoordinates& place, c10::Device device,
                    Backend backend, std::chrono::milliseconds timeout);
  /// Undefined at size 1.
  static const c10::intrusive_ptr<c10d::ProcessGroup>& group(const World& world);
  /// Throws: CommError when a collective of the device failed: what was computed after it is not to be trusted.
  static void check_device(const World& world);
  /// The same, after the device has done all that was asked of it: before anything is saved.
  static void settle_device(const World& world);
  /// Collective. any(), but without a limit of time: another rank's callback may take as long as it likes.
  static bool meet(World& world, bool value);
  /// What this rank is doing, as its supervisor sees it. The rank's own thread writes it.
  static ProgressRecord& progress(const World& world);
  /// The run directory that somebody holds for this world (checkpoint/run_hold.h).
  static std::weak_ptr<RunHold>& run_hold(World& world);
};

/// True for what Gloo, NCCL and c10d throw when a peer or the network is lost, as opposed to a mistake in the caller's
/// code.
bool is_peer_failure(const std::exception& error) noexcept;

/// One line, without LibTorch's backtrace.
std::string plain_text(const std::exception& error);

/// Runs `work`, which calls the process group itself. What says that a peer is lost becomes a CommError that names
/// `what`; everything else leaves as it is.
void with_peers(const World& world, std::string_view what, const std::function<void()>& work);

}  // namespace lockstep
