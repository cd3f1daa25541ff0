// Errors before the first step, with real processes and sockets, are reported quickly on every rank.
#include "world/rendezvous.h"

#include <chrono>
#include <csignal>
#include <functional>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <lockstep/base/error.h>

#include "environment/port_owner.h"
#include "support/listener.h"
#include "support/plain_ranks.h"
#include "support/requirements.h"
#include "world/text_store.h"

namespace lockstep {
namespace {

using testing::Each;
using testing::Field;
using testing::HasSubstr;
using testing::Not;
using namespace std::chrono_literals;

/// Waits until the other end closes the connection, up to a limit.
bool is_left_within(int connection, std::chrono::milliseconds limit) {
  pollfd end{.fd = connection, .events = POLLRDHUP, .revents = 0};
  return poll(&end, 1, static_cast<int>(limit.count())) == 1;
}

class Rendezvous : public testing::Test {
 protected:
  std::unique_ptr<Process> start(int rank, int world_size, const Process::Environment& more = {},
                                 const std::vector<std::string>& flags = {},
                                 const std::string& program = TRAIN_PROGRAM) {
    auto variables = rank_variables(rank, world_size, port_);
    variables.insert(more.begin(), more.end());
    return std::make_unique<Process>(command(program, dir_.path() / "run", flags), variables);
  }

