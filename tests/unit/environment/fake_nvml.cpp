// A driver with the GPUs of LOCKSTEP_TEST_GPUS: "<uuid> <state>, ..."; or one that does not start: "<number of an NVML
// error>". By the documented ABI, not by the types of the code under test.
//
// States: free; busy (in use); exclusive; taken (exclusive, in use); prohibited; hidden (no permission, as for a
// container's share of a machine); lost; dying (lost after it was found); mig:<n> (n instances); worn (2 uncorrected
// ECC errors); throttled (300 W of 700 W); unplugged (17 of 18 NVLinks). GPUs 0 and 1, 2 and 3, ... are connected by
// NVLink. The driver is 580.65.06, or LOCKSTEP_TEST_DRIVER.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace {

enum Error : int {
  kSuccess = 0,
  kNotSupported = 3,
  kNoPermission = 4,
  kNotFound = 6,
  kInsufficientSize = 7,
  kIsLost = 15
};

struct Device {
  std::string name{};
  std::string uuid{};
  std::string state{};
  unsigned number = 0;
  std::vector<Device> instances{};
};

bool initialized = false;
std::vector<Device> devices;

Device* get(void* device) { return static_cast<Device*>(device); }
bool is(void* device, const char* state) { return get(device)->state == state; }

int copy(const std::string& text, char* out, unsigned size) {
  std::snprintf(out, size, "%s", text.c_str());
  return kSuccess;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  const char* text = std::getenv("LOCKSTEP_TEST_GPUS");
  std::istringstream machine(text == nullptr ? "" : text);
  if (int error = 0; machine >> error) {
    return error;
  }
  machine.clear();
  machine.seekg(0);
  devices.clear();
  for (std::string entry; std::getline(machine, entry, ',');) {
    Device device{.name = "Test GPU", .number = static_cast<unsigned>(devices.size())};
    std::istringstream(entry) >> device.uuid >> device.state;
    const int instances = device.state.rfind("mig:", 0) == 0 ? std::atoi(device.state.c_str() + 4) : 0;
    for (int i = 0; i < instances; ++i) {
      device.instances.push_back({.name = "Test GPU MIG 1g.10gb",
                                  .uuid = "MIG-" + device.uuid.substr(4) + "-" + std::to_string(i),
                                  .state = "instance",
                                  .number = device.number});
    }
    devices.push_back(device);
  }
  initialized = true;
  return kSuccess;
}

int nvmlShutdown() {
  initialized = false;
  return kSuccess;
}

const char* nvmlErrorString(int error) {
  return error == kIsLost ? "GPU is lost" : error == 18 ? "Driver/library version mismatch" : "some error";
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(devices.size());
  return initialized ? kSuccess : 1;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &devices.at(index);
  return is(*device, "hidden") ? kNoPermission : is(*device, "lost") ? kIsLost : kSuccess;
}

int nvmlDeviceGetName(void* device, char* name, unsigned size) { return copy(get(device)->name, name, size); }

int nvmlDeviceGetUUID(void* device, char* uuid, unsigned size) {
  return is(device, "dying") ? kIsLost : copy(get(device)->uuid, uuid, size);
}

int nvmlDeviceGetPciInfo_v3(void* device, unsigned char* info) {
  constexpr int kBusIdOffset = 16 + 5 * 4;  // after the legacy id and five numbers
  std::memset(info, 0, kBusIdOffset + 32);
  std::snprintf(reinterpret_cast<char*>(info) + kBusIdOffset, 32, "00000000:%02X:00.0", get(device)->number + 1);
  return is(device, "instance") ? kNotSupported : kSuccess;
}

// GPU 0 has 100 bytes, GPU 1 has 200, ...; an instance has 10.
int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* memory) {
  memory[0] = is(device, "instance") ? 10 : 100ULL * (get(device)->number + 1);
  memory[1] = is(device, "busy") || is(device, "taken") ? memory[0] / 2 : memory[0];
  memory[2] = memory[0] - memory[1];
  return kSuccess;
}

