// Windows of consecutive tokens in a file of token numbers. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

/// Windows of `context` tokens over a file of little-endian numbers. Window i starts at token i x stride; one more
/// token must follow it.
class TokenWindows {
 public:
  /// `token_bytes`: 2 or 4. Throws: DataError without a file name (incomplete tokens, fewer than one window).
  TokenWindows(std::span<const std::byte> file, std::int64_t token_bytes, std::int64_t context, std::int64_t stride);

  std::int64_t size() const noexcept { return size_; }
  std::int64_t context() const noexcept { return context_; }
  /// The tokens of the window, and the token after each of them. Both have `context` elements.
  void read(std::int64_t window, std::int64_t* input, std::int64_t* target) const noexcept;

 private:
  std::span<const std::byte> file_;
  std::int64_t token_bytes_;
  std::int64_t context_;
  std::int64_t stride_;
  std::int64_t size_ = 0;
};

}  // namespace lockstep
