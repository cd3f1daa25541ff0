// The program's own flags. Torch-free.
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

}  // namespace lockstep
