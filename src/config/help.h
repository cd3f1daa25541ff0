// Parts of --help that programs and the tool share. Torch-free.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <lockstep/config/train_config.h>

namespace lockstep {

/// A flag, as --help and completion show it.
struct FlagRow {
  std::string_view name{};   ///< "dry-run"
  std::string_view value{};  ///< "FILE", "none|node"; "": the flag takes none
  std::string_view help{};
  std::string_view letter{};  ///< "-h"; "": none
};

std::string flag_text(const FlagRow& flag);  ///< "-h, --help", "--config FILE"

/// Flags of every program that are not settings.
inline constexpr FlagRow kProgramFlags[] = {
    {"config", "FILE", "settings from a .toml or .json file"},
    {"print-config", "", "print all settings with their origin and exit"},
    {"dry-run", "", "print the plan and exit"},
    {"hardware", "FILE", "plan for the machine that FILE describes; implies --dry-run"},
    {"help", "", "print the flags that are used most and exit", "-h"},
    {"help-all", "", "print all flags and exit"},
};

/// Lays out flags and their help for a terminal of the given width.
class HelpLayout {
 public:
  explicit HelpLayout(int width);

  std::string paragraph(std::string_view text) const;
  /// "  --name SYNTAX        help", with the help wrapped in its column.
  std::string entry(const std::string& name, std::string_view help) const;
  std::string entry(const FlagRow& flag) const;

 private:
  std::string fitted(const std::string& name) const;

  std::size_t width_;
  std::size_t column_;  // of the help
};

/// The flags that every program of lockstep has: those that most users need, or all.
std::string settings_help(const TrainConfig& defaults, const HelpLayout& layout, bool all);

}  // namespace lockstep
