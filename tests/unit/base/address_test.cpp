#include "base/address.h"

#include <string>

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

}  // namespace
}  // namespace lockstep
