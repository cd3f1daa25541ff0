// An NCCL that gives the version LOCKSTEP_TEST_NCCL, 22809 by default; "abort" and "exit" end the process.
#include <cstdlib>
#include <string>

extern "C" int ncclGetVersion(int* version) {
  const char* const text = std::getenv("LOCKSTEP_TEST_NCCL");
  if (text != nullptr && std::string(text) == "abort") {
    std::abort();
  }
  if (text != nullptr && std::string(text) == "exit") {
    std::_Exit(3);
  }
  *version = text == nullptr ? 22809 : std::stoi(text);
  return 0;
}
