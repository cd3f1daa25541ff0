#include "launch/node_exchange.h"

#include <csignal>
#include <future>
#include <thread>

#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <lockstep/base/error.h>

#include "base/descriptor.h"
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

Descriptor connect_to(int port) {
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  while (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // until the launcher listens
  }
  return socket;
}

void send_text(const Descriptor& socket, std::string_view text) {
  send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
}

void say(int port, const std::string& text) { send_text(connect_to(port), text); }

sockaddr_in name_of(int socket, decltype(getsockname)& ask) {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  return ask(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0 ? address : sockaddr_in{};
}

/// Returns when the other end, a socket of this process, has read everything, and so waits for the end of a line.
void wait_until_read(const Descriptor& socket) {
  constexpr int kMostDescriptors = 1024;
  const auto own = name_of(socket.get(), getsockname);
  while (true) {
    for (int fd = 0; fd < kMostDescriptors; ++fd) {
      int unread = 0;
      if (name_of(fd, getpeername).sin_port == own.sin_port && ioctl(fd, FIONREAD, &unread) == 0 && unread == 0) {
        return;
      }
    }
    std::this_thread::yield();
  }
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
              HasSubstr("warning: the master address 127.1 is 127.0.0.1 on its own machine, which other machines "
                        "cannot reach"));
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

void send_with_a_signal(const Descriptor& socket, std::string_view line) {
  send_text(socket, line);
  wait_until_read(socket);
  kill(getpid(), SIGTERM);
  send_text(socket, "\n");
}

TEST(NodeExchange, EndsWithASignalDuringTheLastGreeting) {
  SignalInbox signals;
  const int port = free_port();
  auto greeting = std::async(std::launch::async, [&] {
    const Descriptor launcher = connect_to(port);
    send_with_a_signal(launcher, "lockstep-node 1 2 run");
  });
  EXPECT_EQ(exchange_ranks_per_node(exchange_of(0, 2, port), 1, seconds(20), signals).signal, SIGTERM);
}

TEST(NodeExchange, EndsWithASignalDuringTheAnswer) {
  SignalInbox signals;
  const StoreListener first = bind_store_listener("127.0.0.1", 0, /*listening=*/true);
  auto answer = std::async(std::launch::async, [&] {
    const Descriptor launcher(accept(first.socket.get(), nullptr, nullptr));
    send_with_a_signal(launcher, "lockstep-ranks 4,1");
  });
  EXPECT_EQ(exchange_ranks_per_node(exchange_of(1, 2, first.port), 1, seconds(20), signals).signal, SIGTERM);
}

}  // namespace
}  // namespace lockstep
