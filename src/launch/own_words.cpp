#include "launch/own_words.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "base/text.h"

namespace lockstep {

std::vector<std::string> own_words(const std::vector<std::string>& given) {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  const std::string cmdline{std::istreambuf_iterator<char>(in), {}};
  std::error_code unreadable;
  return words_of(cmdline, std::filesystem::read_symlink("/proc/self/exe", unreadable).filename().string(), given);
}

std::vector<std::string> words_of(std::string_view cmdline, std::string_view executable,
                                  const std::vector<std::string>& given) {
  if (!cmdline.ends_with('\0')) {
    return given;
  }
  cmdline.remove_suffix(1);
  std::vector<std::string> words = split(cmdline, '\0');
  const auto program = std::filesystem::path(given.empty() ? "" : given.front()).filename();
  const bool has_program = std::ranges::any_of(words, [&](const std::string& word) {
    const auto name = std::filesystem::path(word).filename();
    return !name.empty() && (name == program || name == executable);
  });
  return has_program ? words : given;
}

}  // namespace lockstep
