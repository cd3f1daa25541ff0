// Preloaded into a program under test: an allocator that is not glibc's, for whoever asks the dynamic linker.
#include <cstddef>
#include <cstdlib>

extern "C" {

void* __libc_malloc(std::size_t bytes);

void* malloc(std::size_t bytes) noexcept { return __libc_malloc(bytes); }

}  // extern "C"
