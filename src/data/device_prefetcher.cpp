#include "data/device_prefetcher.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "data/for_each_tensor.h"
#include "tensor/stream_memory.h"

namespace lockstep {

DevicePrefetcher::DevicePrefetcher(c10::Device device, bool pin_memory)
    : device_(device),
      pin_memory_(pin_memory),
      stream_(c10::impl::VirtualGuardImpl(device.type()).getNewStream(device)) {
  // Data sets may hold tensors on the device that the current stream is still filling.
  c10::Event filled(device_.type());
  filled.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  filled.block(stream_);
}

void DevicePrefetcher::send(PreparedBatch& prepared) const {
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
  const c10::Stream current = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  prepared.arrived->block(current);
  // The memory belongs to the copy stream: without this it could be reused while `current` still reads it.
  for_each_tensor(prepared.batch, [&](const at::Tensor& tensor) { keep_for(current, tensor); });
}

}  // namespace lockstep
