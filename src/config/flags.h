// The names of settings, and the program's own flags. Torch-free.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include <lockstep/config/config_io.h>

namespace lockstep {

using FlagTarget = std::variant<std::string*, std::int64_t*, double*, bool*>;

struct ProgramFlag {
  std::string name{};  ///< with `_`
  FlagTarget target{};
  std::string help{};
};

struct Flags::Impl {
  std::vector<ProgramFlag> flags{};
  std::vector<std::string> positional_fields{};  ///< fields of TrainConfig; these come before the program's own
  std::vector<ProgramFlag> positionals{};
};

struct FlagsAccess {
  static const std::vector<ProgramFlag>& flags(const Flags& flags) { return flags.impl_->flags; }
  static const std::vector<std::string>& positional_fields(const Flags& flags) {
    return flags.impl_->positional_fields;
  }
  static const std::vector<ProgramFlag>& positionals(const Flags& flags) { return flags.impl_->positionals; }
};

/// In names, "-" and "_" are equal.
std::string normal_name(std::string_view name);
/// "optim.lr" -> "LOCKSTEP_CFG_OPTIM_LR".
std::string environment_name(std::string_view field);

}  // namespace lockstep
