// Batches on their way to a GPU while it computes.
#pragma once

#include <memory>
#include <optional>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <lockstep/data/batch.h>
#include <lockstep/plan/plan.h>
#include <lockstep/world/world.h>

#include "ipc/progress_record.h"
#include "world/device_clock.h"

namespace lockstep {

/// A micro-batch that is being prepared for the training step.
struct PreparedBatch {
  Batch batch{};
  std::optional<c10::Event> arrived{};  ///< recorded after its copy to the device; reused
};

/// Copies batches to a GPU on a separate stream while the kernels of the training step run. The host never waits. Uses
/// only LibTorch's device-generic interface: no CUDA header, no CUDA library. What a training step waits for its copies
/// is counted as Phase::copy: the host's time if it sends them itself, and the time of its stream until they have
/// arrived.
class DevicePrefetcher {
 public:
  /// Keeps no reference to `world`.
  DevicePrefetcher(const World& world, const DataConfig& data);

  /// The copy stream. It is the current stream while batches are built, so that `arrived` also covers what a data set
  /// does on the device itself.
  c10::Stream stream() const noexcept { return stream_; }
  /// Starts the copy of `prepared.batch` and replaces it with the device's batch. Any thread; stream() must be current.
  void send(PreparedBatch& prepared) const;
  /// Makes the calling thread's current stream wait for the copy. The training thread calls it once before it uses the
  /// batch.
  void receive(PreparedBatch& prepared) const;

 private:
  bool is_for_a_step() const noexcept;

  c10::Device device_;
  bool pin_memory_;
  bool sends_in_step_;  // no worker does it beside the step
  std::shared_ptr<ProgressRecord> progress_;
  std::shared_ptr<DeviceClock> clock_;
  c10::Stream stream_;
};

}  // namespace lockstep
