// A server on the loopback interface that is not a store.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace lockstep {

class Listener {
 public:
  /// Calls `serve` for each connection, one after another.
  using Serve = std::function<void(int connection)>;

  explicit Listener(Serve serve) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    bind(fd_, reinterpret_cast<sockaddr*>(&address), size);
    listen(fd_, SOMAXCONN);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this, serve = std::move(serve)] {
      while (!over_) {
        pollfd waiting{.fd = fd_, .events = POLLIN, .revents = 0};
        if (poll(&waiting, 1, 50) == 1) {
          const int connection = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC);
          serve(connection);
          close(connection);
        }
      }
    });
  }
  ~Listener() {
    over_ = true;
    thread_.join();
    close(fd_);
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  const std::string& port() const noexcept { return port_; }

 private:
  int fd_;
  std::string port_{};
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace lockstep
