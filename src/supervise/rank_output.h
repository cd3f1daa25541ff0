// What one rank prints: as whole harmless lines with the rank in front for the terminal, byte by byte for a file.
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

/// Where one rank's output goes. `file` is open if the route names one.
struct RankDestination {
  OutputRoute route{};
  std::unique_ptr<WritableFile> file{};
};
/// Creates the file if the route needs it. Throws: IoError.
RankDestination open_destination(const OutputRoute& route, FileSystem& fs, const std::filesystem::path& file);

/// Both streams of one rank.
class RankOutput {
 public:
  using Sink = std::function<void(OutputStream, std::string)>;
  static constexpr std::size_t kTailLines = 20;

  /// With more than one rank, lines get "[rank3]: " in front, unless they have it. The sink gets what the route sends
  /// to the terminal.
  RankOutput(int rank, int world_size, Sink sink, RankDestination destination = {});

  void feed(OutputStream stream, std::string_view bytes);
  void finish(OutputStream stream);
  /// A line for standard error that did not come through its pipe.
  void line(std::string_view text);
  /// The same, without the rank in front: the main rank speaks for all.
  void report_line(std::string_view text);
  const std::deque<std::string>& error_tail() const noexcept { return error_tail_; }
  /// Whether all of the stream is kept in a file, so that the terminal may miss a part.
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
