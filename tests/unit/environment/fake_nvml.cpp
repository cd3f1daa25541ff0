// A driver with five GPUs: a free one, one in exclusive mode and taken, one in exclusive mode and free, one that is
// prohibited, and one that this container may not see. By the documented ABI, not by the types of the code under test.
#include <cstdio>
#include <cstring>

namespace {

constexpr int kSuccess = 0;
constexpr int kNoPermission = 4;
constexpr int kInsufficientSize = 7;
constexpr int kUnknown = 999;

struct Device {
  const char* name;
  const char* uuid;
  unsigned bus;
  unsigned long long total, free;
  int mode;
  unsigned processes;
};

Device devices[] = {
    {"Fast GPU", "GPU-aaaa", 0x01, 100, 90, 0, 3},
    {"Taken GPU", "GPU-bbbb", 0x02, 200, 150, 3, 1},
    {"Exclusive GPU", "GPU-cccc", 0x03, 300, 300, 3, 0},
    {"Prohibited GPU", "GPU-dddd", 0x04, 400, 400, 2, 0},
};

bool initialized = false;

const Device& get(void* device) { return *static_cast<const Device*>(device); }

int copy(const char* text, char* out, unsigned size) {
  std::snprintf(out, size, "%s", text);
  return kSuccess;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  initialized = true;
  return kSuccess;
}

int nvmlShutdown() {
  initialized = false;
  return kSuccess;
}

const char* nvmlErrorString(int) { return "some error"; }

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 5;
  return initialized ? kSuccess : kUnknown;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (index >= 4) {
    return kNoPermission;
  }
  *device = &devices[index];
  return kSuccess;
}

int nvmlDeviceGetName(void* device, char* name, unsigned size) { return copy(get(device).name, name, size); }
int nvmlDeviceGetUUID(void* device, char* uuid, unsigned size) { return copy(get(device).uuid, uuid, size); }

int nvmlDeviceGetPciInfo_v3(void* device, unsigned char* info) {
  constexpr int kBusIdOffset = 16 + 5 * 4;  // after the legacy id and five numbers
  std::memset(info, 0, kBusIdOffset + 32);
  std::snprintf(reinterpret_cast<char*>(info) + kBusIdOffset, 32, "00000000:%02X:00.0", get(device).bus);
  return kSuccess;
}

int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* memory) {
  memory[0] = get(device).total;
  memory[1] = get(device).free;
  memory[2] = get(device).total - get(device).free;
  return kSuccess;
}

int nvmlDeviceGetComputeMode(void* device, int* mode) {
  *mode = get(device).mode;
  return kSuccess;
}

// Number 100, 101, ... with 10 bytes, 20 bytes, ...
int nvmlDeviceGetComputeRunningProcesses(void* device, unsigned* count, void* infos) {
  struct Info {
    unsigned pid;
    unsigned long long bytes;
  };
  const unsigned room = *count;
  *count = get(device).processes;
  for (unsigned i = 0; i < *count && i < room; ++i) {
    static_cast<Info*>(infos)[i] = {100 + i, 10ULL * (i + 1)};
  }
  return *count > room ? kInsufficientSize : kSuccess;
}
}
