#include "world/rendezvous.h"

#include <algorithm>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/version.h>

#include "base/duration.h"
#include "base/json.h"
#include "base/ranks_text.h"
#include "base/text.h"
#include "base/waiting_line.h"
#include "environment/launcher_process.h"
#include "environment/process_name.h"
#include "environment/store_listener.h"
#include "failure/linger.h"
#include "world/remote_error.h"
#include "world/store_socket.h"
#include "world/text_store.h"

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kHandshake = "lockstep/handshake";
constexpr const char* kRefused = "refused";
constexpr const char* kAnswer = "answer";           // of rank 0 to all ranks, see Note [One answer for all]
constexpr const char* kAnswerRead = "answer/read";  // number of ranks that have read why they may not start
constexpr const char* kStart = "start";
constexpr int kProtocol = 2;
constexpr milliseconds kHandshakeTime{4000};  // rank 0 writes the handshake first

/// The socket of our own launcher listens before rank 0 serves on it: on its machine no other program can answer.
bool has_own_socket(const Identity& identity) { return identity.is_supervised() && identity.node == 0; }

bool serves(const Identity& identity) { return identity.rank == 0 && !identity.agent_store; }

c10::intrusive_ptr<c10d::Store> serve_store(const Identity& identity, milliseconds timeout) {
  if (identity.nodes > 1) {
    warn_of_loopback(identity.master_addr);
  }
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(identity.master_port);
  options.isServer = true;
  options.waitWorkers = false;  // we wait ourselves and log the missing ranks
  options.timeout = timeout;
  options.masterListenFd =
      identity.store_fd >= 0
          ? identity.store_fd
          : bind_store_listener(identity.master_addr, identity.master_port, /*listening=*/true).socket.release();
  return c10::make_intrusive<c10d::TCPStore>(identity.master_addr, options);
}

c10::intrusive_ptr<c10d::Store> join_store(const Identity& identity, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(identity.master_port);
  options.waitWorkers = false;
  options.timeout = timeout;
  return c10::make_intrusive<c10d::TCPStore>(identity.master_addr, options);
}

std::string run_prefix(const std::string& run_id) { return fmt::format("lockstep/{}", run_id); }

// Note [Handshake]: rank 0 first writes under a fixed key to which run the store belongs. This distinguishes our store
// from that of another or an old run, and gives an id to ranks that were started without a common run id. If the
// launcher serves the store, it has started all ranks, and the prefix is enough.
struct Handshake {
  int protocol = kProtocol;
  std::string version = LOCKSTEP_VERSION;
  std::string run{};
  int world_size = 0;
  int attempt = 0;        // counted by rank 0: an agent that joins an elastic run later has counted fewer restarts
  std::string process{};  // of rank 0
};

Handshake write_handshake(c10d::Store& store, const Identity& identity) {
  Handshake mine{.run = identity.run_id.empty() ? random_id() : identity.run_id,
                 .world_size = identity.world_size,
                 .attempt = identity.restart,
                 .process = to_string(this_process())};
  store_set(store, kHandshake,
            dump_json(Json{{"protocol", mine.protocol},
                           {"version", mine.version},
                           {"run", mine.run},
                           {"world_size", mine.world_size},
                           {"attempt", mine.attempt},
                           {"process", mine.process}}));
  return mine;
}

Handshake read_handshake(c10d::Store& store, const Identity& identity, milliseconds timeout) {
  const milliseconds patience = has_own_socket(identity) ? timeout : std::min(timeout, kHandshakeTime);
  if (!store_poll(store, kHandshake, patience)) {
    throw CommError(fmt::format("the store at {} is not this launch's: rank 0 has not written its handshake there",
                                store_address(identity)),
                    "another program serves a store on this port; choose another MASTER_PORT on every rank",
                    ExitCode::usage);
  }
  const Json found = parse_json(store_get(store, kHandshake));
  Handshake theirs{.protocol = found.value("protocol", 0),
                   .version = printable(found.value("version", "?")),
                   .run = found.value("run", ""),
                   .world_size = found.value("world_size", 0),
                   .attempt = found.value("attempt", 0),
                   .process = printable(found.value("process", "?"))};
  if (!identity.run_id.empty() && theirs.run != identity.run_id) {
    throw CommError(fmt::format("the store at {} belongs to run {} ({}), expected run {}", store_address(identity),
                                printable(theirs.run), theirs.process, identity.run_id),
                    "two runs use one MASTER_PORT, or an old run still exists: choose another port, or end the old run",
                    ExitCode::usage);
  }
  return theirs;
}

/// Rank 0 passes it on to the waiting ranks, because the error concerns the whole launch.
[[noreturn]] void refuse(c10d::Store& launch, const CommError& reason) {
  store_set(launch, kRefused, encode_error(reason));
  throw reason;
}

[[noreturn]] void throw_refusal(const std::string& encoded) {
  const Json reason = parse_json(encoded);
  throw CommError(printable(reason.at("what").get<std::string>()), printable(reason.at("hint").get<std::string>()),
                  static_cast<ExitCode>(reason.at("code").get<int>()));
}

