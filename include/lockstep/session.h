// lockstep/session.h
//
// The plan, the world and the requests of one process. run() passes a Session to your function. A program without run()
// creates one; the library then never exits the process and installs no signal handler.
#pragma once

#include <memory>
#include <string_view>

#include <lockstep/base/control.h>
#include <lockstep/plan/plan.h>
#include <lockstep/world/world.h>

namespace [[gnu::visibility("default")]] lockstep {

class Console;

/// What the worker function of run() gets: the plan, the connected world, and the requests to stop and save. A Trainer,
/// a strategy, a CheckpointStore, and loaders that say so keep a reference to `world`: do not move the Session
/// meanwhile.
class Session {
 public:
  /// One rank in this process. Seeds LibTorch's generators with config.seed, as run() does; config.fresh takes effect
  /// at the first fit. Throws: ConfigError, which names a field as config.optim.lr. Messages of a training name the
  /// flag, --optim.lr.
  static Session single(const TrainConfig& config = {});
  /// Collective. One rank of a launch by any launcher that run() knows (docs/launching.md), with one process per rank;
  /// without a launcher a single rank. Otherwise as single(). Once per process if there are several ranks. Throws:
  /// ConfigError, CommError.
  static Session connect(const TrainConfig& config = {});

  /// For a plan and a world that the program has made itself. Seeds nothing.
  Session(Plan plan, World world, TrainControl control = {});

  /// Prints lines of the main rank to standard error, without a rank prefix, or gives them to the LogScope of this
  /// thread; does nothing on other ranks. They are infos: report.log_level warning and error hide them.
  void print(std::string_view text);

  Plan plan;
  World world;
  TrainControl control;

 private:
  friend struct SessionAccess;
  std::shared_ptr<Console> console_;  // gets the reports of the main rank; prints nothing on the others
};

}  // namespace lockstep
