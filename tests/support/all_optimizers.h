// Every optimizer of the library, with options of its own.
#pragma once

#include <vector>

#include <lockstep/optim/optimizers.h>

namespace lockstep {

struct NamedOptimizer {
  const char* name;
  OptimizerFactory make;
};

inline std::vector<NamedOptimizer> all_optimizers() {
  return {{"sgd", sgd({.lr = 0.1, .momentum = 0.9})},
          {"adam", adam({.lr = 0.02, .amsgrad = true})},
          {"adamw", adamw({.lr = 0.02})},
          {"rmsprop", rmsprop({.lr = 0.01, .momentum = 0.5, .centered = true})},
          {"adagrad", adagrad({.lr = 0.1, .lr_decay = 0.01})},
          {"adadelta", adadelta({.lr = 1})},
          {"adamax", adamax({.lr = 0.02})},
          {"nadam", nadam({.lr = 0.01})},
          {"radam", radam({.lr = 0.01, .beta2 = 0.9})},
          {"asgd", asgd({.lr = 0.05, .t0 = 5})},
          {"rprop", rprop({.lr = 1.0 / 128})},  // it is also the first state, which half types then hold exactly
          {"lion", lion({.lr = 0.01, .weight_decay = 0.1})},
          {"adafactor", adafactor({.lr = 0.05})},
          {"muon", muon({.lr = 0.02, .adamw = {.lr = 0.02}})},
          {"prodigy", prodigy({.weight_decay = 0.1, .d0 = 1e-3})},
          {"schedule_free_adamw", schedule_free_adamw({.lr = 0.02, .weight_decay = 0.1, .r = 1})}};
}

}  // namespace lockstep
