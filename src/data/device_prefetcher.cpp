#include "data/device_prefetcher.h"

#include <atomic>

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "data/for_each_tensor.h"
#include "tensor/stream_memory.h"
#include "world/world_access.h"

namespace lockstep {

DevicePrefetcher::DevicePrefetcher(const World& world, const DataConfig& data)
    : device_(world.device()),
      pin_memory_(data.pin_memory),
      sends_in_step_(data.workers == 0),
      progress_(WorldAccess::shared_progress(world)),
      clock_(WorldAccess::shared_clock(world)),
      stream_(c10::impl::VirtualGuardImpl(device_.type()).getNewStream(device_)) {
  // Data sets may hold tensors on the device that the current stream is still filling.
  c10::Event filled(device_.type());
  filled.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  filled.block(stream_);
}

// Not for a validation or a callback, whose time is theirs.
bool DevicePrefetcher::is_for_a_step() const noexcept {
  return progress_->phase.load(std::memory_order_relaxed) == Phase::data;
}

void DevicePrefetcher::send(PreparedBatch& prepared) const {
  RECORD_USER_SCOPE("copy");
  std::optional<PhaseScope> on_host;
  if (sends_in_step_ && is_for_a_step()) {
    on_host.emplace(*progress_, Phase::copy);
  }
  // The page-locked copy may be released at once: its allocator keeps the memory until the stream has read it.
  for_each_tensor(prepared.batch, [&](at::Tensor& tensor) {
    const bool pinned = pin_memory_ && tensor.is_cpu();
    const at::Tensor host = pinned ? tensor.pin_memory() : tensor;
    // A copy from memory that is not page-locked must be synchronous: the batch is released afterwards.
    tensor = host.to(device_, host.scalar_type(), /*non_blocking=*/pinned);
  });
  if (!prepared.arrived) {
    prepared.arrived.emplace(device_.type());
  }
  prepared.arrived->record(stream_);
}

void DevicePrefetcher::receive(PreparedBatch& prepared) const {
  std::optional<DeviceClock::Part> on_device;
  if (is_for_a_step()) {
    on_device.emplace(*clock_, Phase::copy);
  }
  const c10::Stream current = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  prepared.arrived->block(current);
  // The memory belongs to the copy stream: without this it could be reused while `current` still reads it.
  for_each_tensor(prepared.batch, [&](const at::Tensor& tensor) { keep_for(current, tensor); });
}

}  // namespace lockstep
