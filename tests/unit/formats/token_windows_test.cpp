#include "formats/token_windows.h"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/message_of.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

template <class Token>
void check_windows() {
  for (const std::int64_t context : {1, 2, 7, 8, 9, 64, 100}) {
    for (const std::int64_t stride : {1, 3, 64}) {
      std::vector<Token> tokens(301);
      std::iota(tokens.begin(), tokens.end(), Token{65'300});  // numbers that a sign would spoil
      const TokenWindows windows(std::as_bytes(std::span(tokens)), sizeof(Token), context, stride);
      ASSERT_EQ(windows.size(), (300 - context) / stride + 1);
      std::vector<std::int64_t> input(static_cast<std::size_t>(context));
      std::vector<std::int64_t> target(static_cast<std::size_t>(context));
      for (std::int64_t window = 0; window < windows.size(); ++window) {
        windows.read(window, input.data(), target.data());
        for (std::int64_t i = 0; i < context; ++i) {
          const auto at = static_cast<std::size_t>(window * stride + i);
          ASSERT_EQ(input[static_cast<std::size_t>(i)], std::int64_t{tokens[at]});
          ASSERT_EQ(target[static_cast<std::size_t>(i)], std::int64_t{tokens[at + 1]});
        }
      }
    }
  }
}

TEST(TokenWindows, GiveTokensAndThoseThatFollow) {
  check_windows<std::uint16_t>();
  check_windows<std::uint32_t>();
}

TEST(TokenWindows, RejectInvalidFiles) {
  const auto message = [](std::size_t bytes, std::int64_t token_bytes, std::int64_t context, std::int64_t stride) {
    const std::vector<std::byte> file(bytes);
    return message_of<DataError>([&] { const TokenWindows windows(file, token_bytes, context, stride); });
  };
  EXPECT_EQ(message(10, 2, 4, 4), "no error");
  EXPECT_EQ(message(10, 2, 5, 4), "found 5 tokens, expected at least 5 and one more");
  EXPECT_THAT(message(11, 2, 4, 4), HasSubstr("found 11 bytes, expected a multiple of 2, the size of a token"));
  EXPECT_THAT(message(10, 4, 1, 1), HasSubstr("a multiple of 4, the size of a token"));
  EXPECT_THAT(message(10, 2, 0, 1), HasSubstr("context is 0"));
  EXPECT_THAT(message(10, 2, 1, 0), HasSubstr("stride is 0"));
}

}  // namespace
}  // namespace lockstep