void compare_handshake(c10d::Store& launch, const Handshake& theirs, const Identity& identity) {
  if (theirs.protocol != kProtocol || theirs.version != LOCKSTEP_VERSION) {
    refuse(launch, CommError(fmt::format("rank {} is lockstep {}, rank 0 ({}) is {}", identity.rank, LOCKSTEP_VERSION,
                                         theirs.process, theirs.version),
                             "start the same build on every rank", ExitCode::disagree));
  }
  if (theirs.world_size != identity.world_size) {
    refuse(launch, CommError(fmt::format("rank {} was started for {} ranks, rank 0 ({}) for {}", identity.rank,
                                         identity.world_size, theirs.process, theirs.world_size),
                             "give every rank the same WORLD_SIZE", ExitCode::disagree));
  }
}

std::string here_key(int rank) { return fmt::format("here/{}", rank); }

// The first process that claims a rank gets it; another world of the same process is not a second claim.
void claim_rank(c10d::Store& launch, const Identity& identity) {
  const ProcessName me = this_process();
  const std::string mine = encode(me);
  const auto bytes = launch.compareSet(fmt::format("process/{}", identity.rank), {},
                                       std::vector<std::uint8_t>(mine.begin(), mine.end()));
  const auto first = parse_process_name({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (first != me) {
    const bool is_above = first && first->machine == me.machine && is_ancestor(first->pid);
    refuse(launch,
           CommError(fmt::format("rank {} is claimed twice: {}, {}", identity.rank,
                                 first ? to_string(*first) : "another process", to_string(me)),
                     is_above ? fmt::format("the first started the second: a rank starts other programs with {}",
                                            kWithoutItsRank)
                              : "give every process a RANK of its own",
                     ExitCode::usage));
  }
}

std::vector<int> missing_ranks(c10d::Store& store, int world_size) {
  std::vector<int> missing;
  for (int rank = 0; rank < world_size; ++rank) {
    if (!store_check(store, here_key(rank))) {
      missing.push_back(rank);
    }
  }
  return missing;
}

CommError ranks_are_late(c10d::Store& store, const Identity& identity, milliseconds timeout) {
  const auto missing = missing_ranks(store, identity.world_size);
  const std::string what =
      missing.empty() ? fmt::format("rank 0 did not say within {} s that all ranks are there", whole_seconds(timeout))
                      : fmt::format("{} of {} ranks did not start within {} s: missing {}", missing.size(),
                                    identity.world_size, whole_seconds(timeout), ranks_text(missing));
  return CommError(what, "look at their output; a slow start can be given more time with --dist.init_timeout_s",
                   ExitCode::timeout);
}

/// Asks for each rank; only rank 0 does.
void wait_for_each(c10d::Store& store, c10d::Store& launch, const Identity& identity, milliseconds timeout) {
  const auto start = Clock::now();
  WaitingLine line(timeout, LogLevel::info);
  const auto meanwhile = [&] {
    if (store_check(launch, kRefused)) {
      throw_refusal(store_get(launch, kRefused));
    }
    line.say([&] { return "waiting for " + ranks_text(missing_ranks(store, identity.world_size)); });
  };
  for (int rank = 0; rank < identity.world_size; ++rank) {
    const auto left = std::chrono::duration_cast<milliseconds>(start + timeout - Clock::now());
    if (!store_poll(store, here_key(rank), left, meanwhile)) {
      throw ranks_are_late(store, identity, timeout);
    }
  }
}

// Note [One answer for all]: if every rank asked for every other one, n ranks would ask the store n^2 questions. So
// only rank 0 does, and writes for the others that they may start, or why they may not. Each of them waits for this
// key.
void wait_for_answer(c10d::Store& store, const Identity& identity, milliseconds timeout) {
  if (!store_wait(store, kAnswer, timeout + deadlines::kAnswer)) {
    throw ranks_are_late(store, identity, timeout);
  }
  if (const std::string answer = store_get(store, kAnswer); answer != kStart) {
    store_add(store, kAnswerRead, 1);
    throw_refusal(answer);
  }
}

/// The store may end with rank 0, so after a failure rank 0 waits until all connected ranks have read the answer.
void answer_all(c10d::Store& store, c10d::Store& launch, const Identity& identity, milliseconds timeout) {
  try {
    wait_for_each(store, launch, identity, timeout);
  } catch (const CommError& error) {
    store_set(store, kAnswer, encode_error(error));
    if (serves(identity)) {
      const auto others = [&] {
        return identity.world_size - 1 - static_cast<std::int64_t>(missing_ranks(store, identity.world_size).size());
      };
      linger(deadlines::kLingerRefused, [&] { return store_add(store, kAnswerRead, 0) >= others(); });
    }
    throw;
  }
  store_set(store, kAnswer, kStart);
}

// Note [Attempts under an agent's store]: torchrun's agents serve one store for all attempts, but count attempts
// differently: the agent whose rank failed counts a restart, the others see a change of membership and do not. So rank
// 0 opens each attempt under its own number and lists the processes that take part. A process that is not listed polls
// for the next number (see store_poll).
std::int64_t agree_on_attempt(const c10::intrusive_ptr<c10d::Store>& run, const Identity& identity,
                              milliseconds timeout) {
  constexpr milliseconds kPause{20};
  constexpr const char* kMembers = "members";
  const std::string me = encode(this_process());
  const auto attempt_store = [&](std::int64_t number) {
    return c10::make_intrusive<c10d::PrefixStore>(fmt::format("attempt/{}", number), run);
  };
  if (identity.rank == 0) {
    const auto number = store_add(*run, "attempts", 1);
    const auto attempt = attempt_store(number);
    store_set(*attempt, here_key(0), me);
    wait_for_each(*attempt, *attempt, identity, timeout);
    std::vector<std::string> members;
    for (int rank = 0; rank < identity.world_size; ++rank) {
      members.push_back(store_get(*attempt, here_key(rank)));
    }
    store_set(*attempt, kMembers, join(members, "\n"));
    return number;
  }
  const auto start = Clock::now();
  for (std::int64_t joined = 0; Clock::now() - start < timeout; std::this_thread::sleep_for(kPause)) {
    const auto number = store_add(*run, "attempts", 0);
    if (number == 0) {
      continue;
    }
    const auto attempt = attempt_store(number);
    if (number != joined && !store_check(*attempt, kMembers)) {
      store_set(*attempt, here_key(identity.rank), me);
      joined = number;
    }
    if (store_check(*attempt, kMembers)) {
      const auto members = split(store_get(*attempt, kMembers), '\n');
      if (members.size() > static_cast<std::size_t>(identity.rank) &&
          members[static_cast<std::size_t>(identity.rank)] == me) {
        return number;
      }
    }
  }
  throw CommError(fmt::format("rank 0 did not open an attempt within {} s", whole_seconds(timeout)),
                  "look at its output; a slow start can be given more time with --dist.init_timeout_s",
                  ExitCode::timeout);
}

c10::intrusive_ptr<c10d::Store> connect_store(const Identity& identity, milliseconds timeout) {
  if (serves(identity)) {
    return serve_store(identity, timeout);
  }
  if (!has_own_socket(identity)) {
    reach_store(identity, timeout);
  }
  return join_store(identity, timeout);
}

}  // namespace

LaunchName identify_launch(LaunchName name, const Identity& identity, milliseconds timeout) {
  if (identity.rank != 0 || !identity.agent_store || identity.master_port == 0) {
    return name;
  }
  try {
    const auto run =
        c10::make_intrusive<c10d::PrefixStore>(run_prefix(identity.run_id), connect_store(identity, timeout));
    const std::string mine = random_id();
    const auto id = run->compareSet("launch", {}, std::vector<std::uint8_t>(mine.begin(), mine.end()));
    name.id.assign(id.begin(), id.end());
  } catch (const c10::Error&) {
    // the rendezvous reports the error
  }
  return name;
}

c10::intrusive_ptr<c10d::Store> wait_for_all_ranks(const c10::intrusive_ptr<c10d::Store>& served,
                                                   const Identity& identity, milliseconds timeout) {
  Handshake handshake{.run = identity.run_id, .world_size = identity.world_size};
  if (!identity.agent_store) {
    handshake = serves(identity) ? write_handshake(*served, identity) : read_handshake(*served, identity, timeout);
  }
  // After a restart, the store still has the keys of the previous attempt; a second world finds those of the first.
  const auto run = c10::make_intrusive<c10d::PrefixStore>(run_prefix(handshake.run), served);
  const auto attempt = identity.agent_store ? agree_on_attempt(run, identity, timeout) : handshake.attempt;
  const auto launch = c10::make_intrusive<c10d::PrefixStore>(std::to_string(attempt), run);
  compare_handshake(*launch, handshake, identity);
  claim_rank(*launch, identity);
  const auto nth = store_add(*launch, fmt::format("connects/{}", identity.rank), 1);
  const auto store = c10::make_intrusive<c10d::PrefixStore>(std::to_string(nth), launch);
  store_set(*store, here_key(identity.rank), to_string(this_process()));
  if (identity.rank == 0) {
    answer_all(*store, *launch, identity, timeout);
  } else {
    wait_for_answer(*store, identity, timeout);
  }
  return store;
}

JoinedStore rendezvous(const Identity& identity, milliseconds timeout) {
  try {
    return {.store = wait_for_all_ranks(connect_store(identity, timeout), identity, timeout),
            .address = local_address(identity)};
  } catch (const c10::Error& error) {
    throw CommError(fmt::format("rank {} cannot reach the rendezvous store at {}: {}", identity.rank,
                                store_address(identity), error.what_without_backtrace()),
                    fmt::format("check MASTER_ADDR and MASTER_PORT, and that {} is running", store_server(identity)),
                    ExitCode::timeout);
  }
}

}  // namespace lockstep
