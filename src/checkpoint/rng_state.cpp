#include <functional>
#include <mutex>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/cat.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/checkpoint/rng_state.h>

#include "base/splitmix.h"

namespace lockstep {
namespace {

std::vector<at::Generator> generators(c10::Device device) {
  std::vector<at::Generator> result{at::globalContext().defaultGenerator(c10::kCPU)};
  if (!device.is_cpu()) {
    result.push_back(at::globalContext().defaultGenerator(device));
  }
  return result;
}

/// One block per generator.
std::vector<at::Tensor> states(c10::Device device) {
  std::vector<at::Tensor> result;
  for (at::Generator& generator : generators(device)) {
    const std::lock_guard lock(generator.mutex());
    result.push_back(generator.get_state());
  }
  return result;
}

// The state of a generator has a fixed size, so the blocks need no lengths.
std::int64_t size_of(const std::vector<at::Tensor>& blocks) {
  return std::transform_reduce(blocks.begin(), blocks.end(), std::int64_t{0}, std::plus<>(),
                               [](const at::Tensor& block) { return block.numel(); });
}

bool is_state_of(const std::vector<at::Tensor>& current, const at::Tensor& state) {
  return state.defined() && state.scalar_type() == at::kByte && state.dim() == 1 && state.numel() == size_of(current);
}

}  // namespace

at::Tensor rng_state(c10::Device device) { return at::cat(states(device)); }

void set_rng_state(const at::Tensor& state, c10::Device device) {
  const std::vector<at::Tensor> current = states(device);
  if (!is_state_of(current, state)) {
    throw CheckpointError(
        fmt::format(
            "random number state for {}: found {}, expected {} bytes", device.str(),
            state.defined() ? fmt::format("{} {}s", state.numel(), c10::toString(state.scalar_type())) : "nothing",
            size_of(current)),
        state.defined() ? "the state was saved on another kind of device"
                        : "a checkpoint of another number of ranks has none: use restore_rng()");
  }
  std::int64_t offset = 0;
  std::vector<at::Generator> targets = generators(device);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const at::Tensor block = state.narrow(0, offset, current[i].numel()).to(at::kCPU).clone();
    offset += block.numel();
    const std::lock_guard lock(targets[i].mutex());
    try {
      targets[i].set_state(block);
    } catch (const c10::Error& error) {
      throw CheckpointError(
          fmt::format("random number state for {}: {}", device.str(), error.what_without_backtrace()));
    }
  }
}

void restore_rng(const at::Tensor& state, const RngSeed& seed, c10::Device device) {
  if (is_state_of(states(device), state)) {
    set_rng_state(state, device);
    return;
  }
  log_info(fmt::format("the checkpoint was saved {}: the random generators get new seeds",
                       state.defined() ? fmt::format("on another kind of device than {}", device.str())
                                       : "with another number of ranks"));
  seed_rng(seed, device);
}

void seed_rng(const RngSeed& seed, c10::Device device) {
  const std::uint64_t mixed = splitmix(splitmix(splitmix(seed.seed) + static_cast<std::uint64_t>(seed.rank)) +
                                       static_cast<std::uint64_t>(seed.step));
  for (at::Generator& generator : generators(device)) {
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(mixed);
  }
}

}  // namespace lockstep
