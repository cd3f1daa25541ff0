// The sockets with which a rank looks for the rendezvous store.
#include "world/store_socket.h"

#include <chrono>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <lockstep/base/error.h>

#include "base/descriptor.h"
#include "base/text.h"
#include "environment/store_listener.h"
#include "support/listener.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

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

TEST(ReachStore, RejectsAnotherProgram) {
  const Listener stranger([](int) {});
  EXPECT_THAT([&] { reach_store(with_store("127.0.0.1", stranger.port()), std::chrono::seconds(10)); },
              ThrowsMessage<CommError>(HasSubstr("is not the rendezvous store of rank 0: it closes")));
}

// So does rank 0 that is killed during the rendezvous.
TEST(ReachStore, WaitsIfTheListenerEndsWithoutAnAnswer) {
  StoreListener store = bind_store_listener("127.0.0.1", 0, /*listening=*/true);
  std::thread killed([&] {
    const Descriptor connection(::accept(store.socket.get(), nullptr, nullptr));
    store.socket.close();
  });
  EXPECT_THAT([&] { reach_store(with_store("127.0.0.1", std::to_string(store.port)), std::chrono::milliseconds(1)); },
              ThrowsMessage<CommError>(HasSubstr("rank 0 is missing")));
  killed.join();
}

TEST(ReachStore, WaitsForTheAgentThatServesTheStore) {
  const StoreListener bound = bind_store_listener("127.0.0.1", 0, /*listening=*/false);
  Identity identity = with_store("127.0.0.1", std::to_string(bound.port));
  identity.agent_store = true;
  EXPECT_THAT([&] { reach_store(identity, std::chrono::milliseconds(1)); },
              ThrowsMessage<CommError>(HasSubstr("torchrun's agent is missing")));
}

}  // namespace
}  // namespace lockstep
