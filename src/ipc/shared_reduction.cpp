#include "ipc/shared_reduction.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/text.h"

namespace lockstep {
namespace {

[[noreturn]] void throw_errno(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

/// A page at the beginning of the memory, by which others recognise it.
struct Nonce {
  std::uint64_t value = 0;
};
constexpr std::size_t kPageBytes = 4096;

constexpr std::chrono::microseconds kSpinTime{50};
constexpr std::chrono::milliseconds kSleep{20};  // then the others are looked at

void pause_core() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Counters wrap around.
bool has_reached(std::uint32_t value, std::uint32_t target) noexcept {
  return static_cast<std::int32_t>(value - target) >= 0;
}

std::size_t rounded_up(std::size_t bytes, std::size_t unit) noexcept { return (bytes + unit - 1) / unit * unit; }

}  // namespace

SharedMemory::SharedMemory(Descriptor file, std::size_t size) : file_(std::move(file)), size_(size) {
  void* data = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
  if (data == MAP_FAILED) {
    throw_errno(fmt::format("cannot map {} of shared memory", human_bytes(static_cast<std::int64_t>(size_))));
  }
  data_ = static_cast<std::byte*>(data);
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : file_(std::move(other.file_)),
      address_(std::move(other.address_)),
      size_(other.size_),
      data_(std::exchange(other.data_, nullptr)) {}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) {
    ::munmap(data_, size_);
  }
}

SharedMemory SharedMemory::create(std::size_t bytes) {
  Descriptor file(::memfd_create("lockstep-gradients", MFD_CLOEXEC));
  if (!file.is_open()) {
    throw_errno("memfd_create");
  }
  // Reserved now: memory that is missing later would end a rank with SIGBUS.
  if (::fallocate(file.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    throw_errno(fmt::format("cannot reserve {} of shared memory", human_bytes(static_cast<std::int64_t>(bytes))));
  }
  const int number = file.get();
  SharedMemory made(std::move(file), bytes);
  std::uint64_t nonce = 0;
  if (::getrandom(&nonce, sizeof nonce, 0) != static_cast<ssize_t>(sizeof nonce)) {
    throw_errno("getrandom");
  }
  new (made.data_) Nonce{.value = nonce};
  made.address_ = fmt::format("{}/{}/{}", ::getpid(), number, nonce);
  return made;
}

SharedMemory SharedMemory::open(const std::string& address) {
  const std::vector<std::string> parts = split(address, '/');
  LOCKSTEP_ASSERT(parts.size() == 3, "the address of shared memory has three parts");
  const std::string path = fmt::format("/proc/{}/fd/{}", parts[0], parts[1]);
  Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!file.is_open()) {
    throw_errno("cannot open " + path);
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    throw_errno("cannot read the size of " + path);
  }
  if (!S_ISREG(status.st_mode) || static_cast<std::size_t>(status.st_size) < kPageBytes) {
    throw std::runtime_error(path + " is not the shared memory of the main rank");
  }
  SharedMemory opened(std::move(file), static_cast<std::size_t>(status.st_size));
  if (std::to_string(reinterpret_cast<const Nonce*>(opened.data_)->value) != parts[2]) {
    throw std::runtime_error(path + " is not the shared memory of the main rank");
  }
  opened.address_ = address;
  return opened;
}

/// Of one rank, which alone writes them. On two cache lines of their own.
struct alignas(128) SharedReduction::Counters {
  std::atomic<std::uint32_t> published{0};  ///< parts in its slot
  std::atomic<std::uint32_t> added{0};      ///< parts of which it has added its slice
  std::atomic<std::uint32_t> read{0};       ///< parts that it has read from all slots
  std::atomic<std::uint32_t> left{0};       ///< it takes part no more
  std::atomic<std::uint32_t> changes{0};    ///< of the numbers above; the word on which others sleep
  std::atomic<std::uint32_t> sleepers{0};   ///< ranks that sleep on it; they write it
};

std::size_t SharedReduction::bytes_needed(int ranks, std::size_t capacity) {
  const auto count = static_cast<std::size_t>(ranks);
  return kPageBytes + rounded_up(count * sizeof(Counters), kPageBytes) + count * rounded_up(capacity, kPageBytes);
}

SharedReduction::Counters& SharedReduction::counters(int rank) const noexcept {
  return *std::launder(
      reinterpret_cast<Counters*>(memory_.data() + kPageBytes + static_cast<std::size_t>(rank) * sizeof(Counters)));
}

std::byte* SharedReduction::slot(int rank) const noexcept {
  const std::size_t first = kPageBytes + rounded_up(options_.processes.size() * sizeof(Counters), kPageBytes);
  return memory_.data() + first + static_cast<std::size_t>(rank) * rounded_up(options_.capacity, kPageBytes);
}

// Memory that was never written is zero, as the counters are at first. So no rank has to construct them before the
// others come.
SharedReduction::SharedReduction(SharedMemory memory, Options options)
    : memory_(std::move(memory)), options_(std::move(options)) {
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
  LOCKSTEP_ASSERT(memory_.size() >= bytes_needed(size(), options_.capacity), "the memory is large enough");
  for (const pid_t process : options_.processes) {
    const bool is_this = process == ::getpid();  // ranks may be threads
    processes_.emplace_back(is_this ? -1 : static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
    if (!is_this && !processes_.back().is_open()) {
      throw_errno(fmt::format("cannot watch process {} of another rank", process));
    }
  }
}

SharedReduction::~SharedReduction() { set(&Counters::left, 1); }

std::byte* SharedReduction::next_part(std::size_t bytes) {
  if (done_ == pending_.size()) {
    pending_.clear();
    done_ = used_ = 0;
    wait_for_all(&Counters::read, published_);
  }
  LOCKSTEP_ASSERT(used_ + bytes <= options_.capacity, "the parts of a step fit into the slot");
  next_ = {.offset = used_, .bytes = bytes};
  used_ += rounded_up(bytes, kAlignment);
  return slot(options_.rank) + next_.offset;
}

void SharedReduction::publish(AddParts add) {
  next_.add = add;
  pending_.push_back(next_);
  set(&Counters::published, ++published_);
}

void SharedReduction::finish(std::byte* sum) {
  LOCKSTEP_ASSERT(done_ < pending_.size(), "finish() comes after publish()");
  const Part part = pending_[done_++];
  ++finished_;
  wait_for_all(&Counters::published, finished_);
  const auto add = [&](std::byte* to, std::size_t first, std::size_t bytes) {
    slots_.clear();
    for (int rank = 0; rank < size(); ++rank) {
      slots_.push_back(slot(rank) + part.offset + first);
    }
    part.add(to, slots_, bytes);
  };
  if (part.bytes <= kSmall) {
    add(sum, 0, part.bytes);
  } else {
    const std::size_t slice =
        rounded_up((part.bytes + options_.processes.size() - 1) / options_.processes.size(), kAlignment);
    const auto first_of = [&](int rank) { return std::min(part.bytes, static_cast<std::size_t>(rank) * slice); };
    const std::size_t mine = first_of(options_.rank);
    add(slot(options_.rank) + part.offset + mine, mine, first_of(options_.rank + 1) - mine);
    set(&Counters::added, finished_);
    for (int i = 0; i < size(); ++i) {  // from its own one on, so that ranks read from different slots
      const int rank = (options_.rank + i) % size();
      wait_for(rank, &Counters::added, finished_);
      const std::size_t first = first_of(rank);
      std::memcpy(sum + first, slot(rank) + part.offset + first, first_of(rank + 1) - first);
    }
  }
  set(&Counters::read, finished_);
}

// Avoids lost wake-ups: set() writes the counter before it reads `sleepers`, and wait_for() increments `sleepers`
// before it reads the counter.
void SharedReduction::set(Counter counter, std::uint32_t value) {
  Counters& mine = counters(options_.rank);
  (mine.*counter).store(value, std::memory_order_release);
  mine.changes.fetch_add(1, std::memory_order_seq_cst);
  if (mine.sleepers.load(std::memory_order_seq_cst) > 0) {
    ::syscall(SYS_futex, &mine.changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

void SharedReduction::wait_for_all(Counter counter, std::uint32_t value) {
  for (int rank = 0; rank < size(); ++rank) {
    wait_for(rank, counter, value);
  }
}

void SharedReduction::wait_for(int rank, Counter counter, std::uint32_t value) {
  Counters& theirs = counters(rank);
  const auto has_come = [&] { return has_reached((theirs.*counter).load(std::memory_order_acquire), value); };
  if (rank == options_.rank || has_come()) {
    return;
  }
  const auto began = std::chrono::steady_clock::now();
  constexpr int kLooks = 32;  // between two looks at the clock
  while (options_.spins && std::chrono::steady_clock::now() - began < kSpinTime) {
    for (int look = 0; look < kLooks; ++look) {
      if (has_come()) {
        return;
      }
      pause_core();
    }
  }
  while (true) {
    const std::uint32_t seen = theirs.changes.load(std::memory_order_seq_cst);
    theirs.sleepers.fetch_add(1, std::memory_order_seq_cst);
    if (!has_come()) {
      const timespec longest{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(kSleep).count()};
      ::syscall(SYS_futex, &theirs.changes, FUTEX_WAIT, seen, &longest, nullptr, 0);
    }
    theirs.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    // A rank may end after it did what is waited for, so that is looked at last.
    if (const std::string failure = find_failure(rank, began + options_.timeout); has_come()) {
      return;
    } else if (!failure.empty()) {
      throw SharedReductionFailed(failure);
    }
  }
}

std::string SharedReduction::find_failure(int rank, std::chrono::steady_clock::time_point deadline) const {
  const auto index = static_cast<std::size_t>(rank);
  pollfd process{.fd = processes_[index].get(), .events = POLLIN, .revents = 0};
  if (process.fd >= 0 && ::poll(&process, 1, 0) > 0) {
    return fmt::format("rank {} (process {}) has ended", rank, options_.processes[index]);
  }
  if (counters(rank).left.load(std::memory_order_acquire) != 0) {
    return fmt::format("rank {} takes part no more", rank);
  }
  if (std::chrono::steady_clock::now() >= deadline) {
    return fmt::format("timed out after {} ms of waiting for rank {}", options_.timeout.count(), rank);
  }
  return {};
}

}  // namespace lockstep
