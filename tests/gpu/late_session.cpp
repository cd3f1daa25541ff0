// Uses LibTorch's generators before the Session, which is too late for a Session on the GPU.
#include <cstdio>

#include <ATen/ATen.h>

#include <lockstep/lockstep.h>

int main() {
  at::manual_seed(1);
  try {
    lockstep::Session::single({.compute_setup = lockstep::ComputeSetup::gpu});
  } catch (const lockstep::LaunchError& error) {
    std::printf("%s\n", error.hint().c_str());
    return 1;
  }
  return 0;
}
