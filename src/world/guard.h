// Under a launcher that is not ours, or on several machines, nobody tells a rank that another one failed: it would wait
// for it until a timeout.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <lockstep/world/world.h>

#include "base/descriptor.h"
#include "environment/launcher_process.h"

namespace lockstep {

// Note [Guard]: a thread with a connection to the store of its own. It learns that a rank failed from that rank's word
// in the store, from the death of a process of this machine (which needs no word), or from the death of the store; the
// first to see it tells all nodes. It also ends a rank whose launcher ended: nobody else would. Each node counts its
// heartbeats in the store and watches those of the next node; a second thread ends a process whose questions the store
// does not answer any more. Time is counted in waits, not by a clock: a process that was suspended has lost nobody
// meanwhile. Wherever the main thread waits, the process then ends within 2 s, after a head start in which the main
// thread may end by itself and a launcher sees who failed first. Gloo and NCCL offer no other way out of a collective.
// Only run() makes one: a program that owns its process gets a CommError.
class Guard {
 public:
  struct Options {
    std::chrono::milliseconds head_start = std::chrono::seconds(1);  ///< what the main thread has to end by itself
    std::chrono::milliseconds heartbeat_timeout{0};  ///< of a node, or of the store with several nodes; 0: for ever
    std::function<void(const std::string& failure)> say{};  ///< before it ends the process
    /// This rank is on its way out already: its launcher may end before it.
    std::function<bool()> may_lose_launcher{};
  };
  /// Every rank makes one; not a collective. `launcher`: the processes without which nobody watches this rank.
  Guard(const World& world, Options options, std::vector<LauncherProcess> launcher = {});
  /// Ends the watch, not the process.
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// When the World knows its nodes: from now on a node, and the store, may not fall silent. At most once.
  void watch_nodes(const World& world);
  /// This rank failed by itself: tells the others. Ending this process, with `code`, is the caller's then.
  void report(std::string_view error, int code) noexcept;
  /// This rank lost a peer: who failed first ("rank 3 (pid 71@a) failed: ..."), as soon as anybody knows; nullopt:
  /// nobody does within `patience`. Ending this process is the caller's then.
  std::optional<std::string> first_failure(std::chrono::milliseconds patience) noexcept;
  /// Before this rank ends because of another's failure: a launcher that looks now and then sees that one first.
  void wait_for_launcher() const noexcept { std::this_thread::sleep_for(options_.head_start); }

 private:
  struct Nodes {
    int count = 1;
    int mine = 0;
    bool watches_next = false;
  };
  struct Peer {
    Descriptor process{};  // closed: of another machine, or not seen yet
    std::string name{};    // "": not seen yet
  };

  void watch();
  std::optional<std::string> look();
  std::optional<std::string> look_for_launcher();
  void meet_peers();
  void beat(const Nodes& nodes);
  void watch_answers();
  void tell(const std::string& failure);
  void end(const std::string& failure);
  void let_others_hear() noexcept;

  const int rank_;
  const int size_;
  const Options options_;
  const std::unique_ptr<Store> store_;  // null: this rank is alone
  const std::vector<LauncherProcess> launcher_;
  const Descriptor stop_;
  std::vector<Peer> peers_;
  std::int64_t looks_ = 0;
  bool launcher_ended_ = false;  // at the last look
  std::int64_t next_node_beats_ = 0;
  std::chrono::milliseconds next_node_silent_{0};
  std::mutex mutex_{};
  std::condition_variable changed_{};
  Nodes nodes_{};  // with the next: guarded by the mutex
  std::optional<std::string> failure_{};
  std::chrono::milliseconds store_silent_{0};
  bool handed_over_ = false;  // the main thread ends the process
  bool over_ = false;         // nothing is watched any more
  int code_;                  // to end with
  std::thread watcher_{};     // last, with the next: they use all of the above
  std::thread answers_watcher_{};
};

}  // namespace lockstep
