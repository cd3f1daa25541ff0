// Text for signal handlers: allocates no memory and takes no lock. Torch-free.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <unistd.h>

namespace lockstep {

/// One line in fixed memory; longer text is cut.
class LineBuffer {
 public:
  LineBuffer& add(std::string_view text) noexcept {
    const std::size_t size = std::min(text.size(), text_.size() - 1 - size_);  // room for the newline
    std::copy_n(text.data(), size, text_.data() + size_);
    size_ += size;
    return *this;
  }
  LineBuffer& add(std::integral auto number) noexcept { return add_number(number, 10); }
  LineBuffer& add_hex(std::uintptr_t number) noexcept { return add("0x").add_number(number, 16); }

  std::string_view text() const noexcept { return {text_.data(), size_}; }

  /// Writes the line, with one call if possible, and clears the buffer.
  void write_to(int fd) noexcept {
    text_[size_++] = '\n';
    for (std::size_t done = 0; done < size_;) {
      const ssize_t size = write(fd, text_.data() + done, size_ - done);
      if (size <= 0) {
        break;
      }
      done += static_cast<std::size_t>(size);
    }
    size_ = 0;
  }

 private:
  LineBuffer& add_number(std::integral auto number, int base) noexcept {
    std::array<char, 24> digits;
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number, base).ptr;
    return add({digits.data(), static_cast<std::size_t>(end - digits.data())});
  }

  std::array<char, 512> text_;
  std::size_t size_ = 0;
};

}  // namespace lockstep
