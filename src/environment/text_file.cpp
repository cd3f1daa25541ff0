#include "environment/text_file.h"

#include <filesystem>
#include <fstream>
#include <system_error>

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
  std::string text(kMaxBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

}  // namespace lockstep
