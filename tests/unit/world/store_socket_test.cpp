// The sockets with which a rank looks for the rendezvous store.
#include "world/store_socket.h"

#include <string>

#include <gtest/gtest.h>

#include "base/text.h"
#include "support/listener.h"

namespace lockstep {
namespace {

Identity with_store(const std::string& address, const std::string& port) {
  return {.master_addr = address, .master_port = static_cast<int>(parse_int(port).value_or(0))};
}

// On most machines localhost is ::1 first, where this listener is not.
TEST(LocalAddress, IsThatOverWhichTheStoreIsReached) {
  const Listener listener([](int) {});
  EXPECT_EQ(local_address(with_store("localhost", listener.port())), "127.0.0.1");
  EXPECT_EQ(local_address(with_store("127.0.0.1", listener.port())), "127.0.0.1");
  EXPECT_EQ(local_address(with_store("::1", listener.port())), "");
}

}  // namespace
}  // namespace lockstep
