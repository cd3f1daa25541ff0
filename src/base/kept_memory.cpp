#include "base/kept_memory.h"

#include <mutex>
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

// glibc has these settings once per process: the first scope sets them, the last one resets them.
struct Scopes {
  std::mutex mutex;
  int count = 0;
};

Scopes& scopes_of_process() {
  static Scopes scopes;
  return scopes;
}

}  // namespace

// M_TRIM_THRESHOLD -1: the top of the heap is never returned. M_MMAP_MAX 0: large blocks lie in the heap too.
// M_TOP_PAD: the heap grows in few calls.
KeptMemory::KeptMemory(bool wanted) : active_(wanted && is_glibc_malloc() && !is_set_by_user()) {
  if (!active_) {
    return;
  }
  Scopes& scopes = scopes_of_process();
  const std::scoped_lock lock(scopes.mutex);
  if (scopes.count++ == 0) {
    mallopt(M_TRIM_THRESHOLD, -1);
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TOP_PAD, 64 << 20);
  }
}

// The first mallopt has ended glibc's own adjustment of its thresholds for good. It would raise them up to these values
// as the program frees larger blocks; with its first values every block above 128 KiB would be mapped again each time.
KeptMemory::~KeptMemory() {
  if (!active_) {
    return;
  }
  Scopes& scopes = scopes_of_process();
  const std::scoped_lock lock(scopes.mutex);
  if (--scopes.count == 0) {
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
    mallopt(M_MMAP_MAX, 65536);
    mallopt(M_TOP_PAD, 128 << 10);
    malloc_trim(0);
  }
}

}  // namespace lockstep
