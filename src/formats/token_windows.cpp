#include "formats/token_windows.h"

#include <cstring>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/assertion.h"
#include "base/vectorized.h"

namespace lockstep {
namespace {

// One pass over the window: each token is read once, and written as an input and as the target of its predecessor.
template <class Token>
[[gnu::always_inline]] inline void widen(const std::byte* tokens, std::int64_t context, std::int64_t* __restrict input,
                                         std::int64_t* __restrict target) noexcept {
  for (std::int64_t i = 0; i < context; ++i) {
    Token here;
    Token next;
    std::memcpy(&here, tokens + static_cast<std::size_t>(i) * sizeof(Token), sizeof(Token));
    std::memcpy(&next, tokens + static_cast<std::size_t>(i + 1) * sizeof(Token), sizeof(Token));
    input[i] = here;
    target[i] = next;
  }
}

LOCKSTEP_VECTORIZED void widen_u16(const std::byte* tokens, std::int64_t context, std::int64_t* input,
                                   std::int64_t* target) noexcept {
  widen<std::uint16_t>(tokens, context, input, target);
}

LOCKSTEP_VECTORIZED void widen_u32(const std::byte* tokens, std::int64_t context, std::int64_t* input,
                                   std::int64_t* target) noexcept {
  widen<std::uint32_t>(tokens, context, input, target);
}

}  // namespace

TokenWindows::TokenWindows(std::span<const std::byte> file, std::int64_t token_bytes, std::int64_t context,
                           std::int64_t stride)
    : file_(file), token_bytes_(token_bytes), context_(context), stride_(stride) {
  LOCKSTEP_ASSERT(token_bytes == 2 || token_bytes == 4, "tokens have 2 or 4 bytes");
  if (context < 1 || stride < 1) {
    throw DataError(fmt::format("context is {} and stride is {}, expected 1 or more", context, stride));
  }
  const auto bytes = static_cast<std::int64_t>(file.size());
  if (bytes % token_bytes != 0) {
    throw DataError(fmt::format("found {} bytes, expected a multiple of {}, the size of a token", bytes, token_bytes),
                    "the file is truncated, or its tokens have another type");
  }
  const std::int64_t tokens = bytes / token_bytes;
  if (tokens - 1 < context) {
    throw DataError(fmt::format("found {} tokens, expected at least {} and one more", tokens, context));
  }
  size_ = (tokens - 1 - context) / stride + 1;
}

void TokenWindows::read(std::int64_t window, std::int64_t* input, std::int64_t* target) const noexcept {
  const std::byte* const begin = file_.data() + window * stride_ * token_bytes_;
  (token_bytes_ == 2 ? widen_u16 : widen_u32)(begin, context_, input, target);
}

}  // namespace lockstep
