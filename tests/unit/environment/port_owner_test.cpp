#include "environment/port_owner.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "support/requirements.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Field;
using testing::MatchesRegex;

class PortOwner : public testing::TestWithParam<int> {
 protected:
  // Bound to the loopback of the family, on a port of the kernel's choice.
  void SetUp() override {
    socket_ = socket(GetParam(), SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in6 address{};
    address.sin6_family = static_cast<sa_family_t>(GetParam());
    if (GetParam() == AF_INET) {
      reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    } else {
      address.sin6_addr = in6addr_loopback;
    }
    socklen_t size = GetParam() == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    LOCKSTEP_REQUIRE(Requirements().that(bind(socket_, generic, size) == 0, "no such loopback"));
    getsockname(socket_, generic, &size);
    port_ = ntohs(address.sin6_port);  // at the same place in both
  }
  void TearDown() override { close(socket_); }

  int socket_ = -1;
  int port_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Families, PortOwner, testing::Values(AF_INET, AF_INET6));

TEST_P(PortOwner, IsNamedByProcessCommandAndUser) {
  EXPECT_EQ(describe_port_owner(port_), "another process") << "bound is not listening";
  ASSERT_EQ(listen(socket_, 1), 0);
  EXPECT_THAT(describe_port_owner(port_),
              MatchesRegex("pid " + std::to_string(getpid()) + " '.*core_tests.*' \\(user .+\\)"));
}

TEST_P(PortOwner, IsFoundAmongTheSocketsOfAProcess) {
  ASSERT_EQ(listen(socket_, 1), 0);
  const auto ours = AllOf(Field(&ListeningSocket::port, port_),
                          Field(&ListeningSocket::address, GetParam() == AF_INET ? "127.0.0.1" : "::1"));
  EXPECT_THAT(listening_sockets(), Contains(ours));
  EXPECT_THAT(listening_sockets(getpid()), Contains(ours));
  EXPECT_TRUE(listening_sockets(1 << 30).empty()) << "nobody has this number";
}

}  // namespace
}  // namespace lockstep
