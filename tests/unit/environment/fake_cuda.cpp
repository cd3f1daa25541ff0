// A CUDA driver that shows the GPUs of LOCKSTEP_TEST_CUDA, in this order: "11,aa" has the UUIDs 11111111-1111-... and
// aaaaaaaa-aaaa-...; "broken" does not start.
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

std::string gpus() { return std::getenv("LOCKSTEP_TEST_CUDA"); }

}  // namespace

extern "C" {

int cuInit(unsigned) { return gpus() == "broken" ? 999 : 0; }

int cuDeviceGetCount(int* count) {
  *count = static_cast<int>((gpus().size() + 1) / 3);
  return 0;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}

int cuDeviceGetUuid_v2(void* uuid, int device) {
  std::memset(uuid, std::stoi(gpus().substr(static_cast<std::size_t>(device) * 3, 2), nullptr, 16), 16);
  return 0;
}
}
