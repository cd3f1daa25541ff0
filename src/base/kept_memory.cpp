#include "base/kept_memory.h"

#include <string>

#include <dlfcn.h>
#include <malloc.h>

#include <lockstep/base/variables.h>

namespace lockstep {
namespace {

// jemalloc and others define malloc, but not always mallopt.
bool is_glibc_malloc() {
  Dl_info allocator{};
  Dl_info library{};
  return dladdr(dlsym(RTLD_DEFAULT, "malloc"), &allocator) != 0 &&
         dladdr(dlsym(RTLD_DEFAULT, "gnu_get_libc_version"), &library) != 0 && allocator.dli_fbase == library.dli_fbase;
}

bool is_set_by_user() {
  const Variables environment = read_environment();
  for (const char* name : {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_"}) {
    if (environment.has(name)) {
      return true;
    }
  }
  return environment.get("GLIBC_TUNABLES").value_or("").find("glibc.malloc") != std::string::npos;
}

}  // namespace

// M_TRIM_THRESHOLD -1: the top of the heap is never returned. M_MMAP_MAX 0: large blocks lie in the heap too.
// M_TOP_PAD: the heap grows in few calls.
KeptMemory::KeptMemory(bool wanted) : active_(wanted && is_glibc_malloc() && !is_set_by_user()) {
  if (active_) {
    mallopt(M_TRIM_THRESHOLD, -1);
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TOP_PAD, 64 << 20);
  }
}

KeptMemory::~KeptMemory() {
  if (active_) {
    mallopt(M_TRIM_THRESHOLD, 128 << 10);
    mallopt(M_MMAP_MAX, 65536);
    mallopt(M_TOP_PAD, 128 << 10);
    malloc_trim(0);
  }
}

}  // namespace lockstep
