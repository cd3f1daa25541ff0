// Ranks that hang, found by the ranks of their machine: for launchers that are not ours. Torch-free.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "environment/process_name.h"
#include "failure/stall_finder.h"
#include "ipc/progress_record.h"
#include "supervise/stall_watch.h"

namespace lockstep {

// Note [Who looks for stalls]: the rank with the lowest number on its machine looks at the records of all. If that rank
// is stopped or held by a debugger, the next one does, so any rank may be the one that hangs. The records are in memory
// that each rank has made for itself; others open it through /proc, as they open the memory of gradients. If a rank
// cannot be seen, because it is on another machine or hidden by its container, nobody knows whether the others wait for
// it, and nothing is found.
class PeerStalls final : public StallFinder {
 public:
  /// The record of this rank is `board`[`index`]. The board must outlive this object.
  PeerStalls(int rank, int size, const ProgressBoard& board, int index);

  std::string about() const override;
  void add(const StoreLink::Peer& peer) override;
  Finding look(Time now) override;

 private:
  struct Peer {
    ProcessName process{};
    std::string about{};
    std::optional<ProgressBoard> board{};
    int index = 0;
  };
  bool is_first_that_runs() const;
  static bool open(Peer& peer);

  const int rank_;
  const int size_;
  const ProgressBoard& board_;
  const int index_;
  std::map<int, Peer> peers_{};  // by rank, of this machine
  std::optional<StallWatch> watch_{};
  Time look_at_{};
};

}  // namespace lockstep
