// How the ranks of a run tell each other of failures through the store that they share. Torch-free.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <lockstep/base/store.h>

#include "environment/process_name.h"
#include "failure/failure_link.h"

namespace lockstep {

/// One question to the store.
struct StoreCall {
  enum class Kind { set, add, check, get };
  Kind kind = Kind::check;
  std::string key{};
  std::string value{};     ///< set
  std::int64_t delta = 0;  ///< add
};

struct StoreAnswer {
  enum class Kind {
    done,
    late,  ///< it may have been done or not: ask again
    gone,  ///< the store, or the connection to it, is lost
  };
  Kind kind = Kind::done;
  std::int64_t number = 0;  ///< add: the new value; check: 1 if the key is there
  std::string text{};       ///< get
};

/// The only place of this folder that waits for the store.
StoreAnswer ask(Store& store, const StoreCall& call) noexcept;

/// The nodes of a run watch each other in a ring: a node that falls silent for so long is lost, and so is the store.
struct NodeRing {
  int count = 1;
  int mine = 0;
  bool watches_next = false;             ///< one rank of each node
  std::chrono::milliseconds silence{0};  ///< 0: for ever
};

// Note [Failures in the store]
//
//   failures      how many ranks began to report one. Who makes it 1 reports; the others wait for that report a while.
//   failed        the report. It is the cause for every rank, the reporting one included.
//   heard/RANK    that this rank knows it. Rank 0, whose end may take the store along, waits for all of them a while.
//   here/MACHINE  how many processes of the machine there are; here/MACHINE/1, ...: their ranks, their names and what
//                 they say about themselves. Each holds the others' descriptors (pidfd), which tell of a death at once.
//   beats/NODE    counts up once a second while a rank of the node lives.
//
// One question is out at a time, and nothing waits for its answer but the next question. Each may be asked twice: a
// count that is too high costs a moment.
class StoreLink final : public FailureLink {
 public:
  /// `about`: one line for the other ranks of this machine.
  StoreLink(int rank, int size, ProcessName self, std::string about);
  StoreLink(const StoreLink&) = delete;
  StoreLink& operator=(const StoreLink&) = delete;

  void announce(const Failure& failure) override;
  void step(Time now) override;
  /// When `step` is needed without an event.
  Time due() const;
  const std::optional<Failure>& cause() const override { return cause_; }
  bool ends_at_once() const override { return false; }

  /// The others can learn of the end of this process from now on.
  bool is_introduced() const noexcept { return is_introduced_ || lost_; }
  /// Every rank can read what this one had to say, and those that need this process for it have read it.
  bool is_done() const noexcept { return lost_ || (acknowledged_ && lingered_); }
  /// So long it is waited for until it is done.
  std::chrono::milliseconds patience() const noexcept;
  /// From now on a node and the store may not fall silent.
  void watch_nodes(NodeRing ring);
  /// No more questions; one may still be out.
  void close();
  bool is_waiting() const noexcept { return waiting_; }

  struct Peer {
    int rank = 0;
    ProcessName process{};
    std::string about{};
  };
  /// Other ranks of this machine that were found since the last call: from now on `peer_ended` is expected for them.
  std::vector<Peer> take_found();
  void peer_ended(const Peer& peer);

  /// To be asked now; its answer is expected before there is another one.
  std::optional<StoreCall> next_call();
  void answer(const StoreAnswer& answer);

 private:
  using Then = std::function<void(const StoreAnswer&)>;
  struct Question {
    StoreCall call{};
    Then then{};
  };

  bool is_limited() const noexcept;
  void put(StoreCall call, Then then);
  void drop_questions();
  void introduce();
  void look();
  void find_peers(std::int64_t count);
  void beat();
  void report();
  void wait_for_report();
  void read_report();
  void know(Failure cause);
  void linger();
  void lose(std::string text);

  const int rank_;
  const int size_;
  const ProcessName self_;
  const std::string about_;
  const std::string here_;  // the key
  NodeRing ring_{};
  Time now_{};

  std::deque<Question> questions_{};  // the first one may be out
  bool waiting_ = false;
  Time asked_at_{};
  Time ask_again_at_{};
  bool closed_ = false;
  bool lost_ = false;

  bool is_introduced_ = false;
  Time look_at_{};
  std::int64_t looks_ = 0;
  std::int64_t looks_in_ring_ = 0;
  std::int64_t known_here_ = 0;       // processes of this machine that were counted
  std::set<std::int64_t> unnamed_{};  // those of them that have not said their names
  std::vector<Peer> found_{};
  std::int64_t next_node_beats_ = 0;
  std::chrono::milliseconds next_node_silence_{0};
  Time looked_for_beats_at_{};

  std::optional<Failure> proposal_{};  // what this rank reports, or wanted to
  Time proposed_at_{};
  std::optional<Time> report_by_{};  // another rank began to report: until when it is waited for
  Time look_for_report_at_{};
  std::optional<Failure> cause_{};
  Time cause_at_{};
  bool acknowledged_ = false;
  bool lingered_ = false;
  int next_to_hear_ = 0;
  Time linger_at_{};
};

}  // namespace lockstep
