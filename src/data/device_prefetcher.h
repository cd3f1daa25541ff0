// data/device_prefetcher.h
#pragma once

#include <optional>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <lockstep/data/batch.h>

namespace lockstep {

/// A micro-batch on its way to the training step.
struct PreparedBatch {
  Batch batch{};
  std::optional<c10::Event> arrived{};  ///< recorded after its copy to the device; reused
};

/// Copies batches to a GPU on a stream of its own, beside the training step's kernels. The host waits for nothing.
/// Only LibTorch's device-generic interface is used: no CUDA header, no CUDA library.
class DevicePrefetcher {
 public:
  DevicePrefetcher(c10::Device device, bool pin_memory);

  /// The copy stream. Batches are built with it as the current stream, so that what a data set does on the device
  /// itself is covered by `arrived` as well.
  c10::Stream stream() const noexcept { return stream_; }
  /// Starts the copy of `prepared.batch` and puts the device's batch in its place. Any thread; stream() is current.
  void send(PreparedBatch& prepared) const;
  /// Makes the calling thread's current stream wait for the copy. The training thread, once, before the batch is used.
  void receive(PreparedBatch& prepared) const;

 private:
  c10::Device device_;
  bool pin_memory_;
  c10::Stream stream_;
};

}  // namespace lockstep
