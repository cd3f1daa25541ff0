// Sums over the ranks of one machine, in memory that they share. Torch-free.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/types.h>

#include "base/descriptor.h"

namespace lockstep {

/// Another rank has ended, or did not come in time.
class SharedReductionFailed final : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Anonymous memory of this process that others open by its address. It disappears with the last process that uses it,
/// however that ends.
class SharedMemory {
 public:
  /// Zeros. Throws: std::system_error.
  static SharedMemory create(std::size_t bytes);
  /// `address`: that of another process on this machine. Throws: std::system_error; std::runtime_error if what is there
  /// is not this memory, for example because the process has another view of process ids.
  static SharedMemory open(const std::string& address);
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  const std::string& address() const noexcept { return address_; }
  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }

  /// Takes the memory of these bytes from the system now: if it were missing later, the rank would end with SIGBUS.
  /// Throws: std::system_error.
  void reserve(std::size_t first, std::size_t bytes) const;

 private:
  SharedMemory(Descriptor file, std::size_t size);

  Descriptor file_;
  std::string address_{};
  std::size_t size_;
  std::byte* data_;
};

/// Writes the mean of `parts`, element by element and added in their order, to each of `means`, which may be the parts.
/// `bytes` is the size of each.
using WriteMean = void (*)(std::span<std::byte* const> means, std::span<const std::byte* const> parts,
                           std::size_t bytes);

/// Each rank has one, over the same memory. Only one thread uses it, and every rank makes the same calls: publish() for
/// some of the parts, then finish().
///
/// Note [Shared reduction]: the parts of all ranks lie in the shared memory. A large part is divided into slices, one
/// for each rank. When all ranks have published the part, a rank reads its slice from all of them and writes the mean
/// back to all of them, so that nothing else is copied. A small part is copied when it is published, and each rank
/// computes the whole mean from the copies, because that takes one wait instead of two. There are two copies, for
/// rounds (a finish() each) in turn: who publishes in a round has finished the one before, so a copy is written only
/// after all have read what it had. Every rank adds in the order of the ranks, so that results are the same everywhere
/// and at every timing. Ranks tell each other by counters that only grow; a rank that waits spins for a moment, then
/// sleeps (futex).
class SharedReduction {
 public:
  struct Options {
    int rank = 0;
    std::vector<pid_t> processes{};       ///< of all ranks
    std::vector<std::size_t> parts{};     ///< bytes of each
    std::chrono::milliseconds timeout{};  ///< of the time in which this process was not suspended
    bool spins = true;                    ///< false: there are more ranks than cores
  };
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t kSmall = std::size_t{8} << 10;  ///< bytes; larger parts are divided into slices

  /// Of the shared memory.
  static std::size_t bytes_needed(int ranks, std::span<const std::size_t> parts);

  /// `memory` has bytes_needed(). It is zero at first; one rank creates it. Throws: std::system_error if there is no
  /// memory left for the parts of this rank, or the process of another rank has ended or cannot be watched.
  SharedReduction(std::shared_ptr<const SharedMemory> memory, Options options);
  ~SharedReduction();
  SharedReduction(const SharedReduction&) = delete;
  SharedReduction& operator=(const SharedReduction&) = delete;

  const std::shared_ptr<const SharedMemory>& memory() const noexcept { return memory_; }
  /// Where a part of this rank lies. Others write to it from publish() to finish().
  std::byte* part(std::size_t index) const noexcept { return place(options_.rank, index); }
  /// The part is written. Never waits: it also does what is possible now of earlier parts.
  void publish(std::size_t index, WriteMean write_mean);
  /// Turns each part that was published into its mean over the ranks. Throws: SharedReductionFailed.
  void finish();

 private:
  struct Counters;
  struct Published {
    std::size_t part = 0;
    WriteMean write_mean = nullptr;
  };
  using Counter = std::atomic<std::uint32_t> Counters::*;

  static std::vector<std::size_t> offsets_in_first_slot(int ranks, std::span<const std::size_t> parts);
  int size() const noexcept { return static_cast<int>(options_.processes.size()); }
  bool is_small(std::size_t index) const noexcept { return options_.parts[index] <= kSmall; }
  Counters& counters(int rank) const noexcept;
  std::byte* place(int rank, std::size_t index) const noexcept;
  /// Of a small part, for this round.
  std::byte* copy(int rank, std::size_t index) const noexcept;
  /// Of the oldest part that this rank has not added, counted from the beginning.
  std::uint32_t next_number() const noexcept {
    return published_ - static_cast<std::uint32_t>(round_.size() - done_) + 1;
  }
  /// Adds that part, or this rank's slice of it. All ranks have published it.
  void add_next();
  void set(Counter counter, std::uint32_t value);
  bool all_have_reached(Counter counter, std::uint32_t value) const noexcept;
  void wait_for_all(Counter counter, std::uint32_t value);
  void wait_for(int rank, Counter counter, std::uint32_t value);
  /// Why there is nothing to wait for; "": there is.
  std::string find_failure(int rank, bool is_late) const;

  const std::shared_ptr<const SharedMemory> memory_;
  const Options options_;
  const std::vector<std::size_t> offsets_;  // of the parts of rank 0; the last one: where rank 1 begins
  std::vector<Descriptor> processes_{};     // -1: this process
  std::vector<Published> round_{};          // published since the last finish()
  std::size_t done_ = 0;                    // parts of the round that this rank has added
  std::size_t copies_ = 0;                  // which copies this round uses, 0 or 1
  std::uint32_t published_ = 0;             // parts, since the beginning
  std::uint32_t last_divided_ = 0;          // the last of these parts that was divided into slices
  // Arguments of WriteMean, kept so that a step allocates nothing.
  std::vector<std::byte*> means_{};
  std::vector<const std::byte*> parts_{};
};

}  // namespace lockstep
