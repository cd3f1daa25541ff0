// A run of many ranks in one thread: the code of src/failure over a virtual clock and a store in memory, with faults
// drawn from a seed. Nothing here waits, and a seed repeats a run exactly.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::simulation {

using Duration = std::chrono::microseconds;

/// Mistakes that a simulation has to find, put between the code and its surroundings.
enum class Defect {
  none,
  lost_message_is_not_sent_again,
  rank_0_does_not_linger,
  consequences_end_first,
  suspended_time_counts,
  consequences_are_blamed_at_once,
  heartbeats_stop,
};

struct Shape {
  int nodes = 1;
  int ranks_per_node = 2;
  bool supervised = false;  ///< one supervisor per node; else a launcher that is not ours
  int ranks() const noexcept { return nodes * ranks_per_node; }
  bool has_store() const noexcept { return !supervised || nodes > 1; }
};

enum class FaultKind {
  exception,      ///< a rank throws
  death,          ///< a process is killed
  death_in_call,  ///< a process is killed between two questions to the store
  node_death,     ///< all processes of a node are killed
  cut,            ///< a rank's connection to the store breaks
  mute,           ///< no packet of a node arrives any more
  launcher,       ///< the launcher of a node dies
  stall,          ///< a rank hangs; another one of its node finds it
  pause,          ///< a process is suspended for a while
  jump,           ///< a rank's clock jumps
};

struct Fault {
  FaultKind kind = FaultKind::exception;
  int rank = 0;
  Duration at{};
  Duration length{};  ///< pause, jump
  int call = 0;       ///< death_in_call: before this one after `at`
};

struct Schedule {
  Shape shape{};
  std::vector<Fault> faults{};
  Duration latency{1000};  ///< of the store, at most
  int late_percent = 0;    ///< of the store's answers
  int twice_percent = 0;   ///< of the questions
  int stuck_percent = 50;  ///< of the main threads, in a collective that a peer has left
  std::uint64_t seed = 0;
};

Schedule draw_schedule(std::uint64_t seed);
std::string to_string(const Schedule& schedule);

struct Outcome {
  std::string problems{};   ///< "": every invariant holds
  std::uint64_t trace = 0;  ///< a hash of all that happened, in its order
  std::int64_t events = 0;
};

Outcome simulate(const Schedule& schedule, Defect defect = Defect::none);

}  // namespace lockstep::simulation
