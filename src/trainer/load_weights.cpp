#include "trainer/load_weights.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/tensor/tensor_file.h>

#include "checkpoint/load_converted.h"
#include "checkpoint/named_checkpoint.h"
#include "parallel/parameter_sync.h"

namespace lockstep {
namespace {

constexpr const char* kFlag = "--init_weights";

bool is_schedule_free(const NamedTensors::value_type& of_optimizer) {
  return of_optimizer.first.ends_with(".weight_sum");
}

}  // namespace

std::size_t load_weights(torch::nn::Module& module, const std::string& from, bool allow_partial, World& world) {
  compare_parameters(module, world);
  if (world.is_main()) {
    check_init_weights(from);
  }
  NamedTensors weights;
  if (world.any(world.is_main() && std::filesystem::is_directory(from))) {
    CheckpointContents contents = naming_flag(kFlag, [&] { return load_checkpoint(from, world); });
    if (world.is_main() && std::ranges::any_of(contents.tensors["optimizer"], is_schedule_free)) {
      log_warning(
          fmt::format("--init_weights {}: these are the weights that schedule-free AdamW trains; those that it "
                      "evaluates are in checkpoints of --checkpoint.weights_only",
                      from));
    }
    weights = std::move(contents.tensors["model"]);
  } else if (world.is_main()) {
    weights = naming_flag(kFlag, [&] { return load_tensors(from); });
  }
  std::size_t loaded = 0;
  if (world.is_main()) {
    try {
      loaded = load_converted(module, weights, allow_partial).loaded.size();
    } catch (const CheckpointError& error) {
      throw CheckpointError(fmt::format("--init_weights {}: {}", from, error.what()), error.hint());
    }
    if (loaded == 0) {
      throw CheckpointError(fmt::format("--init_weights {}: no tensor in it has the name of one of the model", from),
                            "choose the weights of this model; rename() changes the names of those of another one");
    }
  }
  broadcast_module(module, world);
  return loaded;
}

}  // namespace lockstep
