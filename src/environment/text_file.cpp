#include "environment/text_file.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/text.h"

namespace lockstep {

std::optional<std::string> read_text_file(const std::string& path) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
  std::error_code error;
  std::ifstream file;
  if (std::filesystem::is_regular_file(path, error)) {  // opening a pipe would block
    file.open(path, std::ios::binary);
  }
  if (!file.is_open()) {
    return std::nullopt;
  }
  std::array<char, 4096> piece;
  std::string text;
  do {
    file.read(piece.data(), piece.size());
    text.append(piece.data(), static_cast<std::size_t>(file.gcount()));
  } while (file && text.size() < kMaxBytes);
  return text;
}

std::int64_t number_after(std::string_view text, std::string_view label) {
  for (const std::string& line : split(text, '\n')) {
    if (line.starts_with(label)) {
      const std::string_view rest = trim(std::string_view(line).substr(label.size()));
      return parse_int(rest.substr(0, rest.find(' '))).value_or(0);
    }
  }
  return 0;
}

std::vector<std::string> stat_fields(std::string_view stat) {
  const std::size_t name_end = stat.rfind(')');
  return name_end == std::string_view::npos ? std::vector<std::string>() : split(trim(stat.substr(name_end + 1)), ' ');
}

}  // namespace lockstep
