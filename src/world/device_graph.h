// Work of a device that is recorded once and run many times.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace lockstep {

/// The kernels of a piece of work, with the addresses of their memory. Running them again costs the host one call.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;

  /// Calls `work` once and records what it puts on the current stream, which must not be the default one. Nothing of it
  /// runs. Memory that `work` allocates belongs to the graph; tensors that outlive `work` keep theirs. If this throws,
  /// the stream, the allocator and the device's random numbers are as before, and the graph can only be destroyed.
  /// Throws: what `work` throws; an error of the device if the work cannot be recorded, such as a copy to the host that
  /// the host waits for.
  virtual void record(const std::function<void()>& work) = 0;
  /// Puts the recorded work on the current stream, with the random numbers that the work would get now.
  virtual void replay() = 0;
  /// The memory on the device that the process got during record(), also for other threads.
  virtual std::int64_t bytes() const = 0;
};

/// Makes a graph. `beside`: a graph of the same factory that has been recorded and that never runs at the same time, so
/// that both use the same memory; nullptr: it gets memory of its own.
using DeviceGraphFactory = std::function<std::unique_ptr<DeviceGraph>(DeviceGraph* beside)>;

/// A CUDA graph of the current GPU. Needs load_cuda(). Throws: LaunchError if this build has none.
std::unique_ptr<DeviceGraph> make_cuda_graph(DeviceGraph* beside);

}  // namespace lockstep
