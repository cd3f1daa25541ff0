// Preloaded into a program under test: shifts its wall clock by the seconds in the file that TEST_WALL_CLOCK names,
// plus ten minutes per rank. Other clocks are not changed.
#include <cstdint>
#include <cstdlib>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

namespace {

constexpr std::int64_t kPerRank = 600;

const volatile std::int64_t* map_shift() {
  const char* path = std::getenv("TEST_WALL_CLOCK");
  const int fd = path == nullptr ? -1 : open(path, O_RDONLY | O_CLOEXEC);
  void* memory = mmap(nullptr, sizeof(std::int64_t), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  return memory == MAP_FAILED ? nullptr : static_cast<const volatile std::int64_t*>(memory);
}

std::int64_t shift() {
  static const volatile std::int64_t* const shared = map_shift();
  static const std::int64_t own = std::getenv("RANK") == nullptr ? 0 : kPerRank * std::atoll(std::getenv("RANK"));
  return shared == nullptr ? 0 : *shared + own;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    time->tv_sec += shift();
  }
  return result;
}

int gettimeofday(timeval* time, void*) noexcept {
  timespec now{};
  const int result = clock_gettime(CLOCK_REALTIME, &now);
  *time = {.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
  return result;
}

time_t time(time_t* where) noexcept {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  if (where != nullptr) {
    *where = now.tv_sec;
  }
  return now.tv_sec;
}
}
