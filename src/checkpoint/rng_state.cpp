#include <mutex>
#include <vector>

#include <fmt/format.h>

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/cat.h>

#include <lockstep/base/error.h>
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

/// Passes each block of `state` to target(generator). Throws: CheckpointError if the size does not match.
template <class Target>
void apply(const at::Tensor& state, c10::Device device, const Target& target) {
  // The state of a generator has a fixed size, so the blocks need no lengths.
  const std::vector<at::Tensor> current = states(device);
  std::int64_t expected = 0;
  for (const at::Tensor& block : current) {
    expected += block.numel();
  }
  if (!state.defined() || state.scalar_type() != at::kByte || state.dim() != 1 || state.numel() != expected) {
    throw CheckpointError(
        fmt::format(
            "random number state for {}: found {}, expected {} bytes", device.str(),
            state.defined() ? fmt::format("{} {}s", state.numel(), c10::toString(state.scalar_type())) : "nothing",
            expected),
        "the state was saved on another kind of device");
  }
  std::int64_t offset = 0;
  std::vector<at::Generator> targets = generators(device);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const at::Tensor block = state.narrow(0, offset, current[i].numel()).to(at::kCPU).clone();
    offset += block.numel();
    const std::lock_guard lock(targets[i].mutex());
    try {
      target(targets[i]).set_state(block);
    } catch (const c10::Error& error) {
      throw CheckpointError(
          fmt::format("random number state for {}: {}", device.str(), error.what_without_backtrace()));
    }
  }
}

}  // namespace

at::Tensor rng_state(c10::Device device) { return at::cat(states(device)); }

bool fits_rng_state(const at::Tensor& state, c10::Device device) {
  try {
    apply(state, device, [](at::Generator& generator) { return generator.clone(); });
    return true;
  } catch (const CheckpointError&) {
    return false;
  }
}

void set_rng_state(const at::Tensor& state, c10::Device device) {
  apply(state, device, [](at::Generator& generator) { return generator; });
}

void seed_rng(std::uint64_t seed, int rank, std::int64_t step, c10::Device device) {
  const std::uint64_t mixed =
      splitmix(splitmix(splitmix(seed) + static_cast<std::uint64_t>(rank)) + static_cast<std::uint64_t>(step));
  for (at::Generator& generator : generators(device)) {
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(mixed);
  }
}

}  // namespace lockstep
