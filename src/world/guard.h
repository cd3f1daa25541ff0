// Under a launcher that is not ours, nobody tells a rank that another one failed: it would wait for it until a timeout.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <lockstep/world/world.h>

#include "base/descriptor.h"

namespace lockstep {

// Note [Guard]: a thread with a connection to the store of its own. It learns that a rank failed from that rank's word
// in the store, from the death of a process of this machine (which needs no word), or from the death of the store; the
// first to see it tells all nodes. Wherever the main thread waits, the process then ends within 2 s, after a head start
// in which the main thread may end by itself and a launcher sees who failed first. Gloo and NCCL offer no other way out
// of a collective. Only run() makes one: a program that owns its process gets a CommError.
class Guard {
 public:
  /// Every rank makes one; not a collective. `head_start`: what the main thread has to end by itself.
  explicit Guard(const World& world, std::chrono::milliseconds head_start = std::chrono::seconds(1));
  /// Ends the watch, not the process.
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// This rank failed by itself: tells the others. Ending this process is the caller's then.
  void report(std::string_view error) noexcept;
  /// This rank lost a peer: who failed first ("rank 3 (pid 71@a) failed: ..."), as soon as anybody knows; nullopt:
  /// nobody does within `patience`. Ending this process is the caller's then.
  std::optional<std::string> first_failure(std::chrono::milliseconds patience) noexcept;
  /// Before this rank ends because of another's failure: a launcher that looks now and then sees that one first.
  void wait_for_launcher() const noexcept { std::this_thread::sleep_for(head_start_); }

 private:
  struct Peer {
    Descriptor process{};  // closed: of another machine, or not seen yet
    std::string name{};    // "": not seen yet
  };

  void watch();
  std::optional<std::string> look();
  void meet_peers();
  void tell(const std::string& failure);
  void end_process(const std::string& failure);
  void let_others_hear() noexcept;

  const int rank_;
  const int size_;
  const std::chrono::milliseconds head_start_;
  const std::unique_ptr<Store> store_;
  const Descriptor stop_;
  std::vector<Peer> peers_;
  std::mutex mutex_{};
  std::condition_variable changed_{};
  std::optional<std::string> failure_{};
  bool handed_over_ = false;  // the main thread ends the process
  std::thread thread_;        // last: it uses all of the above
};

}  // namespace lockstep
