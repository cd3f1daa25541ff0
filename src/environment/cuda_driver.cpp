#include "environment/cuda_driver.h"

#include <algorithm>
#include <array>

#include <dlfcn.h>
#include <fmt/format.h>

namespace lockstep {
namespace {

// The few functions that are used, by their documented ABI, as for NVML.
using CudaResult = int;
using CudaDevice = int;
using CudaUuid = std::array<unsigned char, 16>;
constexpr CudaResult kCudaSuccess = 0;

template <class Function>
Function* cuda_function(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

/// "11111111-2222-3333-4444-555555555555"
std::string uuid_text(const CudaUuid& bytes) {
  constexpr std::array kDashBefore{4U, 6U, 8U, 10U};
  std::string text;
  for (unsigned i = 0; i < bytes.size(); ++i) {
    text += std::ranges::find(kDashBefore, i) == kDashBefore.end() ? "" : "-";
    text += fmt::format("{:02x}", bytes[i]);
  }
  return text;
}

/// "GPU-1111..." and "MIG-1111..." without the prefix.
std::string_view without_kind(std::string_view uuid) { return uuid.substr(std::min(uuid.find('-') + 1, uuid.size())); }

}  // namespace

// The library stays loaded: the driver does not allow to unload it.
std::vector<std::string> cuda_gpus(const char* library) {
  void* const driver = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) {
    return {};
  }
  const auto init = cuda_function<CudaResult(unsigned)>(driver, "cuInit");
  const auto get_count = cuda_function<CudaResult(int*)>(driver, "cuDeviceGetCount");
  const auto get_device = cuda_function<CudaResult(CudaDevice*, int)>(driver, "cuDeviceGet");
  const auto get_uuid =
      cuda_function<CudaResult(CudaUuid*, CudaDevice)>(driver, "cuDeviceGetUuid_v2");  // of a MIG device: its own
  int count = 0;
  if (init == nullptr || get_count == nullptr || get_device == nullptr || get_uuid == nullptr ||
      init(0) != kCudaSuccess || get_count(&count) != kCudaSuccess) {
    return {};
  }
  std::vector<std::string> uuids;
  for (int index = 0; index < count; ++index) {
    CudaDevice device = 0;
    CudaUuid uuid{};
    if (get_device(&device, index) != kCudaSuccess || get_uuid(&uuid, device) != kCudaSuccess) {
      return {};
    }
    uuids.push_back(uuid_text(uuid));
  }
  return uuids;
}

std::vector<int> cuda_indices(const std::vector<std::string>& uuids, const std::vector<std::string>& shown) {
  std::vector<int> indices;
  for (const std::string& uuid : uuids) {
    const auto found = std::ranges::find(shown, without_kind(uuid));
    if (found == shown.end()) {
      return {};
    }
    indices.push_back(static_cast<int>(found - shown.begin()));
  }
  return indices;
}

}  // namespace lockstep
