// What a World consists of.
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

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <lockstep/base/control.h>
#include <lockstep/world/world.h>

#include "base/paths.h"
#include "ipc/progress_record.h"
#include "tensor/vector_math.h"
#include "world/device_clock.h"
#include "world/planes.h"
#include "world/process_group.h"
#include "world/rank_place.h"
#include "world/world_access.h"

namespace lockstep {

struct World::Impl {
  Impl() { settle_vector_math(); }

  bool alone() const noexcept { return place.size == 1; }

  // Making a world (connect.cpp).
  /// What is known before the rendezvous.
  void begin(const Plan& plan, const Identity& identity, const DeviceId& chosen);
  void connect_control_plane();
  /// `asked`: automatic: shm, which the ranks may leave.
  void connect_data_plane(c10::Device on, Backend asked);
  /// Not every launcher provides the node of a rank or the number of ranks on it. Returns why the ranks do not share
  /// memory; "": `wants_memory` on all of them, and they are on one machine.
  std::string learn_nodes(const Identity& identity, bool wants_memory);

  // Collectives (collectives.cpp). Throw: CommError naming `what` and the missing ranks.
  /// `work` calls the process group, for tensors of the device.
  void checked(std::string_view what, Operation operation, std::int64_t bytes, const std::function<void()>& work);
  /// `work` calls the process group, for host values.
  void control(std::string_view what, Operation operation, std::int64_t bytes, const std::function<void()>& work);
  std::vector<std::string> gather(std::string_view what, std::string_view bytes);
  /// Reduces each value by itself.
  std::vector<std::int64_t> control_all_reduce(std::string_view what, Operation operation,
                                               const std::vector<std::int64_t>& values, c10d::ReduceOp op,
                                               std::chrono::milliseconds longest = c10d::kUnsetTimeout);
  void take_turn(std::string_view what, std::optional<int> after, const std::function<void()>& work);

  void check_device() const {
    if (planes) {
      planes->check_device();
    }
    if (of_backwards) {
      of_backwards->impl_->check_device();
    }
  }

  RankCoordinates place{};
  c10::Device device{c10::kCPU};
  std::chrono::milliseconds timeout{};
  c10::intrusive_ptr<c10d::Store> store{};
  Backend backend = Backend::gloo;       // in use
  bool may_leave_shared_memory = false;  // nobody asked for it
  std::int64_t operations = 0;           // control-plane collectives begun by this rank
  std::shared_ptr<ProgressRecord> progress = std::make_shared<ProgressRecord>();  // or one of the launcher's board
  std::shared_ptr<DeviceClock> clock{};  // made when it is first asked for: then the device is known
  std::int64_t channels = 0;
  std::weak_ptr<RunHold> run_hold{};
  std::filesystem::path start_directory = working_directory();
  std::optional<TrainControl> control_of_run{};
  std::function<void(const std::string&)> on_what_is_left{};  // empty: a line of the log
  std::vector<RankPlace> places{};                            // of all ranks
  std::optional<DeterministicCuda> deterministic_cuda{};
  std::optional<Planes> planes{};       // of several ranks
  std::optional<World> of_backwards{};  // made when it is first asked for
};

}  // namespace lockstep
