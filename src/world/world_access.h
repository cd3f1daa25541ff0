// Parts of a World that are not public, for parallel/ and the tests.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/util/intrusive_ptr.h>

#include <lockstep/base/control.h>
#include <lockstep/config/train_config.h>
#include <lockstep/environment/identity.h>
#include <lockstep/plan/plan.h>
#include <lockstep/world/world.h>

#include "ipc/progress_record.h"
#include "world/device_clock.h"
#include "world/rank_place.h"

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace lockstep {

inline constexpr const char* kLoopback = "127.0.0.1";

/// Coordinates of a rank in the launch.
struct RankCoordinates {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int node = 0;
  int nodes = 1;
  std::string address = kLoopback;  ///< address of this machine to listen on
  std::string interfaces{};         ///< GLOO_SOCKET_IFNAME: network interfaces to listen on instead
};

class RunHold;

/// The rows of all ranks.
struct GatheredRows {
  at::Tensor all{};
  std::int64_t first = 0;  ///< where those of this rank begin
};

// A public header declares it, and so would export it.
struct [[gnu::visibility("hidden")]] WorldAccess;

struct WorldAccess {
  /// World::connect. `on_rendezvous` is called after it, or at once for a single rank; before the first collective
  /// and before the device is used. The World then has its coordinates and its store.
  static World connect(const Plan& plan, const Identity& identity,
                       const std::function<void(const World&)>& on_rendezvous);
  /// Collective. Creates a world with an existing store whose keys belong only to this world. Every rank passes its own
  /// connection (ranks that are threads may share a HashStore). `backend`: automatic: shared memory that the ranks may
  /// leave.
  static World make(const c10::intrusive_ptr<c10d::Store>& store, const RankCoordinates& place, c10::Device device,
                    Backend backend, std::chrono::milliseconds timeout);
  /// Collective. Another world of the same ranks and device, whose collectives may have another order on each rank than
  /// those of `world`. It shows its progress in the same record.
  static World second(World& world, std::string_view purpose);
  /// Collective the first time. A second() world for what the program sends in a backward; with one rank `world`
  /// itself.
  static World& of_backwards(World& world);
  /// Undefined at size 1.
  static const c10::intrusive_ptr<c10d::ProcessGroup>& group(const World& world);
  /// The one in use. For several ranks.
  static Backend backend(const World& world);
  /// Gradients are reduced in memory that the ranks share.
  static bool shares_memory(const World& world);
  /// Every rank calls it at the same place: gradients of reducers that are built from now on go through Gloo, and the
  /// main rank logs why. false: they do already, or somebody asked for shared memory.
  static bool leave_shared_memory(World& world, std::string_view reason);
  /// Longest wait for a peer in a collective.
  static std::chrono::milliseconds timeout(const World& world);
  /// Waits for an event of the device. Throws: CommError as soon as a collective on the device has failed: results that
  /// were computed after it are invalid.
  static void wait_for(const World& world, const c10::Event& event);
  /// Waits for the current stream in the same way; called before each save.
  static void settle_device(const World& world);
  /// The tensor on the CPU, after settle_device. Read results of collectives only in this way.
  static at::Tensor on_host(const World& world, const at::Tensor& tensor);
  /// Collective. World::any() without a time limit, because the callbacks of other ranks may take any time.
  static bool any_without_timeout(World& world, bool value);
  /// Collective. Runs code of the program that may take any time: it is not reported as a stall, and the ranks wait for
  /// each other after it, not in the next step. `name`, `where`: as of a callback and its stage.
  static void run_as_callback(World& world, std::string_view name, std::string_view where,
                              const std::function<void()>& work);
  /// Collective. Whether all ranks have the same text: one all-reduce of digests, so a wrong yes has a chance of 2^-64.
  static bool all_equal(World& world, std::string_view text);
  /// Collective. World::all_gather.
  static GatheredRows all_gather(World& world, const at::Tensor& tensor);
  /// Call it on a rank that failed at the completed `step`. true: every rank of the world failed there, and each got
  /// true. See Note [A common failure].
  static bool is_common_failure(World& world, std::int64_t step);
  /// What this rank is doing, as its supervisor sees it. Only the rank's own thread writes it.
  static ProgressRecord& progress(const World& world);
  /// The clock of the device. One thread at a time uses it: the rank's own, or one of autograd while that waits.
  static DeviceClock& clock(const World& world);
  /// The same two, for an object that may live longer than the world.
  static const std::shared_ptr<ProgressRecord>& shared_progress(const World& world);
  static const std::shared_ptr<DeviceClock>& shared_clock(const World& world);
  /// The working directory in which the world was connected: a relative run directory begins there, wherever the
  /// program has gone since.
  static const std::filesystem::path& start_directory(const World& world);
  /// The run directory that is locked for this world (checkpoint/run_hold.h).
  static std::weak_ptr<RunHold>& run_hold(World& world);
  /// The requests of the run, such as those of signals. Empty: the world is not one of run().
  static std::optional<TrainControl>& control_of_run(World& world);
  /// Says what is left of the work after a failure, with the rank in front if there are several.
  static void tell_what_is_left(const World& world, std::string_view text);
  /// Gets this text instead of the log: run() lets one rank say it.
  static std::function<void(const std::string&)>& on_what_is_left(World& world);
  /// Where each rank runs; empty if the world was not connected for a plan.
  static const std::vector<RankPlace>& places(const World& world);

 private:
  friend class World;
  /// Collective. Connects the planes, after the ranks have compared their settings and GPUs. `gpu`: that of this rank;
  /// "": none.
  static void connect_planes(World& world, const Plan& plan, const Identity& identity, const RankPlace& place,
                             std::string_view gpu);
  static World connect_again(World& world, std::string_view purpose, c10::Device device, Backend backend);
};

}  // namespace lockstep
