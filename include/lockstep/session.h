// lockstep/session.h
//
// One process's part of a run: the decision, the world and the requests. run() hands it to your function; a program
// that owns its process makes it itself, and then the library never exits and installs no signal handler.
#pragma once

#include <memory>
#include <string_view>

#include <lockstep/base/control.h>
#include <lockstep/plan/plan.h>
#include <lockstep/world/world.h>

namespace [[gnu::visibility("default")]] lockstep {

class Console;

class Session {
 public:
  /// One rank in this process. Seeds LibTorch's generators with config.seed, as run() does; config.fresh acts at its
  /// first fit. Throws: ConfigError; a field is called config.optim.lr there. Messages of a training call it by its
  /// flag, --optim.lr.
  static Session single(const TrainConfig& config = {});
  /// Collective. One rank of a launch: our launcher's, torchrun's or the same variables; one rank alone when there are
  /// none. The rest as single(). Throws: ConfigError, CommError.
  static Session connect(const TrainConfig& config = {});

  Session(Plan plan, World world, TrainControl control = {}, std::shared_ptr<Console> console = nullptr);

  /// Lines on the terminal from the main rank, without a rank prefix; nothing on the others.
  void print(std::string_view text);

  Plan plan;
  World world;
  TrainControl control;
  std::shared_ptr<Console> console;  ///< where the main rank's reports go; silent on the others
};

}  // namespace lockstep
