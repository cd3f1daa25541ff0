// Sums over the ranks of one machine, in memory that they share. Torch-free.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
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
  /// Throws: std::system_error.
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

 private:
  SharedMemory(Descriptor file, std::size_t size);

  Descriptor file_;
  std::string address_{};
  std::size_t size_;
  std::byte* data_;
};

/// Writes the sum of the elements of `parts` to `sum`, in the order of the parts; `sum` may be one of them. `bytes` is
/// the size of each.
using AddParts = void (*)(std::byte* sum, std::span<const std::byte* const> parts, std::size_t bytes);

/// Each rank has one, over the same memory. Only one thread uses it, and every rank makes the same calls: any number of
/// publish(), then a finish() for each of them.
///
/// Note [Shared reduction]: a rank copies its part to its own slot, says so, and waits for the same part of the others.
/// A small part is then added by every rank, a large one in slices of which each rank adds one. Every rank adds in the
/// order of the ranks, so that results are the same everywhere and at every timing. Ranks tell each other by counters
/// that only grow; a rank that waits spins for a moment, then sleeps (futex). A slot is written again after the others
/// have said that they have read it.
class SharedReduction {
 public:
  struct Options {
    int rank = 0;
    std::vector<pid_t> processes{};  ///< of all ranks
    std::size_t capacity = 0;        ///< bytes of the parts that are published together, each rounded up to kAlignment
    std::chrono::milliseconds timeout{};
    bool spins = true;  ///< false: there are more ranks than cores
  };
  static constexpr std::size_t kAlignment = 64;
  static constexpr std::size_t kSmall = std::size_t{64} << 10;  ///< bytes; larger parts are added in slices

  static std::size_t bytes_needed(int ranks, std::size_t capacity);

  /// `memory` has bytes_needed(). It is zero at first; one rank creates it. Throws: std::system_error if the process of
  /// another rank has ended or cannot be watched.
  SharedReduction(SharedMemory memory, Options options);
  ~SharedReduction();
  SharedReduction(const SharedReduction&) = delete;
  SharedReduction& operator=(const SharedReduction&) = delete;

  /// Where this rank writes its next part. Waits until no rank reads it any more. Throws: SharedReductionFailed.
  std::byte* next_part(std::size_t bytes);
  /// The part is written.
  void publish(AddParts add);
  /// Writes the sum over all ranks of the oldest part that was not finished to `sum`. Throws: SharedReductionFailed.
  void finish(std::byte* sum);

 private:
  struct Counters;
  struct Part {
    std::size_t offset = 0;
    std::size_t bytes = 0;
    AddParts add = nullptr;
  };
  using Counter = std::atomic<std::uint32_t> Counters::*;

  Counters& counters(int rank) const noexcept;
  std::byte* slot(int rank) const noexcept;
  int size() const noexcept { return static_cast<int>(options_.processes.size()); }
  void set(Counter counter, std::uint32_t value);
  void wait_for_all(Counter counter, std::uint32_t value);
  void wait_for(int rank, Counter counter, std::uint32_t value);
  /// Why there is nothing to wait for; "": there is.
  std::string find_failure(int rank, std::chrono::steady_clock::time_point deadline) const;

  SharedMemory memory_;
  Options options_;
  std::vector<Descriptor> processes_{};  // -1: this process
  std::vector<Part> pending_{};          // published since all were finished
  std::size_t done_ = 0;                 // of them, in their order
  Part next_{};
  std::size_t used_ = 0;                   // bytes of the slot
  std::vector<const std::byte*> slots_{};  // of the part that is added; kept, so that a step allocates nothing
  std::uint32_t published_ = 0;
  std::uint32_t finished_ = 0;
};

}  // namespace lockstep
