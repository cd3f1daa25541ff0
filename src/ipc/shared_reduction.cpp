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
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/assertion.h"
#include "base/text.h"
#include "failure/awake_clock.h"

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

/// A process that goes beyond its limit of file sizes gets a signal, which ends it.
void check_file_limit(std::size_t bytes) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && bytes > limit.rlim_cur) {
    errno = EFBIG;
    throw_errno(fmt::format("cannot have {} of shared memory (ulimit -f: {})",
                            human_bytes(static_cast<std::int64_t>(bytes)),
                            human_bytes(static_cast<std::int64_t>(limit.rlim_cur))));
  }
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
  check_file_limit(bytes);
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    throw_errno(fmt::format("cannot have {} of shared memory", human_bytes(static_cast<std::int64_t>(bytes))));
  }
  const int number = file.get();
  SharedMemory made(std::move(file), bytes);
  made.reserve(0, kPageBytes);
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

void SharedMemory::reserve(std::size_t first, std::size_t bytes) const {
  check_file_limit(first + bytes);
  // In pieces: before Linux 6.10 a signal ends the call, and a timer could end each attempt at all of it.
  constexpr std::size_t kPiece = std::size_t{16} << 20;
  for (std::size_t done = 0; done < bytes; done += kPiece) {
    const std::size_t size = std::min(kPiece, bytes - done);
    if (retry([&] {
          return ::fallocate(file_.get(), 0, static_cast<off_t>(first + done), static_cast<off_t>(size));
        }) != 0) {
      throw_errno(fmt::format("cannot reserve {} of shared memory", human_bytes(static_cast<std::int64_t>(bytes))));
    }
  }
}

/// Of one rank, which alone writes them. On two cache lines of their own.
struct alignas(128) SharedReduction::Counters {
  std::atomic<std::uint32_t> published{0};  ///< parts
  std::atomic<std::uint32_t> added{0};      ///< parts of which it has added its slice
  std::atomic<std::uint32_t> left{0};       ///< it takes part no more
  std::atomic<std::uint32_t> changes{0};    ///< of the numbers above; the word on which others sleep
  std::atomic<std::uint32_t> sleepers{0};   ///< ranks that sleep on it; they write it
};

// The head, then the slots of the ranks, each with all parts.
std::vector<std::size_t> SharedReduction::offsets_in_first_slot(int ranks, std::span<const std::size_t> parts) {
  std::size_t offset = kPageBytes + rounded_up(static_cast<std::size_t>(ranks) * sizeof(Counters), kPageBytes);
  std::vector<std::size_t> offsets;
  for (const std::size_t part : parts) {
    offsets.push_back(offset);
    offset += rounded_up(part, kAlignment) * (part <= kSmall ? 3 : 1);
  }
  offsets.push_back(rounded_up(offset, kPageBytes));
  return offsets;
}

std::size_t SharedReduction::bytes_needed(int ranks, std::span<const std::size_t> parts) {
  const auto offsets = offsets_in_first_slot(ranks, parts);
  return offsets.front() + static_cast<std::size_t>(ranks) * (offsets.back() - offsets.front());
}

SharedReduction::Counters& SharedReduction::counters(int rank) const noexcept {
  return *std::launder(
      reinterpret_cast<Counters*>(memory_->data() + kPageBytes + static_cast<std::size_t>(rank) * sizeof(Counters)));
}

std::byte* SharedReduction::place(int rank, std::size_t index) const noexcept {
  return memory_->data() + static_cast<std::size_t>(rank) * (offsets_.back() - offsets_.front()) + offsets_[index];
}

std::byte* SharedReduction::copy(int rank, std::size_t index) const noexcept {
  return place(rank, index) + (1 + copies_) * rounded_up(options_.parts[index], kAlignment);
}

