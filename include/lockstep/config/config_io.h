// lockstep/config/config_io.h
//
// Flags, LOCKSTEP_CFG_* variables and a TOML or JSON file -> TrainConfig, and TrainConfig -> text. Torch-free.
//
// Precedence: flag, then LOCKSTEP_CFG_<SECTION>_<KEY>, then --config FILE, then the defaults in code.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/base/variables.h>
#include <lockstep/config/program_value.h>
#include <lockstep/config/train_config.h>

namespace [[gnu::visibility("default")]] lockstep {

/// What the text of a flag of the program may be.
enum class TextKind {
  any,
  existing_path,  ///< of a file or a directory that must exist before any rank starts; an empty text names none
};

/// The program's own flags and positional arguments: they appear in --help, "did you mean" and --print-config. The
/// section [program] of a --config file and the variables LOCKSTEP_CFG_PROGRAM_<NAME> set them too. The values behind
/// the pointers are the defaults; they are written only if parsing succeeds. The pointers must outlive the parsing.
class Flags {
 public:
  Flags();
  Flags(Flags&&) noexcept = default;
  Flags& operator=(Flags&&) noexcept = default;
  Flags& add(std::string name, std::string* value, std::string help, TextKind kind = TextKind::any);
  Flags& add(std::string name, std::int64_t* value, std::string help);
  Flags& add(std::string name, double* value, std::string help);
  Flags& add(std::string name, bool* value, std::string help);
  /// Makes the next positional argument a field of TrainConfig: after positional("max_epochs"), `./train 10` means
  /// `./train --max_epochs 10`. Fields come before the program's own positional arguments.
  Flags& positional(std::string field);
  /// Optional, in the order of the calls.
  Flags& positional(std::string name, std::string* value, std::string help, TextKind kind = TextKind::any);
  Flags& positional(std::string name, std::int64_t* value, std::string help);
  /// This flag or positional argument, which was added before, does not change what is trained, such as a directory for
  /// predictions: a run may be resumed with another value without a warning. Throws: ConfigError (not added).
  Flags& may_change(std::string name);

 private:
  friend struct FlagsAccess;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// What one command line asks for.
struct Invocation {
  TrainConfig config{};
  std::map<std::string, std::string>
      origins{};  ///< "optim.lr" -> "flag", "environment LOCKSTEP_CFG_OPTIM_LR", "file run.toml", "program", "default"
  bool help = false;
  bool help_all = false;  ///< help with all settings
  bool print_config = false;
  bool dry_run = false;                   ///< print the plan, start no process (implied by hardware_file)
  std::filesystem::path hardware_file{};  ///< plan for the machine that this file describes
  std::filesystem::path config_file{};    ///< that was read; "": none
  std::vector<std::string> warnings{};    ///< settings of a file that have no effect
};

/// Parses a command line (without argv[0]). Throws: ConfigError with all problems: unknown names with "did you mean",
/// values that do not parse, and the problems that check_config() finds.
Invocation parse_invocation(const TrainConfig& defaults, std::span<const std::string> args, const Variables& variables,
                            const Flags& flags = {});

/// The problems of a configuration on any machine: ranges, and contradictions between fields.
std::vector<Problem> check_config(const TrainConfig& config);

/// "section.key" -> value as text, for every field, in declaration order. Checkpoints store and compare these.
std::vector<std::pair<std::string, std::string>> config_values(const TrainConfig& config);

/// The values of the program's own flags and positional arguments.
std::vector<ProgramValue> program_values(const Flags& flags);

/// True if the field must be equal on all ranks. A resumed run warns if it changed, unless it is a limit or the like.
bool ranks_agree_on(std::string_view field);

std::string config_toml(const TrainConfig& config);  ///< --config can read this text
/// The section [program] behind it; "": there are no values.
std::string program_toml(std::span<const ProgramValue> values);
/// The settings that most users need. `width`: columns of the terminal.
std::string help_text(std::string_view program, const TrainConfig& defaults, const Flags& flags = {}, int width = 80);
/// All settings.
std::string help_all_text(std::string_view program, const TrainConfig& defaults, const Flags& flags = {},
                          int width = 80);
std::string print_config_text(const Invocation& invocation,
                              const Flags& flags = {});  ///< value and origin of every field
std::string configuration_markdown();                    ///< the tables of docs/configuration.md
std::string config_template();  ///< a TOML file with a comment for every field; all values are commented out

}  // namespace lockstep
