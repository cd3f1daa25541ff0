// What a command of the tool takes, as a table, and how its words are read. Torch-free.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/base/variables.h>
#include <lockstep/config/config_io.h>

#include "config/help.h"

namespace lockstep {

/// A flag that was given, with its value.
struct GivenFlag {
  const FlagRow* row = nullptr;  ///< of the table
  std::string text{};
  std::string label{};  ///< for messages: "--port 80"

  std::string hint() const;  ///< "--port P: port of the rendezvous"
};

/// The words of one command, behind its name.
struct CommandLine {
  std::map<std::string_view, GivenFlag> flags{};  ///< by the name in the table; the last one, where many may be given
  std::vector<std::string> arguments{};
  std::vector<std::string> rest{};  ///< of WordForm::settings: what is behind "--"
  Invocation settings{};            ///< of WordForm::settings
  bool help = false;
  bool help_all = false;
  std::vector<Problem> problems{};

  bool has(std::string_view flag) const { return flags.contains(flag); }
  const GivenFlag* find(std::string_view flag) const;  ///< nullptr: it was not given
  std::string value(std::string_view flag, std::string otherwise) const;
  /// Throws: ConfigError if it is no whole number in this range.
  int number(std::string_view flag, int least, int most, int otherwise) const;
};

enum class WordForm {
  plain,     ///< flags and arguments in any order; what is behind "--" is no flag
  settings,  ///< it also takes the settings of a run
  program,   ///< the first word that is no flag begins a program and its arguments
};

struct Command {
  std::string_view name{};
  std::string_view arguments{};    ///< "A B", "[DIR]", "RUN...", "RUN stop|save"
  std::string_view summary{};      ///< one line
  std::string_view description{};  ///< a paragraph per line; a line that begins with blanks stays as it is
  std::string_view exit_codes{};
  std::span<const FlagRow> flags{};
  std::span<const FlagRow> refused{};  ///< flags of another tool that are impossible here; `help` says what to do
  WordForm form = WordForm::plain;
  int (*run)(const CommandLine& line, const Variables& variables) = nullptr;  ///< returns the exit code
};

/// Puts the problems into the result. With --help there are none.
CommandLine read_command_line(const Command& command, std::span<const std::string> args, const Variables& variables);

/// Reads the words, then prints the help or runs the command. Returns the exit code. Throws: ConfigError for wrong
/// words, and what the command throws.
int execute(const Command& command, std::span<const std::string> args, const Variables& variables);

std::string usage_of(const Command& command);  ///< "lockstep verify [--json] DIR"
std::string help_of(const Command& command, int width, bool all_settings = false);
/// The words that an argument can be: {"stop", "save"} of "stop|save" and of "stop|save|WORD"; {}: any word.
std::vector<std::string> choices_of(std::string_view argument);
/// It can be another word too: "stop|save|WORD".
bool takes_other_words(std::string_view argument);

}  // namespace lockstep
