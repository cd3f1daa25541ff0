// Memory for tensors on the CPU that runs out, as that of a GPU does.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <utility>

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

namespace lockstep {

/// While it exists, the new tensors of the process share so many bytes, and one that does not fit is a
/// c10::OutOfMemoryError. One at a time.
class LimitedMemory {
 public:
  explicit LimitedMemory(std::int64_t bytes = std::numeric_limits<std::int64_t>::max())
      : before_(c10::GetCPUAllocator()) {
    allocator().begin(before_, bytes);
    c10::SetCPUAllocator(&allocator());
  }
  ~LimitedMemory() { c10::SetCPUAllocator(before_); }
  LimitedMemory(const LimitedMemory&) = delete;
  LimitedMemory& operator=(const LimitedMemory&) = delete;

  /// Bytes of the tensors that were made in it and still exist.
  static std::int64_t used() { return allocator().used(); }
  /// The most that used() was in it.
  static std::int64_t peak() { return allocator().peak(); }

 private:
  class Allocator final : public c10::Allocator {
   public:
    void begin(c10::Allocator* real, std::int64_t limit) {
      real_ = real;
      limit_ = limit;
      peak_ = used_.load();
    }
    std::int64_t used() const { return used_; }
    std::int64_t peak() const { return peak_; }

    c10::DataPtr allocate(std::size_t bytes) override {
      const auto size = static_cast<std::int64_t>(bytes);
      const std::int64_t used = used_.fetch_add(size) + size;
      if (used > limit_) {
        used_ -= size;
        TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", size, " bytes of ",
                         limit_.load());
      }
      for (std::int64_t peak = peak_; used > peak && !peak_.compare_exchange_weak(peak, used);) {
      }
      c10::DataPtr memory = real_->allocate(kBefore + bytes);
      auto* place = static_cast<std::byte*>(memory.get());
      new (place) Block{size, used_, std::move(memory)};
      return {place + kBefore, place + kBefore, &release, c10::Device(c10::kCPU)};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &release; }
    void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

   private:
    struct Block {
      std::int64_t size;
      std::atomic<std::int64_t>& used;
      c10::DataPtr memory;
    };
    // Lies before the bytes of the tensor: LibTorch's raw memory has its own address as its context.
    static constexpr std::size_t kBefore = 64;
    static_assert(sizeof(Block) <= kBefore);
    static void release(void* context) {
      auto* block = reinterpret_cast<Block*>(static_cast<std::byte*>(context) - kBefore);
      block->used -= block->size;
      const c10::DataPtr memory = std::move(block->memory);
      block->~Block();
    }

    c10::Allocator* real_ = nullptr;
    std::atomic<std::int64_t> limit_ = 0;
    std::atomic<std::int64_t> used_ = 0;
    std::atomic<std::int64_t> peak_ = 0;
  };
  // Tensors may outlive the object.
  static Allocator& allocator() {
    static Allocator instance;
    return instance;
  }

  c10::Allocator* before_;
};

}  // namespace lockstep