  TempDir dir_;
  std::string port_ = free_port();
};

TEST_F(Rendezvous, NamesTheOwnerOfAPortThatIsTaken) {
  const Listener squatter([](int) {});
  port_ = squatter.port();
  const auto result = start(0, 2)->wait();
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("MASTER_PORT " + port_ + " is held by pid " + std::to_string(getpid()) + " '"));
  EXPECT_THAT(result.err,
              HasSubstr("that process started this one: if it is a rank, it starts other programs with env -u"));
}

// Rank 0 of another launcher than ours starts an evaluation, which takes itself for rank 0.
TEST_F(Rendezvous, SaysHowARankStartsAnotherProgram) {
  const std::string child = std::string("'") + TRAIN_PROGRAM + "' --compute_setup cpu --run_dir '" +
                            (dir_.path() / "evaluation").string() + "' >&2; cat > /dev/null";
  const std::vector<std::string> flags{"--max_epochs", "100000", "--report.command", child};
  const auto zero = start(0, 2, {}, flags);
  const auto one = start(1, 2, {}, flags);
  EXPECT_TRUE(zero->wait_for("MASTER_PORT " + port_ + " is held by pid " + std::to_string(zero->pid()))) << zero->err();
  EXPECT_TRUE(zero->wait_for("env -u RANK -u LOCAL_RANK -u WORLD_SIZE")) << zero->err();
  zero->signal(SIGTERM);
  EXPECT_EQ(zero->wait().code, 75);
  EXPECT_EQ(one->wait().code, 75);
}

// With torchrun an agent serves the store, and rank 0 is the first to ask it.
TEST_F(Rendezvous, LimitsTheWaitForTheStoreOfTorchrunsAgent) {
  const Process::Environment agent{{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RUN_ID", "job"}};
  const auto nobody = start(0, 2, agent, {"--dist.init_timeout_s", "1"})->wait();
  EXPECT_EQ(nobody.code, 124) << nobody.err;
  EXPECT_THAT(nobody.err, HasSubstr("[rank0]: error: nobody listens on 127.0.0.1:" + port_ +
                                    ", torchrun's agent is missing after 1 s"));
  EXPECT_THAT(nobody.err, Not(HasSubstr("frame #"))) << "a stack trace of c10d";

  const Listener silent([](int connection) { is_left_within(connection, 60s); });
  port_ = silent.port();
  const auto result = start(0, 2, agent)->wait(Process::Seconds(60));
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("is not the rendezvous store of torchrun's agent: it does not answer within 4 s"));
  EXPECT_EQ(start(0, 2, agent, {"--dry-run"})->wait().code, 0) << "needs no store";
}

struct Stranger {
  std::string name;
  Listener::Serve serve;
  std::string text;
};
std::ostream& operator<<(std::ostream& out, const Stranger& stranger) { return out << stranger.name; }

class StrangerOnMasterPort : public testing::TestWithParam<Stranger> {};

void say(int connection, std::string_view text) {
  [[maybe_unused]] const auto sent = send(connection, text.data(), text.size(), MSG_NOSIGNAL);
}

TEST_P(StrangerOnMasterPort, IsNamedWithinSeconds) {
  const TempDir dir;
  const Listener stranger(GetParam().serve);
  const auto result = run_program(command(TRAIN_PROGRAM, dir.path() / "run", {}), rank_variables(1, 2, stranger.port()),
                                  ".", Process::Seconds(60));
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_THAT(result.err,
              HasSubstr("the program that listens on 127.0.0.1:" + stranger.port() + " is not the rendezvous store"));
  EXPECT_THAT(result.err, HasSubstr(GetParam().text));
  EXPECT_THAT(result.err, HasSubstr("it is pid " + std::to_string(getpid()) + " '"));
  EXPECT_LT(result.seconds, 5 + 5) << "5 s, and a start on busy cores";
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, StrangerOnMasterPort,
    testing::Values(Stranger{"http_server", [](int connection) { say(connection, "HTTP/1.1 400 Bad Request\r\n\r\n"); },
                             "it sends 'HTTP/1.1 400"},
                    Stranger{"silent_listener", [](int connection) { is_left_within(connection, 60s); },
                             "it does not answer within 4 s"},
                    Stranger{"one_who_says_another_word",
                             [](int connection) {
                               say(connection, "x");
                               is_left_within(connection, 60s);
                             },
                             "it sends 'x'"},
                    Stranger{"slow_talker",  // a sent byte does not extend the limit
                             [](int connection) {
                               say(connection, "k");
                               if (!is_left_within(connection, 3s)) {
                                 say(connection, "c");
                                 is_left_within(connection, 3500ms);
                                 say(connection, "x");
                               }
                             },
                             "it does not answer within 4 s"},
                    Stranger{"one_who_hangs_up", [](int) {}, "it closes"}),
    [](const auto& test) { return test.param.name; });

c10::intrusive_ptr<c10d::TCPStore> foreign_store() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

TEST_F(Rendezvous, AForeignStoreIsNotJoined) {
  const auto store = foreign_store();
  port_ = std::to_string(store->getPort());
  const auto result = start(1, 2)->wait();
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the store at 127.0.0.1:" + port_ + " is not this launch's"));
  EXPECT_LT(result.seconds, 5 + 5);
}

TEST_F(Rendezvous, AStoreOfAnotherRunIsNamed) {
  const auto store = foreign_store();
  port_ = std::to_string(store->getPort());
  const std::string handshake =
      R"({"protocol":2,"version":"0.1.0","run":"7f3a","world_size":2,"process":"pid 71@far"})";
  store->set("lockstep/handshake", {handshake.begin(), handshake.end()});
  const auto result = start(1, 2, {{"TORCHELASTIC_RUN_ID", "91bc"}})->wait();
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_THAT(result.err, HasSubstr("belongs to run 7f3a (pid 71@far), expected run 91bc"));
  EXPECT_LT(result.seconds, 5 + 5);
}

TEST(StoreQuestions, ToAStoreThatIsGoneFindALostPeer) {
  const auto connect_to = [](const c10::intrusive_ptr<c10d::TCPStore>& server) {
    c10d::TCPStoreOptions options;
    options.port = server->getPort();
    options.waitWorkers = false;
    return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  };
  const std::function<void(c10d::Store&)> questions[] = {
      [](c10d::Store& store) { store_set(store, "key", "value"); },
      [](c10d::Store& store) { store_get(store, "key"); },
      [](c10d::Store& store) { store_check(store, "key"); },
      [](c10d::Store& store) { store_add(store, "number", 1); },
      [](c10d::Store& store) { store_wait(store, "key", std::chrono::seconds(1)); },
  };
  for (const auto& question : questions) {
    auto server = foreign_store();
    const auto client = connect_to(server);
    store_set(*client, "key", "value");
    EXPECT_NO_THROW(question(*client));
    server.reset();
    try {
      for (;;) {
        question(*client);  // a send without a reply fails only the second time
      }
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("the rendezvous store is gone"));
      EXPECT_EQ(error.exit_code(), ExitCode::peer_lost);
    }
  }
}

TEST_F(Rendezvous, ARankThatIsClaimedTwiceIsNamedOnEveryRank) {
  const auto zero = start(0, 3);
  const auto one = start(1, 3);
  const auto other = start(1, 3);
  const std::string pids[] = {std::to_string(one->pid()), std::to_string(other->pid())};
  for (Process* process : {zero.get(), one.get(), other.get()}) {
    const auto result = process->wait(Process::Seconds(60));
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr("rank 1 is claimed twice: pid "));
    EXPECT_THAT(result.err, HasSubstr("pid " + pids[0] + "@"));
    EXPECT_THAT(result.err, HasSubstr("pid " + pids[1] + "@"));
    EXPECT_LT(result.seconds, 15);
  }
}

