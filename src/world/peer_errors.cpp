#include "world/peer_errors.h"

#include <algorithm>
#include <typeinfo>

#include <fmt/format.h>

#include <c10/util/Exception.h>

#include <lockstep/base/error.h>
#include <lockstep/world/world.h>

#include "base/text.h"

namespace lockstep {

std::string plain_text(const std::exception& error) {
  std::string text(without_frames(error.what()));
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

// NCCL's own text says that a call of CUDA failed.
bool is_gpu_failure(const std::exception& error) noexcept {
  return dynamic_cast<const c10::AcceleratorError*>(&error) != nullptr ||
         dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         (dynamic_cast<const c10::DistBackendError*>(&error) != nullptr &&
          std::string_view(error.what()).find("unhandled cuda error") != std::string_view::npos);
}

bool is_peer_failure(const std::exception& error) noexcept {
  // Gloo's exception types are not in LibTorch's headers, so this compares their names.
  return !is_gpu_failure(error) && (dynamic_cast<const c10::DistError*>(&error) != nullptr ||
                                    std::string_view(typeid(error).name()).find("gloo") != std::string_view::npos);
}

void with_peers(const World& world, std::string_view what, const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    if (!is_peer_failure(error)) {
      throw;
    }
    throw CommError(fmt::format("{} failed on rank {} of {}: {}", what, world.rank(), world.size(), plain_text(error)),
                    kPeerHint);
  }
}

}  // namespace lockstep
