// Takes all but so many MiB of the first GPU's memory, says so, and holds it until it is killed.
#include <cstdio>
#include <string>
#include <vector>

#include <unistd.h>

#include <ATen/ATen.h>

#include <lockstep/lockstep.h>

int main(int argc, char** argv) {
  const std::int64_t left = (argc > 1 ? std::stoll(argv[1]) : 0) << 20;
  const lockstep::World world = lockstep::World::single(c10::Device(c10::kCUDA, 0));
  std::vector<at::Tensor> held;
  while (true) {
    const auto free = lockstep::probe_hardware().gpus.at(0).free_bytes;
    if (free <= left) {
      break;
    }
    try {
      held.push_back(at::empty({std::max<std::int64_t>((free - left) / 2, 32 << 20)},
                               at::device(world.device()).dtype(at::kByte)));
    } catch (const c10::OutOfMemoryError&) {
      break;
    }
  }
  std::printf("holding\n");
  std::fflush(stdout);
  while (true) {
    pause();
  }
}