TEST_F(Rendezvous, RanksOfTwoWorldSizesAreNamedOnEveryRank) {
  const auto zero = start(0, 2);
  const auto one = start(1, 3);
  for (Process* process : {zero.get(), one.get()}) {
    const auto result = process->wait(Process::Seconds(60));
    EXPECT_EQ(result.code, 78) << result.err;
    EXPECT_THAT(result.err, HasSubstr("rank 1 was started for 3 ranks, rank 0 (pid "));
    EXPECT_THAT(result.err, HasSubstr(") for 2"));
    EXPECT_LT(result.seconds, 15);
  }
}

TEST_F(Rendezvous, ARankThatDoesNotComeIsNamedOnEveryRank) {
  std::vector<std::unique_ptr<Process>> ranks;
  for (const int rank : {0, 1, 3}) {
    ranks.push_back(start(rank, 4, {}, {"--dist.init_timeout_s", "8"}));
  }
  for (const auto& rank : ranks) {
    const auto result = rank->wait(Process::Seconds(60));
    EXPECT_EQ(result.code, 124) << result.err;
    EXPECT_THAT(result.err, HasSubstr("1 of 4 ranks did not start within 8 s: missing rank 2"));
    EXPECT_THAT(result.err, HasSubstr("--dist.init_timeout_s"));
    EXPECT_THAT(result.err, Not(HasSubstr("waitForInput"))) << "a warning of c10d";
    EXPECT_LT(result.seconds, 8 + 10) << "a start on busy cores";
  }
}

// Rank 1 is the first to give up, so it looks itself who is missing.
TEST_F(Rendezvous, ARankWithLessPatienceThanRankZeroNamesTheMissingOne) {
  const auto zero = start(0, 3);
  const auto one = start(1, 3, {}, {"--dist.init_timeout_s", "6"});
  const auto result = one->wait(Process::Seconds(60));
  EXPECT_EQ(result.code, 124) << result.err;
  EXPECT_THAT(result.err, HasSubstr("1 of 3 ranks did not start within 6 s: missing rank 2"));
  zero->signal(SIGKILL);
  zero->wait();
}

TEST_F(Rendezvous, WaitsForALateRankZero) {
  const auto one = start(1, 2, {}, {"--max_steps", "2"});
  EXPECT_FALSE(one->wait_for("error", Process::Seconds(3)));
  const auto zero = start(0, 2, {}, {"--max_steps", "2"});
  EXPECT_EQ(zero->wait().code, 0) << zero->err();
  EXPECT_EQ(one->wait().code, 0) << one->err();
}

TEST_F(Rendezvous, SaysThatNobodyListensAndGivesUp) {
  const auto result = start(1, 2, {}, {"--dist.init_timeout_s", "11"})->wait();
  EXPECT_EQ(result.code, 124) << result.err;
  const std::string missing = "nobody listens on 127.0.0.1:" + port_ + ", rank 0 is missing";
  EXPECT_THAT(result.err, HasSubstr("[rank1]: warning: waiting: " + missing + " (10 of 11 s)"));
  EXPECT_THAT(result.err, HasSubstr("error: " + missing + " after 11 s"));
  EXPECT_THAT(result.err, Not(HasSubstr("frame #"))) << "a stack trace of c10d";
}

