#include "base/host_name.h"

#include <array>

#include <unistd.h>

#include "base/text.h"

namespace lockstep {

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0' ? printable(name.data()) : "localhost";
}

}  // namespace lockstep
