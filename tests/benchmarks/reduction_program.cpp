// The mean of floats over the ranks of this machine, alone: in shared memory (src/ipc/shared_reduction.h) and over
// Gloo, in turn. Prints a table. Gloo only adds, the shared memory also divides.
//
//   reduction_program --nprocs 2
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <lockstep/lockstep.h>

#include "base/median.h"
#include "ipc/shared_reduction.h"
#include "parallel/shared_memory_hook.h"

namespace {

constexpr int kRounds = 5;
constexpr std::array<std::size_t, 8> kSizes{1, 16, 64, 256, 1024, 4096, 25 * 1024, 100 * 1024};  // KiB

lockstep::SharedReduction shared_reduction(lockstep::World& world, std::size_t bytes) {
  const std::vector<std::size_t> parts{bytes};
  std::shared_ptr<const lockstep::SharedMemory> memory;
  if (world.is_main()) {
    memory = std::make_shared<lockstep::SharedMemory>(
        lockstep::SharedMemory::create(lockstep::SharedReduction::bytes_needed(world.size(), parts)));
  }
  const std::string address = world.broadcast_bytes(memory ? memory->address() : "");
  if (memory == nullptr) {
    memory = std::make_shared<lockstep::SharedMemory>(lockstep::SharedMemory::open(address));
  }
  std::vector<pid_t> processes;
  for (const std::string& process : world.gather(std::to_string(getpid()))) {
    processes.push_back(std::stoi(process));
  }
  return {memory, {.rank = world.rank(), .processes = processes, .parts = parts, .timeout = std::chrono::seconds(60)}};
}

/// Adds the microseconds of each call to `times`.
void measure(lockstep::World& world, std::int64_t calls, std::vector<double>& times,
             const std::function<void()>& call) {
  world.barrier("begin");
  call();  // warms up
  for (std::int64_t i = 0; i < calls; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    times.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const lockstep::TrainConfig defaults{.compute_setup = lockstep::ComputeSetup::cpu,
                                       .backend = lockstep::Backend::gloo};
  return lockstep::run(defaults, argc, argv, [](lockstep::Session& session) {
    lockstep::World& world = session.world;
    at::set_num_threads(1);
    const lockstep::WriteMean mean = lockstep::write_mean_of(at::kFloat);
    session.print("| bytes | shared memory us | Gloo us | ratio | one memcpy us |\n|---|---|---|---|---|");
    for (const std::size_t kib : kSizes) {
      const std::size_t bytes = kib << 10;
      lockstep::SharedReduction reduction = shared_reduction(world, bytes);
      const at::Tensor values = at::ones({static_cast<std::int64_t>(bytes / sizeof(float))});
      const at::Tensor copy = at::empty_like(values);
      std::memcpy(reduction.part(0), values.data_ptr(), bytes);
      const auto calls = static_cast<std::int64_t>(std::clamp<std::size_t>((256 << 20) / bytes, 3, 1000));
      std::vector<double> shared;
      std::vector<double> gloo;
      std::vector<double> memcpy;
      for (int round = 0; round < kRounds; ++round) {
        measure(world, calls, shared, [&] {
          reduction.publish(0, mean);
          reduction.finish();
        });
        measure(world, calls, gloo, [&] { world.all_reduce(values, lockstep::Reduce::sum); });
        measure(world, calls, memcpy, [&] { std::memcpy(copy.data_ptr(), values.data_ptr(), bytes); });
      }
      if (*reinterpret_cast<const float*>(reduction.part(0)) != 1) {
        throw lockstep::Error("the mean of ones is not 1");
      }
      const double ratio = lockstep::median(gloo) / lockstep::median(shared);
      session.print(fmt::format("| {} KiB | {:.1f} | {:.1f} | {:.1f} | {:.1f} |", kib, lockstep::median(shared),
                                lockstep::median(gloo), ratio, lockstep::median(memcpy)));
    }
  });
}
