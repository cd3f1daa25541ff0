// What one rank prints, as whole harmless lines with the rank in front. Torch-free.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <string_view>

namespace lockstep {

enum class OutputStream { out, err };

/// Bytes to lines. '\r', '\n' and "\r\n" end a line; an empty line ended by '\r' is none (a redrawn progress bar).
class LineSplitter {
 public:
  using OnLine = std::function<void(std::string_view)>;
  static constexpr std::size_t kMaxLine = 64 << 10;  ///< longer lines are cut into pieces

  void feed(std::string_view bytes, const OnLine& on_line);
  void finish(const OnLine& on_line);  ///< the last line, if it was not ended

 private:
  std::string partial_{};
  bool after_return_ = false;
};

/// Both streams of one rank.
class RankOutput {
 public:
  using Sink = std::function<void(OutputStream, std::string)>;
  static constexpr std::size_t kTailLines = 20;

  /// With more than one rank, lines get "[rank3]: " in front, unless they have it.
  RankOutput(int rank, int world_size, Sink sink);

  void feed(OutputStream stream, std::string_view bytes);
  void finish(OutputStream stream);
  /// A line that did not come through a pipe.
  void line(OutputStream stream, std::string_view text);
  const std::deque<std::string>& error_tail() const noexcept { return error_tail_; }

 private:
  LineSplitter& splitter(OutputStream stream) noexcept { return stream == OutputStream::out ? out_ : err_; }

  std::string prefix_{};
  Sink sink_;
  LineSplitter out_{};
  LineSplitter err_{};
  std::deque<std::string> error_tail_{};
};

}  // namespace lockstep
