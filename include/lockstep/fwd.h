// lockstep/fwd.h
//
// Forward declarations, for headers that need only the names.
#pragma once

namespace at {
class Tensor;
}
namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
class OptimizerParamGroup;
}  // namespace torch::optim

namespace [[gnu::visibility("default")]] lockstep {
struct TrainConfig;
struct Plan;
struct Identity;
struct Hardware;
class World;
class Strategy;
class BatchSource;
class DataLoader;
class CheckpointStore;
class Trainer;
class Task;
class Callback;
class Session;
}  // namespace lockstep
