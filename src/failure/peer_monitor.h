// The thread of a rank that learns of failures and ends the process because of them. Torch-free.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <lockstep/base/store.h>

#include "base/descriptor.h"
#include "environment/launcher_process.h"
#include "failure/awake_clock.h"
#include "failure/peer_watch.h"
#include "failure/stall_finder.h"

namespace lockstep {

/// Runs a PeerWatch: gives it the time, the answers of the store, the ends of processes, and ends this process when it
/// says so. Only run() makes one: a program that owns its process gets a CommError instead. The thread begins when
/// there is something to watch.
class PeerMonitor {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    std::unique_ptr<FailureLink> supervisor{};  ///< null: no supervisor of ours watches this rank
    std::chrono::milliseconds head_start = deadlines::kHeadStart;
    std::unique_ptr<StallFinder> stalls{};           ///< null: nobody looks for them here
    std::function<void(const ExitDecision&)> say{};  ///< the last lines before the process is ended; {}: none
    /// This rank is on its way out already: its launcher may end before it.
    std::function<bool()> may_lose_launcher{};
  };
  explicit PeerMonitor(Options options);  ///< Throws: LaunchError
  ~PeerMonitor();                         ///< ends the watch, not the process
  PeerMonitor(const PeerMonitor&) = delete;
  PeerMonitor& operator=(const PeerMonitor&) = delete;

  /// The rendezvous is over. Every rank calls it; not a collective. Returns when the others can see this process end.
  /// `store`: a connection of its own to what they share; null: this rank is alone, or its supervisor sees all ranks.
  /// `launcher`: the processes without which nobody watches this rank. At most once.
  void watch_peers(std::unique_ptr<Store> store, std::vector<LauncherProcess> launcher);
  /// From now on a node, and the store, may not fall silent.
  void watch_nodes(const NodeRing& ring);
  /// All ranks have done their work: from now on an ending process is no failure.
  void leave_peers();

  /// This rank failed: returns when the others know, or it is known who failed first. Ending this process is the
  /// caller's then.
  ExitDecision fail(const Failure& own);

 private:
  struct PeerProcess {
    StoreLink::Peer peer{};
    Descriptor handle{};
  };
  void begin();
  void watch();
  void wait();
  void look_at_processes(PeerWatch::Time now);
  /// Returns what there is to log.
  std::string look_for_stalls(PeerWatch::Time now);
  void serve_store();
  void ask_the_store();
  void wake() noexcept;
  void wait_for_the_end(std::unique_lock<std::mutex>& lock);

  const Options options_;
  const Descriptor wake_;
  std::vector<PeerProcess> processes_{};  // of this machine; the watching thread's
  std::mutex mutex_{};
  std::condition_variable changed_{};
  AwakeClock clock_{};  // with all below: guarded by the mutex
  PeerWatch watch_;
  std::vector<LauncherProcess> launcher_{};
  std::unique_ptr<Store> store_{};
  std::optional<StoreCall> call_{};
  std::optional<StoreAnswer> answer_{};
  bool store_is_left_ = false;
  bool over_ = false;
  std::thread watcher_{};  // last, with the next: they use all of the above
  std::thread asker_{};
};

}  // namespace lockstep
