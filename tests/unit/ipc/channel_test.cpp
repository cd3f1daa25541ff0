#include "ipc/channel.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "failure/deadlines.h"

namespace lockstep {
namespace {

using std::chrono::steady_clock;

TEST(Channel, CarriesEveryKindOfMessage) {
  const Message messages[] = {
      {.kind = Message::Kind::line, .text = "step 20 | loss 2.1"},
      {.kind = Message::Kind::status, .text = ""},
      {.kind = Message::Kind::started},
      {.kind = Message::Kind::left, .text = "step 4 is saved in runs/a"},
      {.kind = Message::Kind::failure, .text = "peer closed\n  hint: look at rank 1", .code = 76, .secondary = true},
      {.kind = Message::Kind::failure, .text = std::string("a\0b", 3), .code = 255},
      {.kind = Message::Kind::finished, .code = 75},
      {.kind = Message::Kind::abort},
      {.kind = Message::Kind::dump},
  };
  const auto [supervisor, worker] = make_channel_pair();
  for (const Message& sent : messages) {
    worker.send(sent);
  }
  for (const Message& sent : messages) {
    const auto received = supervisor.receive();
    ASSERT_TRUE(received);
    EXPECT_EQ(received->kind, sent.kind);
    EXPECT_EQ(received->text, sent.text);
    EXPECT_EQ(received->code, sent.code);
    EXPECT_EQ(received->secondary, sent.secondary);
  }
  EXPECT_FALSE(supervisor.receive());
}

TEST(Channel, CutsLongTextBetweenCharacters) {
  const auto [supervisor, worker] = make_channel_pair();
  worker.send({.text = std::string(Channel::kMaxText, 'x')});
  EXPECT_EQ(supervisor.receive().value().text.size(), Channel::kMaxText);
  std::string text = "xx";
  while (text.size() <= Channel::kMaxText) {
    text += "\u20ac";  // three bytes; kMaxText - 2 is no multiple of three
  }
  worker.send({.text = text});
  const std::string received = supervisor.receive().value().text;
  EXPECT_EQ(received, text.substr(0, received.size()));
  EXPECT_EQ((received.size() - 2) % 3, 0U);
  EXPECT_GT(received.size(), Channel::kMaxText - 3);
}

TEST(Channel, DropsMalformedMessages) {
  const std::string too_long = "L" + std::string(2, '\0') + std::string(Channel::kMaxText + 1, 'x');
  const std::string_view malformed[] = {
      "L",               // no header
      "LX",              // half a header
      {"X\0\0text", 7},  // unknown kind
      {"F\2\1text", 7},  // a flag that is neither
      too_long,
  };
  const auto [supervisor, worker] = make_channel_pair();
  for (const std::string_view packet : malformed) {
    ASSERT_EQ(send(worker.fd(), packet.data(), packet.size(), 0), static_cast<ssize_t>(packet.size()));
  }
  worker.send({.kind = Message::Kind::finished, .code = 3});
  const auto first = supervisor.receive();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->kind, Message::Kind::finished);
  EXPECT_EQ(first->code, 3);
}

TEST(Channel, SurvivesRandomBytes) {
  const auto [supervisor, worker] = make_channel_pair();
  std::mt19937 random(4);
  const std::string kinds = "LSFEADX";
  for (int round = 0; round < 2000; ++round) {
    std::string packet(1 + random() % 300, '\0');
    std::generate(packet.begin(), packet.end(), [&] { return static_cast<char>(random()); });
    packet[0] = kinds[random() % kinds.size()];
    ASSERT_EQ(send(worker.fd(), packet.data(), packet.size(), 0), static_cast<ssize_t>(packet.size()));
    while (const auto message = supervisor.receive()) {
      EXPECT_LE(message->text.size(), packet.size());
      EXPECT_TRUE(message->code >= 0 && message->code <= 255);
    }
  }
  worker.send({.kind = Message::Kind::finished, .code = 3});
  EXPECT_EQ(supervisor.receive().value().code, 3);
}

TEST(Channel, NeverWaitsWithAnOrder) {
  const auto [supervisor, worker] = make_channel_pair();
  const auto begin = steady_clock::now();
  for (int i = 0; i < 10000; ++i) {
    supervisor.send({.kind = Message::Kind::dump});  // nobody reads
  }
  EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(5)) << "one wait is a second";
}

TEST(Channel, DropsAStatusThatDoesNotFitAtOnce) {
  const auto [supervisor, worker] = make_channel_pair();
  const std::string big(Channel::kMaxText, 's');
  const auto begin = steady_clock::now();
  for (int i = 0; i < 100; ++i) {
    worker.send({.kind = Message::Kind::status, .text = big});
  }
  EXPECT_LT(steady_clock::now() - begin, std::chrono::milliseconds(900));
  int received = 0;
  while (supervisor.receive()) {
    ++received;
  }
  EXPECT_GT(received, 0);
  EXPECT_LT(received, 100);
}

