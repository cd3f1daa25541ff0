#include "report/metric_file.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

std::string read_metric_file(FileSystem& fs, const std::filesystem::path& file) {
  constexpr std::int64_t kMaxBytes = std::int64_t{4} << 30;
  return fs.exists(file) ? read_file(fs, file, kMaxBytes) : std::string{};
}

void truncate_metric_file(FileSystem& fs, const std::filesystem::path& file,
                          const std::function<bool(std::string_view)>& keep) {
  const std::string before = read_metric_file(fs, file);
  std::string after;
  std::string_view left = before;
  for (std::size_t end = left.find('\n'); end != std::string_view::npos; end = left.find('\n')) {
    if (keep(left.substr(0, end))) {
      after += left.substr(0, end + 1);
    }
    left.remove_prefix(end + 1);
  }
  if (after != before) {
    write_file(fs, file, after);
  }
}

void append_text(WritableFile& file, std::string_view text) { file.append(std::as_bytes(std::span(text))); }

}  // namespace lockstep
