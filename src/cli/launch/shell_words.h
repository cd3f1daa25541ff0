// Words for a shell. Torch-free.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// One word of a shell command: in single quotes if it contains a character that a shell may change.
inline std::string shell_quoted(std::string_view text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./,:=@%+";
  // zsh expands a word that begins with =.
  if (!text.empty() && text.front() != '=' && text.find_first_not_of(kPlain) == std::string_view::npos) {
    return std::string(text);
  }
  std::string quoted = "'";
  for (const char c : text) {
    quoted += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return quoted + "'";
}

/// A command that can be pasted into a shell.
inline std::string shell_command(std::span<const std::string> words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : " ") + shell_quoted(word);
  }
  return text;
}

}  // namespace lockstep
