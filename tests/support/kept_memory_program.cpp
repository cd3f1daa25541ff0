// Prints the page faults of steps that keep their memory, in a process with the user's settings and allocator.
#include <cstdio>

#include "base/kept_memory.h"
#include "support/page_faults.h"

int main() {
  const lockstep::KeptMemory memory(true);
  std::printf("%ld\n", lockstep::faults_of_steps());
}
