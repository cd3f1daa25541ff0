// Output of one rank: complete, sanitized lines with the rank as prefix for the terminal, unchanged bytes for a file.
// Torch-free.
#pragma once

#include <cstddef>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <lockstep/base/file_system.h>
#include <lockstep/supervise/output_route.h>

namespace lockstep {

enum class OutputStream { out, err };

/// Bytes to lines. '\r', '\n' and "\r\n" end a line; an empty line before '\r' is ignored (a redrawn progress bar).
class LineSplitter {
 public:
  using OnLine = std::function<void(std::string_view)>;
  static constexpr std::size_t kMaxLine = 64 << 10;  ///< longer lines are cut into pieces

  void feed(std::string_view bytes, const OnLine& on_line);
  void finish(const OnLine& on_line);  ///< emits the last line if it has no end

 private:
  std::string partial_{};
  bool after_return_ = false;
};

/// Destination of one rank's output. `file` is open if the route uses a file.
struct RankDestination {
  OutputRoute route{};
  std::unique_ptr<WritableFile> file{};
};
/// Creates the file if the route needs it. Throws: IoError.
RankDestination open_destination(const OutputRoute& route, FileSystem& fs, const std::filesystem::path& file);

/// Standard output and standard error of one rank.
class RankOutput {
 public:
  using Sink = std::function<void(OutputStream, std::string)>;
  static constexpr std::size_t kTailLines = 20;

  /// With more than one rank, lines get the prefix "[rank3]: " if they do not have it. The sink receives the lines for
  /// the terminal.
  RankOutput(int rank, int world_size, Sink sink, RankDestination destination = {});

  void feed(OutputStream stream, std::string_view bytes);
  void finish(OutputStream stream);
  /// Adds a line for standard error that did not arrive through its pipe.
  void line(std::string_view text);
  /// The same without the prefix, for reports of the main rank.
  void report_line(std::string_view text);
  const std::deque<std::string>& error_tail() const noexcept { return error_tail_; }
  /// Whether a file has the complete stream, so that lines for the terminal may be dropped.
  bool is_kept(OutputStream stream) const noexcept;

 private:
  bool is_shown(OutputStream stream) const noexcept;
  void show(OutputStream stream, std::string_view text);
  void keep(std::string_view bytes) noexcept;
  void keep_line(std::string_view text) noexcept;
  LineSplitter& splitter(OutputStream stream) noexcept { return stream == OutputStream::out ? out_ : err_; }

  std::string prefix_{};
  Sink sink_;
  RankDestination destination_{};
  LineSplitter out_{};
  LineSplitter err_{};
  std::deque<std::string> error_tail_{};
};

}  // namespace lockstep
