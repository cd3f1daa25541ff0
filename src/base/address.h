// Resolves host names to addresses. Torch-free.
#pragma once

#include <memory>
#include <string>

#include <netdb.h>

namespace lockstep {

struct FreeAddresses {
  void operator()(addrinfo* list) const noexcept { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

/// Addresses for TCP. Null: the name is not known (perhaps not yet); `error` is then getaddrinfo's code.
inline Addresses resolve_address(const std::string& host, int port, int& error) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  return Addresses(error == 0 ? found : nullptr);
}

}  // namespace lockstep