TEST(Channel, WaitsBrieflyWithOtherMessagesAndThenGoesOn) {
  const auto [supervisor, worker] = make_channel_pair();
  const std::string big(Channel::kMaxText, 's');
  for (int i = 0; i < 100; ++i) {
    worker.send({.kind = Message::Kind::status, .text = big});
  }
  const auto begin = steady_clock::now();
  worker.send({.kind = Message::Kind::line, .text = big});
  const auto waited = steady_clock::now() - begin;
  EXPECT_GE(waited, std::chrono::milliseconds(900));
  EXPECT_LT(waited, std::chrono::seconds(5));
}

std::vector<Message> all_of(const Channel& channel) {
  std::vector<Message> received;
  while (auto message = channel.receive()) {
    received.push_back(std::move(*message));
  }
  return received;
}

/// No further message fits.
void fill(const Channel& channel) {
  const std::string big(Channel::kMaxText, 's');
  for (int i = 0; i < 100; ++i) {
    channel.send({.kind = Message::Kind::status, .text = big});
  }
  for (int i = 0; i < 10'000; ++i) {
    channel.send({.kind = Message::Kind::status});
  }
}

// A launcher that was suspended reads later: the training must not be a failed one then.
TEST(Channel, NeverDropsTheEndOfARank) {
  for (const Message::Kind kind : {Message::Kind::finished, Message::Kind::failure}) {
    const auto [supervisor, worker] = make_channel_pair();
    fill(worker);
    std::promise<void> is_sent;
    std::thread rank([&, &end = worker] {
      end.send({.kind = kind, .text = "the end", .code = 75});
      is_sent.set_value();
    });
    // The tested time: longer than other messages wait.
    EXPECT_EQ(is_sent.get_future().wait_for(deadlines::kSend + std::chrono::milliseconds(500)),
              std::future_status::timeout);
    std::vector<Message> received = all_of(supervisor);
    rank.join();
    std::ranges::move(all_of(supervisor), std::back_inserter(received));
    EXPECT_EQ(received.back().kind, kind);
    EXPECT_EQ(received.back().text, "the end");
  }
}

TEST(Channel, WaitsForNobodyWhoIsGone) {
  auto [supervisor, worker] = make_channel_pair();
  fill(worker);
  std::thread rank([&end = worker] { end.send({.kind = Message::Kind::finished}); });
  { const Channel gone = std::move(supervisor); }
  rank.join();
}

TEST(Channel, WaitsOnceUntilThereWasRoom) {
  const auto [supervisor, worker] = make_channel_pair();
  fill(worker);
  auto begin = steady_clock::now();
  worker.send({.text = "dropped"});
  EXPECT_GE(steady_clock::now() - begin, std::chrono::milliseconds(900));
  begin = steady_clock::now();
  for (int line = 0; line < 5; ++line) {
    worker.send({.text = "dropped, too"});
  }
  EXPECT_LT(steady_clock::now() - begin, std::chrono::milliseconds(900));
  all_of(supervisor);
  worker.send({.text = "there is room"});
  EXPECT_EQ(all_of(supervisor).back().text, "there is room");
}

TEST(Channel, TellsTheSupervisorWhoSent) {
  const auto [supervisor, worker] = make_channel_pair();
  worker.send({.text = "from this process"});
  const pid_t child = fork();
  if (child == 0) {
    worker.send({.text = "from another one"});
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(supervisor.receive().value().sender, getpid());
  EXPECT_EQ(supervisor.receive().value().sender, child);
  supervisor.send({.kind = Message::Kind::dump});
  EXPECT_EQ(worker.receive().value().sender, 0) << "a rank does not need it";
}

TEST(Channel, SendingToADeadPeerIsHarmless) {
  auto [supervisor, worker] = make_channel_pair();
  { const Channel gone = std::move(supervisor); }
  worker.send({.text = "nobody listens"});  // would raise SIGPIPE
  EXPECT_FALSE(worker.receive());
}

TEST(Channel, BothEndsAreCloseOnExecAndClosedOnce) {
  auto [supervisor, worker] = make_channel_pair();
  EXPECT_TRUE((fcntl(supervisor.fd(), F_GETFD) & FD_CLOEXEC) != 0);
  EXPECT_TRUE((fcntl(worker.fd(), F_GETFD) & FD_CLOEXEC) != 0);
  const int inherited = dup(worker.fd());
  ASSERT_EQ(fcntl(inherited, F_GETFD) & FD_CLOEXEC, 0);
  const Channel adopted(inherited);
  EXPECT_TRUE((fcntl(inherited, F_GETFD) & FD_CLOEXEC) != 0);
  const int fd = worker.fd();
  { const Channel moved = std::move(worker); }
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);
}

}  // namespace
}  // namespace lockstep
