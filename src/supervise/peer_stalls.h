// Ranks that hang, found by the ranks of their machine: for launchers that are not ours. Torch-free.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "environment/process_name.h"
#include "failure/stall_finder.h"
#include "ipc/progress_record.h"
#include "supervise/stall_watch.h"

namespace lockstep {

// Note [Who looks for stalls]: the rank with the lowest number on its machine looks at the records of all ranks there.
// If that rank is stopped or held by a debugger, the next one does, so any rank may be the one that hangs. The records
// are in memory that each rank has made for itself; others open it through /proc, as they open the memory of gradients.
// A machine on which all ranks wait in collectives says nothing if there are other machines: the cause may be there. A
// rank that its container hides from the others of its machine is not seen, and then nothing is found.
class PeerStalls final : public StallFinder {
 public:
  struct Options {
    int rank = 0;
    int size = 1;        ///< ranks of the run, and ...
    int local_size = 1;  ///< ... of this machine
    int local_rank = 0;  ///< index in the board
  };
  /// The board has the record of this rank, and must outlive this object.
  PeerStalls(Options options, const ProgressBoard& board);

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
  std::vector<RankSample> samples();
  static bool open(Peer& peer);

  const Options options_;
  const ProgressBoard& board_;
  std::map<int, Peer> peers_{};  // by rank, of this machine
  std::optional<StallWatch> watch_{};
  Time look_at_{};
};

}  // namespace lockstep
