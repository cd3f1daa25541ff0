// A device of LibTorch that runs its work late, in an order of the test's choice: a missing wait, or memory that is
// used again too early, gives wrong numbers here, as it would now and then on a GPU. It follows CUDA's rules:
//
// * work is put on the current stream and runs in the order of its stream; streams wait for each other only by events;
// * memory belongs to the stream on which it was made. Freed, it may be overwritten by later work of that stream,
// unless
//   record_stream named other streams: then only after their work until then;
// * a copy between the device and page-locked memory may be asynchronous. Freed page-locked memory is kept until then.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "world/device_graph.h"

namespace lockstep::simulated {

/// Of two devices.
c10::Device device(int index = 0);

/// Finishes all work, and chooses how the next work runs. 0: as late as possible, and only what somebody waits for; 1:
/// at once; others: by chance.
void begin(std::uint64_t seed);

/// Puts work on the current stream of the current device.
void launch(std::function<void()> kernel);

/// A stream that does nothing any more, such as one with a collective that waits for a lost rank; until begin().
void hold(const c10::Stream& stream);

/// The same memory as a tensor on the CPU, for kernels. It does not keep the memory.
at::Tensor raw(const at::Tensor& tensor);

/// A DeviceGraphFactory. It follows CUDA's rules: what is recorded does not run, and a host that waits for it fails; a
/// replay reads and writes the addresses of the recording. Random numbers are those of the CPU.
std::unique_ptr<DeviceGraph> make_graph(DeviceGraph* beside);

/// For kernels: the device needs so long. Without it, work takes no time.
void spend(std::chrono::nanoseconds time);

/// Runs all work that does not wait for more.
void finish();

/// How often the host has waited for the device.
std::int64_t host_waits();

/// How many bytes of page-locked memory are in use.
std::int64_t pinned_bytes();

}  // namespace lockstep::simulated
