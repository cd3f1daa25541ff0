// The two planes of a world over one process group: how they connect, fail and shut down.
#pragma once

#include <chrono>
#include <exception>

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "world/world_access.h"

namespace lockstep {

class Planes {
 public:
  /// Collective. Connects the control plane. For several ranks.
  Planes(c10::intrusive_ptr<c10d::Store> store, RankCoordinates place, std::chrono::milliseconds timeout);
  // NCCL's group warns if it is destroyed without a shutdown, which waits for the other ranks. They may not come if
  // this rank failed.
  ~Planes();
  Planes(const Planes&) = delete;
  Planes& operator=(const Planes&) = delete;

  /// Collective. Connects the data plane of a GPU; that of the CPU is connected already.
  void connect_gpu(c10::Device device, Backend backend);
  /// Throws: CommError if a collective on the device has failed. See Note [NCCL policy].
  void check_device() const;
  bool has_nccl() const noexcept { return bool(nccl_); }
  const c10::intrusive_ptr<c10d::ProcessGroup>& group() const noexcept { return group_; }

 private:
  c10d::ErrorType device_error() const;

  const int exceptions_before_ = std::uncaught_exceptions();
  c10::intrusive_ptr<c10d::Store> store_;
  RankCoordinates place_;
  std::chrono::milliseconds timeout_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  c10::intrusive_ptr<c10d::Backend> gloo_;
  c10::intrusive_ptr<c10d::Backend> nccl_{};  // null without NCCL
};

}  // namespace lockstep
