#include "base/address.h"

#include <cerrno>

#include <poll.h>
#include <sys/socket.h>

namespace lockstep {
namespace {

Descriptor try_connect(const addrinfo& address, std::chrono::milliseconds patience) {
  Descriptor fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.is_open() || connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0) {
    return fd;
  }
  int error = errno;
  socklen_t size = sizeof error;
  pollfd entry{.fd = fd.get(), .events = POLLOUT, .revents = 0};
  if (error != EINPROGRESS || poll(&entry, 1, static_cast<int>(patience.count())) != 1 ||
      getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error != 0) {
    return {};
  }
  return fd;
}

}  // namespace

Descriptor connect_to_any(const addrinfo* addresses, std::chrono::milliseconds patience) {
  for (const addrinfo* address = addresses; address != nullptr; address = address->ai_next) {
    if (Descriptor fd = try_connect(*address, patience); fd.is_open()) {
      return fd;
    }
  }
  return {};
}

Descriptor bind_to_any(const addrinfo* addresses) {
  int error = EADDRNOTAVAIL;
  for (const addrinfo* address = addresses; address != nullptr; address = address->ai_next) {
    Descriptor fd(socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int yes = 1;  // allows the port of a run that has just ended
    if (fd.is_open() && setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
        bind(fd.get(), address->ai_addr, address->ai_addrlen) == 0) {
      return fd;
    }
    error = errno;
    if (error != EADDRNOTAVAIL && error != EAFNOSUPPORT) {  // a port in use: clients would find its owner first
      break;
    }
  }
  errno = error;
  return {};
}

}  // namespace lockstep
