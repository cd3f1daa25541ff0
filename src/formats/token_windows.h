// Token numbers in a file, one after another, and windows of them. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

/// Windows of `context` tokens over a file of little-endian numbers; window i begins at token i x stride, and one more
/// token follows it.
class TokenWindows {
 public:
  /// `token_bytes`: 2 or 4. Throws: DataError that names no file (not whole tokens, fewer than one window).
  TokenWindows(std::span<const std::byte> file, std::int64_t token_bytes, std::int64_t context, std::int64_t stride);

  std::int64_t size() const noexcept { return size_; }
  std::int64_t context() const noexcept { return context_; }
  /// The window's tokens, and those that follow each of them. Both have `context` elements.
  void read(std::int64_t window, std::int64_t* input, std::int64_t* target) const noexcept;

 private:
  std::span<const std::byte> file_;
  std::int64_t token_bytes_;
  std::int64_t context_;
  std::int64_t stride_;
  std::int64_t size_ = 0;
};

}  // namespace lockstep
