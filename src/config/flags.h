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
  TextKind kind = TextKind::any;
  bool may_change = false;
};

struct Flags::Impl {
  std::vector<ProgramFlag> flags{};
  std::vector<std::string> positional_fields{};  ///< fields of TrainConfig; these come before the program's own
  std::vector<ProgramFlag> positionals{};
  bool of_tool = false;
};

// A public header declares it, and so would export it.
struct [[gnu::visibility("hidden")]] FlagsAccess;

struct FlagsAccess {
  static const std::vector<ProgramFlag>& flags(const Flags& flags) { return flags.impl_->flags; }
  static const std::vector<std::string>& positional_fields(const Flags& flags) {
    return flags.impl_->positional_fields;
  }
  static const std::vector<ProgramFlag>& positionals(const Flags& flags) { return flags.impl_->positionals; }
  static bool of_tool(const Flags& flags) { return flags.impl_->of_tool; }
  /// Flags of the lockstep tool. It does not know the program that a file is for, so it does not read [program].
  static Flags for_tool() {
    Flags flags;
    flags.impl_->of_tool = true;
    return flags;
  }
};

}  // namespace lockstep
