// lockstep/config/config_io.h
//
// Flags, LOCKSTEP_CFG_* variables and a TOML or JSON file -> TrainConfig, and back to text. Torch-free.
//
// Precedence: flag, then LOCKSTEP_CFG_<SECTION>_<KEY>, then --config FILE, then the defaults in code.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <lockstep/base/variables.h>
#include <lockstep/config/train_config.h>

namespace [[gnu::visibility("default")]] lockstep {

/// A program's own flags and positionals: in --help beside ours, in did-you-mean and in --print-config. The pointed-to
/// values are the defaults; they are written only when parsing succeeded. Pointers must outlive the parsing.
class Flags {
 public:
  Flags();
  Flags& add(std::string name, std::string* value, std::string help);
  Flags& add(std::string name, std::int64_t* value, std::string help);
  Flags& add(std::string name, double* value, std::string help);
  Flags& add(std::string name, bool* value, std::string help);
  /// The next positional is a field of TrainConfig: positional("max_epochs") lets `./train 10` mean `./train
  /// --max_epochs 10`. Fields come before the program's own positionals.
  Flags& positional(std::string field);
  Flags& positional(std::string name, std::string* value, std::string help);  ///< optional, in this order
  Flags& positional(std::string name, std::int64_t* value, std::string help);

 private:
  friend struct FlagsAccess;
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// What one invocation of a program asks for.
struct Invocation {
  TrainConfig config{};
  std::map<std::string, std::string>
      origins{};  ///< "optim.lr" -> "flag", "environment LOCKSTEP_CFG_OPTIM_LR", "file run.toml", "program"
  bool help = false;
  bool print_config = false;
  bool dry_run = false;                   ///< print the plan and start nothing (implied by hardware_file)
  std::filesystem::path hardware_file{};  ///< plan for the machine described there
};

/// Parses a command line (without argv[0]). Throws: ConfigError with every problem: unknown names with "did you mean",
/// values that do not parse, and everything check_config() finds.
Invocation parse_invocation(const TrainConfig& defaults, std::span<const std::string> args, const Variables& variables,
                            const Flags& flags = {});

/// Everything that is wrong with a configuration whatever the machine: ranges and contradictions between fields.
std::vector<Problem> check_config(const TrainConfig& config);

/// "section.key" -> value as text, for every field, in declaration order. What checkpoints keep and compare.
std::vector<std::pair<std::string, std::string>> config_values(const TrainConfig& config);

/// The values of a program's own flags and positionals, as text.
std::vector<std::pair<std::string, std::string>> program_values(const Flags& flags);

/// True if ranks must agree about the field, and a resumed run warns when it changed.
bool ranks_agree_on(std::string_view field);

std::string config_toml(const TrainConfig& config);  ///< a file that --config reads back
/// `width`: columns of the terminal.
std::string help_text(std::string_view program, const TrainConfig& defaults, const Flags& flags = {}, int width = 80);
std::string print_config_text(const Invocation& invocation, const Flags& flags = {});  ///< value and where it came from
std::string configuration_markdown();  ///< the tables of docs/configuration.md

}  // namespace lockstep
