#include "launch/node_exchange.h"

#include <csignal>
#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <lockstep/base/error.h>

#include "environment/store_listener.h"
#include "support/captured_stderr.h"
#include "support/message_of.h"

namespace lockstep {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

int free_port() { return bind_store_listener("127.0.0.1", 0, /*listening=*/false).port; }

NodeExchange exchange_of(int node, int nodes, int port, const std::string& run_id = "run") {
  return {.node = node, .nodes = nodes, .address = "127.0.0.1", .port = port, .run_id = run_id};
}

std::vector<int> exchange(int node, int nodes, int port, int ranks) {
  SignalInbox signals;
  return exchange_ranks_per_node(exchange_of(node, nodes, port), ranks, seconds(20), signals).ranks;
}

TEST(NodeExchange, TellsEveryNodeWhatAllHave) {
  const int port = free_port();
  auto second = std::async(std::launch::async, [&] { return exchange(1, 3, port, 2); });  // before anybody listens
  auto third = std::async(std::launch::async, [&] { return exchange(2, 3, port, 1); });
  EXPECT_THAT(exchange(0, 3, port, 4), ElementsAre(4, 2, 1));
  EXPECT_THAT(second.get(), ElementsAre(4, 2, 1));
  EXPECT_THAT(third.get(), ElementsAre(4, 2, 1));
}

void say(int port, const std::string& text) {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  while (connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // until the launcher listens
  }
  send(socket, text.data(), text.size(), MSG_NOSIGNAL);
  close(socket);
}

TEST(NodeExchange, DoesNotCountStrangers) {
  const int port = free_port();
  auto first = std::async(std::launch::async, [&] { return exchange(0, 2, port, 4); });
  say(port, "GET / HTTP/1.1\n");
  say(port, "lockstep-node 1 9 another-run\n");
  say(port, "lockstep-node 7 9 run\n");
  say(port, "lockstep-node 1");
  EXPECT_THAT(exchange(1, 2, port, 2), ElementsAre(4, 2));
  EXPECT_THAT(first.get(), ElementsAre(4, 2));
}

TEST(NodeExchange, NamesTheNodesThatDoNotCome) {
  SignalInbox signals;
  const auto error = error_of<LaunchError>(
      [&] { exchange_ranks_per_node(exchange_of(0, 3, free_port()), 1, std::chrono::milliseconds(300), signals); });
  EXPECT_THAT(error.what(), HasSubstr("nodes 1-2 did not start within"));
  EXPECT_EQ(error.exit_code(), ExitCode::timeout);
  const auto unanswered = error_of<LaunchError>(
      [&] { exchange_ranks_per_node(exchange_of(1, 2, free_port()), 1, std::chrono::milliseconds(300), signals); });
  EXPECT_THAT(unanswered.what(), HasSubstr("the launcher of node 0 did not answer at 127.0.0.1:"));
  EXPECT_EQ(unanswered.exit_code(), ExitCode::timeout);
}

// Debian's /etc/hosts has 127.0.1.1 for the machine's own name.
TEST(NodeExchange, WarnsOfANameThatIsALoopbackAddressHere) {
  SignalInbox signals;
  NodeExchange exchange = exchange_of(0, 2, free_port());
  exchange.address = "127.1";  // is resolved like a name
  CapturedStderr captured;
  EXPECT_THROW(exchange_ranks_per_node(exchange, 1, std::chrono::milliseconds(300), signals), LaunchError);
  EXPECT_THAT(captured.text(),
              HasSubstr("warning: the master address 127.1 is 127.0.0.1 on its own machine, which other machines"));
  CapturedStderr again;
  for (const char* meant : {"127.0.0.1", "localhost"}) {
    warn_of_loopback(meant);
  }
  EXPECT_EQ(again.text(), "");
}

TEST(NodeExchange, EndsWithASignal) {
  for (const int node : {0, 1}) {
    SignalInbox signals;
    kill(getpid(), SIGTERM);
    const auto result = exchange_ranks_per_node(exchange_of(node, 2, free_port()), 1, seconds(20), signals);
    EXPECT_EQ(result.signal, SIGTERM);
    EXPECT_TRUE(result.ranks.empty());
  }
}

}  // namespace
}  // namespace lockstep