// Memory that was never written is zero, as the counters are at first. So no rank has to construct them before the
// others come.
SharedReduction::SharedReduction(std::shared_ptr<const SharedMemory> memory, Options options)
    : memory_(std::move(memory)),
      options_(std::move(options)),
      offsets_(offsets_in_first_slot(size(), options_.parts)) {
  static_assert(std::atomic<std::uint32_t>::is_always_lock_free);
  LOCKSTEP_ASSERT(memory_->size() >= bytes_needed(size(), options_.parts), "the memory is large enough");
  memory_->reserve(0, offsets_.front());
  memory_->reserve(static_cast<std::size_t>(part(0) - memory_->data()), offsets_.back() - offsets_.front());
  for (const pid_t process : options_.processes) {
    const bool is_this = process == ::getpid();  // ranks may be threads
    processes_.push_back(is_this ? Descriptor() : open_process(process));
    if (!is_this && !processes_.back().is_open()) {
      throw_errno(fmt::format("cannot watch process {} of another rank", process));
    }
  }
}

SharedReduction::~SharedReduction() { set(&Counters::left, 1); }

void SharedReduction::publish(std::size_t index, WriteMean write_mean) {
  if (is_small(index)) {
    std::memcpy(copy(options_.rank, index), part(index), options_.parts[index]);
  }
  round_.push_back({.part = index, .write_mean = write_mean});
  set(&Counters::published, ++published_);
  while (done_ < round_.size() && all_have_reached(&Counters::published, next_number())) {
    add_next();
  }
}

void SharedReduction::finish() {
  if (round_.empty()) {
    return;  // not a round: nobody else is waited for
  }
  while (done_ < round_.size()) {
    wait_for_all(&Counters::published, next_number());
    add_next();
  }
  wait_for_all(&Counters::added, last_divided_);
  round_.clear();
  done_ = 0;
  copies_ = 1 - copies_;
}

void SharedReduction::add_next() {
  const std::uint32_t number = next_number();
  const auto [index, write_mean] = round_[done_++];
  const std::size_t bytes = options_.parts[index];
  means_.clear();
  parts_.clear();
  if (is_small(index)) {
    means_.push_back(part(index));
    for (int rank = 0; rank < size(); ++rank) {
      parts_.push_back(copy(rank, index));
    }
    write_mean(means_, parts_, bytes);
    return;
  }
  const std::size_t slice = rounded_up((bytes + options_.processes.size() - 1) / options_.processes.size(), kAlignment);
  const std::size_t first = std::min(bytes, static_cast<std::size_t>(options_.rank) * slice);
  for (int rank = 0; rank < size(); ++rank) {
    means_.push_back(place(rank, index) + first);
    parts_.push_back(means_.back());
  }
  write_mean(means_, parts_, std::min(slice, bytes - first));
  last_divided_ = number;
  set(&Counters::added, number);
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

bool SharedReduction::all_have_reached(Counter counter, std::uint32_t value) const noexcept {
  for (int rank = 0; rank < size(); ++rank) {
    if (!has_reached((counters(rank).*counter).load(std::memory_order_acquire), value)) {
      return false;
    }
  }
  return true;
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
  AwakeClock awake;  // a suspended rank has waited for nobody
  const auto deadline = awake.read(began) + options_.timeout;
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
    const bool is_late = awake.read(std::chrono::steady_clock::now()) >= deadline;
    if (const std::string failure = find_failure(rank, is_late); has_come()) {
      return;
    } else if (!failure.empty()) {
      throw SharedReductionFailed(failure);
    }
  }
}

std::string SharedReduction::find_failure(int rank, bool is_late) const {
  const auto index = static_cast<std::size_t>(rank);
  pollfd process{.fd = processes_[index].get(), .events = POLLIN, .revents = 0};
  if (process.fd >= 0 && ::poll(&process, 1, 0) > 0) {
    return fmt::format("rank {} (process {}) has ended", rank, options_.processes[index]);
  }
  if (counters(rank).left.load(std::memory_order_acquire) != 0) {
    return fmt::format("rank {} takes part no more", rank);
  }
  if (is_late) {
    return fmt::format("timed out after {} ms of waiting for rank {}", options_.timeout.count(), rank);
  }
  return {};
}

}  // namespace lockstep
