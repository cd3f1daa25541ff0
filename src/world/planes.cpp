#include "world/planes.h"

#include <utility>

#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "world/peer_errors.h"
#include "world/process_group.h"

namespace lockstep {

using BackendType = c10d::ProcessGroup::BackendType;

Planes::Planes(c10::intrusive_ptr<c10d::Store> store, RankCoordinates place, std::chrono::milliseconds timeout)
    : store_(std::move(store)),
      place_(std::move(place)),
      timeout_(timeout),
      group_(c10::make_intrusive<c10d::ProcessGroup>(store_, place_.rank, place_.size)),
      gloo_(make_gloo_backend(c10::make_intrusive<c10d::PrefixStore>("gloo", store_), place_, timeout_)) {
  group_->setBackend(c10::kCPU, BackendType::GLOO, gloo_);
  group_->setDefaultBackend(BackendType::GLOO);
  group_->setGroupName("lockstep");
}

Planes::~Planes() {
  try {
    if (std::uncaught_exceptions() > exceptions_before_ || device_error() != c10d::ErrorType::SUCCESS) {
      group_->abort();
    } else {
      group_->shutdown();
    }
  } catch (const std::exception& error) {
    log_warning(fmt::format("the process group did not shut down: {}", plain_text(error)));
  }
}

void Planes::connect_gpu(c10::Device device, Backend backend) {
  if (backend != Backend::nccl) {
    group_->setBackend(c10::kCUDA, BackendType::GLOO, gloo_);
    return;
  }
  group_->setBoundDeviceId(device);
  nccl_ = make_nccl_backend(c10::make_intrusive<c10d::PrefixStore>("nccl", store_->clone()), place_.rank, place_.size,
                            device, timeout_, /*on_one_machine=*/place_.address == kLoopback);
  group_->setBackend(c10::kCUDA, BackendType::NCCL, nccl_);
  group_->setDefaultBackend(BackendType::NCCL);
}

c10d::ErrorType Planes::device_error() const { return nccl_ ? nccl_->getError() : c10d::ErrorType::SUCCESS; }

void Planes::check_device() const {
  if (const auto error = device_error(); error != c10d::ErrorType::SUCCESS) {
    const bool is_late = error == c10d::ErrorType::TIMEOUT;
    throw CommError(fmt::format("a collective of NCCL {} on rank {} of {}",
                                is_late ? fmt::format("took longer than {} s", timeout_.count() / 1000) : "failed",
                                place_.rank, place_.size),
                    kPeerHint);
  }
}

}  // namespace lockstep