// The launcher of another machine knows nothing of the store, so its ranks look for it as all others do.
TEST_F(Rendezvous, UnderLockstepRunOnAnotherMachineSaysThatNobodyListens) {
  const auto second = with({LOCKSTEP_CLI, "run", "--nnodes", "2", "--node-rank", "1", "--nproc-per-node", "1",
                            "--master-addr", "127.0.0.1", "--master-port", port_, "--"},
                           command(TRAIN_PROGRAM, dir_.path() / "run", {"--dist.init_timeout_s", "60"}));
  Process process(second);
  EXPECT_TRUE(process.wait_for("waiting: nobody listens on 127.0.0.1:" + port_, Process::Seconds(40))) << process.err();
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait().code, 75);
}

TEST_F(Rendezvous, ListensOnTheLoopbackOnly) {
  const std::vector<std::string> endless{"--max_epochs", "100000"};
  const auto zero = start(0, 2, {}, endless);
  const auto one = start(1, 2, {}, endless);
  ASSERT_TRUE(zero->wait_for("step 2 ")) << zero->err();
  std::size_t found = 0;
  for (const Process* process : {zero.get(), one.get()}) {
    const auto sockets = listening_sockets(process->pid());
    EXPECT_THAT(sockets, Each(Field(&ListeningSocket::address, "127.0.0.1")));
    found += sockets.size();
  }
  EXPECT_GE(found, 3U) << "the store and Gloo on both ranks";
  zero->signal(SIGTERM);
  EXPECT_EQ(zero->wait().code, 75);
  EXPECT_EQ(one->wait().code, 75);
}

TEST_F(Rendezvous, RanksOfTwoBuildsAreRefused) {
  const std::filesystem::path other = dir_.path() / "train_program";
  std::string program = read_text(TRAIN_PROGRAM);
  const std::string note{"\4\0\0\0\x14\0\0\0\3\0\0\0GNU\0", 16};
  const auto at = program.find(note);
  LOCKSTEP_REQUIRE(Requirements().that(at != std::string::npos, "the linker writes no build id"));
  program[at + note.size()] = static_cast<char>(program[at + note.size()] + 1);
  std::ofstream(other, std::ios::binary) << program;
  std::filesystem::permissions(other, std::filesystem::perms::owner_all);
  std::vector<std::unique_ptr<Process>> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.push_back(start(rank, 3, {}, {}, rank == 1 ? other.string() : TRAIN_PROGRAM));
  }
  for (const auto& rank : ranks) {
    const auto result = rank->wait();
    EXPECT_EQ(result.code, 78) << result.err;
    EXPECT_THAT(result.err, HasSubstr("rank 1 has program build "));
    EXPECT_THAT(result.err, HasSubstr(", 2 of 3 ranks have program build "));
  }
}

TEST_F(Rendezvous, OfASecondSessionInOneProcessIsRefused) {
  const Process::Environment twice{{"TRAIN_PROGRAM_CONNECTS_TWICE", "1"}};
  const std::string refused = "error: Session::connect was called twice in this process, which is one of 2 ranks";
  const auto first = start(0, 2, twice);
  const auto second = start(1, 2, twice);
  for (Process* process : {first.get(), second.get()}) {
    const auto result = process->wait();
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.err, HasSubstr(refused));
  }
  const auto launched = run_program(with({LOCKSTEP_CLI, "run", "--nproc-per-node", "2", "--"}, {TRAIN_PROGRAM}), twice);
  EXPECT_EQ(launched.code, 2) << launched.err;
  EXPECT_THAT(launched.err, HasSubstr("session 1 of 2"));
  EXPECT_THAT(launched.err, HasSubstr(refused));
  const auto alone = run_program({TRAIN_PROGRAM}, twice);
  EXPECT_EQ(alone.code, 0) << "a single rank has no store";
  EXPECT_THAT(alone.err, HasSubstr("session 2 of 1"));
}

}  // namespace
}  // namespace lockstep
