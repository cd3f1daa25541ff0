// Resolves host names to addresses, connects to them and listens on them. Torch-free.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <netdb.h>

#include "base/descriptor.h"

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

/// A non-blocking socket, connected to the first of `addresses` that answers: a name may have an address on which the
/// other machine does not listen. Closed if none does within `patience`, which each of them gets.
Descriptor connect_to_any(const addrinfo* addresses, std::chrono::milliseconds patience);

/// A socket that is bound to the first of `addresses` that this machine has. Closed if there is none, or if its port
/// cannot be used; errno says which.
Descriptor bind_to_any(const addrinfo* addresses);

}  // namespace lockstep