int nvmlDeviceGetComputeMode(void* device, int* mode) {
  *mode = is(device, "prohibited") ? 2 : is(device, "exclusive") || is(device, "taken") ? 3 : 0;
  return is(device, "instance") ? kNotSupported : kSuccess;
}

// GPU 0 computes for 50 % of the time, at 100 W and 40 degrees; GPU 1 for 51 % ... A divided one does not say for how
// long.
int nvmlDeviceGetUtilizationRates(void* device, unsigned* rates) {
  rates[0] = 50 + get(device)->number;
  rates[1] = 10;
  return get(device)->instances.empty() ? kSuccess : kNotSupported;
}

int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  *milliwatts = 1000 * (100 + get(device)->number);
  return kSuccess;
}

int nvmlDeviceGetTemperature(void* device, int, unsigned* celsius) {
  *celsius = 40 + get(device)->number;
  return kSuccess;
}

int nvmlDeviceGetMigMode(void* device, unsigned* mode, unsigned* pending) {
  *mode = *pending = get(device)->state.rfind("mig:", 0) == 0 ? 1 : 0;
  return kSuccess;
}

int nvmlDeviceGetMaxMigDeviceCount(void*, unsigned* count) {
  *count = 7;
  return kSuccess;
}

// Instance n has place n + 1: the first place is empty.
int nvmlDeviceGetMigDeviceHandleByIndex(void* device, unsigned index, void** instance) {
  auto& instances = get(device)->instances;
  if (index == 0 || index > instances.size()) {
    return kNotFound;
  }
  *instance = &instances[index - 1];
  return kSuccess;
}

int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  const char* version = std::getenv("LOCKSTEP_TEST_DRIVER");
  return copy(version == nullptr ? "580.65.06" : version, text, size);
}

int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return kSuccess;
}

int nvmlDeviceGetCudaComputeCapability(void*, int* major, int* minor) {
  *major = 9;
  *minor = 0;
  return kSuccess;
}

int nvmlDeviceGetEccMode(void*, int* current, int* pending) {
  *current = *pending = 1;
  return kSuccess;
}

int nvmlDeviceGetTotalEccErrors(void* device, int kind, int since, unsigned long long* count) {
  *count = is(device, "worn") && kind == 1 && since == 0 ? 2 : 0;
  return kSuccess;
}

int nvmlDeviceGetPowerManagementLimit(void* device, unsigned* milliwatts) {
  *milliwatts = is(device, "throttled") ? 300'000 : 700'000;
  return kSuccess;
}

int nvmlDeviceGetPowerManagementDefaultLimit(void*, unsigned* milliwatts) {
  *milliwatts = 700'000;
  return kSuccess;
}

int nvmlDeviceGetNvLinkState(void* device, unsigned link, int* active) {
  *active = link == 3 && is(device, "unplugged") ? 0 : 1;
  return link < 18 ? kSuccess : 2;
}

int nvmlDeviceGetTopologyCommonAncestor(void* a, void* b, int* level) {
  *level = get(a)->number / 4 == get(b)->number / 4 ? 40 : 50;
  return kSuccess;
}

int nvmlDeviceGetP2PStatus(void* a, void* b, int question, int* status) {
  const bool neighbours = get(a)->number / 2 == get(b)->number / 2;
  *status = question == 0 || (question == 2 && neighbours) ? 0 : 5;
  return kSuccess;
}

// Number 100, 101, 102 with 10 bytes, 20 bytes, ...
int nvmlDeviceGetComputeRunningProcesses(void* device, unsigned* count, void* infos) {
  struct Info {
    unsigned pid;
    unsigned long long bytes;
  };
  const unsigned room = *count;
  *count = is(device, "busy") ? 3 : is(device, "taken") ? 1 : 0;
  for (unsigned i = 0; i < *count && i < room; ++i) {
    static_cast<Info*>(infos)[i] = {100 + i, 10ULL * (i + 1)};
  }
  return *count > room ? kInsufficientSize : kSuccess;
}
}
