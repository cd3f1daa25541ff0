// The device of a rank: how it is started and waited for.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>

namespace lockstep {

/// The current device of its type if it has no index, as tensors made on `device` have it.
c10::Device with_index(c10::Device device);

/// Fails here if the GPU cannot be used, not at the first tensor. `uuids`: those of the GPUs of this node's ranks, as
/// the plan knows them. Returns the device under which CUDA knows the GPU `local` of them; without uuids, `device`
/// with an index.
c10::Device start_gpu(c10::Device device, const std::vector<std::string>& uuids, std::size_t local);

/// Waits for an event of the device and calls `check` all the time, whose exceptions end the wait.
void wait_for_event(const c10::Event& event, const std::function<void()>& check);

}  // namespace lockstep
