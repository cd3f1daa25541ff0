#include "base/address.h"

#include <cerrno>

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace lockstep {
namespace {

// 127.0.0.2 stands for an address of the name on which the machine does not listen.
TEST(ConnectToAny, TriesAllAddressesOfAName) {
  int error = 0;
  const Addresses bound = resolve_address("127.0.0.1", 0, error);
  ASSERT_TRUE(bound);
  const Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(listener.get(), bound->ai_addr, bound->ai_addrlen), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  socklen_t size = bound->ai_addrlen;
  ASSERT_EQ(getsockname(listener.get(), bound->ai_addr, &size), 0);  // with the port

  const int port = ntohs(reinterpret_cast<const sockaddr_in*>(bound->ai_addr)->sin_port);
  const Addresses other = resolve_address("127.0.0.2", port, error);
  ASSERT_TRUE(other);
  EXPECT_FALSE(connect_to_any(other.get(), std::chrono::seconds(2)).is_open());
  addrinfo both = *other;
  both.ai_next = bound.get();
  EXPECT_TRUE(connect_to_any(&both, std::chrono::seconds(2)).is_open());
  EXPECT_FALSE(connect_to_any(nullptr, std::chrono::seconds(2)).is_open());
}

// 192.0.2.1 is reserved for documentation, so no machine has it.
TEST(BindToAny, TakesTheFirstAddressOfThisMachine) {
  int error = 0;
  const Addresses foreign = resolve_address("192.0.2.1", 0, error);
  const Addresses own = resolve_address("127.0.0.1", 0, error);
  ASSERT_TRUE(foreign && own);
  EXPECT_FALSE(bind_to_any(foreign.get()).is_open());
  EXPECT_EQ(errno, EADDRNOTAVAIL);
  addrinfo both = *foreign;
  both.ai_next = own.get();
  const Descriptor bound = bind_to_any(&both);
  ASSERT_TRUE(bound.is_open());
  ASSERT_EQ(listen(bound.get(), 1), 0);

  socklen_t size = own->ai_addrlen;
  ASSERT_EQ(getsockname(bound.get(), own->ai_addr, &size), 0);  // with the port
  const Addresses next = resolve_address("127.0.0.1", 0, error);
  own->ai_next = next.get();
  EXPECT_FALSE(bind_to_any(own.get()).is_open()) << "a port in use is not avoided";
  EXPECT_EQ(errno, EADDRINUSE);
  own->ai_next = nullptr;
}

}  // namespace
}  // namespace lockstep
