// An NCCL that gives the version LOCKSTEP_TEST_NCCL, 22809 by default; "abort" ends the process.
#include <cstdlib>
#include <string>

extern "C" int ncclGetVersion(int* version) {
  const char* const text = std::getenv("LOCKSTEP_TEST_NCCL");
  if (text != nullptr && std::string(text) == "abort") {
    std::abort();
  }
  *version = text == nullptr ? 22809 : std::stoi(text);
  return 0;
}
