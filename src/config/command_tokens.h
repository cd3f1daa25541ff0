// The form of a command line: which tokens are flags, values and words. Torch-free.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// A flag as it was written: "--optim-lr 0.1", "--optim-lr=0.1", "-r".
struct FlagToken {
  std::string written{};                  ///< "--optim-lr"
  std::string name{};                     ///< "optim_lr"
  std::optional<std::string> attached{};  ///< the text behind "="

  bool is_help() const { return written == "-h" || (written == "--help" && !attached); }
  bool is_help_all() const { return written.starts_with("--") && name == "help_all" && !attached; }
  /// The flag with its value, for messages. Printable.
  std::string with(std::string_view value) const;
};

class CommandTokens {
 public:
  explicit CommandTokens(std::span<const std::string> args) noexcept : rest_(args) {}

  /// The tokens that were not taken.
  std::span<const std::string> rest() const noexcept { return rest_; }
  const std::string& take();
  /// nullopt: the next token is a word or "--", or there is none.
  std::optional<FlagToken> take_flag();
  /// The next token if it can be the value of a flag; else null.
  const std::string* value() const;

 private:
  std::span<const std::string> rest_;
};

/// In names, "-" and "_" are equal: this has "_".
std::string normal_name(std::string_view name);
/// "LOCKSTEP_CFG_", "optim.lr" -> "LOCKSTEP_CFG_OPTIM_LR".
std::string variable_name(std::string_view prefix, std::string_view name);

}  // namespace lockstep
