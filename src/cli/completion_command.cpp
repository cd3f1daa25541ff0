#include <filesystem>
#include <vector>

#include <fmt/format.h>

#include "base/mapped.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/launch/shell_words.h"
#include "config/field_value.h"

namespace lockstep {
namespace {

/// A flag with its two dashes.
struct FlagText {
  std::string flag{};
  std::string syntax{};
  std::string help{};
};

void append(std::vector<FlagText>& flags, std::span<const FlagRow> rows) {
  for (const FlagRow& row : rows) {
    flags.push_back({fmt::format("--{}", row.name), std::string(row.value), std::string(row.help)});
  }
}

/// All flags of a program that uses lockstep.
std::vector<FlagText> setting_flags() {
  std::vector<FlagText> flags;
  append(flags, kProgramFlags);
  const TrainConfig config;
  visit_fields(config, [&]<class T>(const FieldInfo& info, const T&) {
    flags.push_back({fmt::format("--{}", info.name), value_syntax<T>(), std::string(info.help)});
    if constexpr (std::is_same_v<T, bool>) {
      flags.push_back({fmt::format("--no-{}", info.name), "", fmt::format("not: {}", info.help)});
    }
  });
  return flags;
}

/// The words among the values of a flag: "auto cpu gpu" of "N|auto|cpu|gpu".
std::string words_of(const FlagText& flag) {
  std::vector<std::string> words = choices_of(flag.syntax);
  if (flag.flag == "--devices") {
    words = {"auto", "cpu"};
  } else if (flag.flag == "--resume") {
    words = {"auto", "never", "last", "best"};
  }
  std::erase_if(words, [](const std::string& word) { return word.front() < 'a' || word.front() > 'z'; });
  return join(words, " ");
}

std::vector<FlagText> flags_of(const Command& command) {
  std::vector<FlagText> flags = command.form == WordForm::settings ? setting_flags() : std::vector<FlagText>{};
  append(flags, command.flags);
  if (command.form != WordForm::settings) {
    flags.push_back({"--help", "", "print this text and exit"});
  }
  return flags;
}

std::vector<std::string> command_names() { return mapped<std::string>(commands(), &Command::name); }

/// For each of its arguments the words that it can be, in quotes: "'' 'stop save'".
std::string plain_words_of(const Command& command) {
  if (&command == &kHelpCommand) {
    return fmt::format("'{}'", join(command_names(), " "));
  }
  const auto words = mapped(split(command.arguments, ' '), [](const std::string& argument) {
    return fmt::format("'{}'", join(choices_of(argument), " "));
  });
  return join(words, " ");
}

std::string names_of(const std::vector<FlagText>& flags) { return join(mapped(flags, &FlagText::flag), " "); }

/// A shell function that prints the values of the flag $1.
std::string value_function() {
  std::string text = "_lockstep_values() {\n  case \"$1\" in\n";
  std::vector<FlagText> all = setting_flags();
  for (const Command* command : commands()) {
    append(all, command->flags);
  }
  for (const FlagText& flag : all) {
    if (const std::string words = words_of(flag); !words.empty()) {
      text += fmt::format("    {}) echo '{}' ;;\n", flag.flag, words);
    }
  }
  return text + "  esac\n}\n";
}

std::string bash_script(const std::vector<std::string>& programs) {
  std::string text = "# Completion of lockstep for bash.\n";
  text += fmt::format("_lockstep_settings='{}'\n\n", names_of(setting_flags()));
  text += value_function();
  text += R"(
# $1: flags, the others: words of each argument. bash makes the = between a flag and its value a word.
_lockstep_reply() {
  local cur=${COMP_WORDS[COMP_CWORD]} flag=${COMP_WORDS[COMP_CWORD-1]}
  if [[ $cur == '=' ]]; then
    cur=''
  elif [[ $flag == '=' ]]; then
    flag=${COMP_WORDS[COMP_CWORD-2]}
  fi
  if [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$1" -- "$cur"))
    if ((${#COMPREPLY[@]} == 0)); then  # in names, - and _ are equal
      local name=${cur#--}
      COMPREPLY=($(compgen -W "$1" -- "--${name//-/_}"))
    fi
  else
    local values word place=2
    for word in "${COMP_WORDS[@]:2:COMP_CWORD-2}"; do
      [[ $word == -* ]] || ((++place))
    done
    values=$(_lockstep_values "$flag")
    COMPREPLY=($(compgen -W "${values:-${*:place:1}}" -- "$cur"))
  fi
}

_lockstep_program() {
  _lockstep_reply "$_lockstep_settings" ''
}

_lockstep_tool() {
)";
  std::vector<std::string> names = command_names();
  names.insert(names.begin(), {"--help", "--version"});
  text += fmt::format(
      "  if ((COMP_CWORD == 1)); then\n    COMPREPLY=($(compgen -W '{}' -- \"${{COMP_WORDS[1]}}\"))\n    return\n  "
      "fi\n",
      join(names, " "));
  text +=
      "  local word\n  for word in \"${COMP_WORDS[@]:2:COMP_CWORD-2}\"; do\n    if [[ $word == -- ]]; then  # behind "
      "it "
      "are the program and its flags\n      _lockstep_program\n      return\n    fi\n  done\n";
  text += "  case \"${COMP_WORDS[1]}\" in\n";
  for (const Command* command : commands()) {
    text += fmt::format("    {}) _lockstep_reply '{}' {} ;;\n", command->name, names_of(flags_of(*command)),
                        plain_words_of(*command));
  }
  text += "  esac\n}\n\ncomplete -o default -F _lockstep_tool lockstep\n";
  for (const std::string& program : programs) {
    text += fmt::format("complete -o default -F _lockstep_program -- {}\n", shell_quoted(program));
  }
  return text;
}

std::string zsh_array(const std::string& name, const std::vector<FlagText>& flags) {
  std::string text = fmt::format("{}=(\n", name);
  for (const FlagText& flag : flags) {
    text += fmt::format("  {}\n", shell_quoted(flag.help.empty() ? flag.flag : flag.flag + ":" + flag.help));
  }
  return text + ")\n";
}

std::string zsh_script(const std::vector<std::string>& programs) {
  std::string text = "# Completion of lockstep for zsh.\n";
  text += "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n\n";
  text += "typeset -ga _lockstep_settings _lockstep_commands\n";
  text += zsh_array("_lockstep_settings", setting_flags());
  const auto names = mapped(commands(), [](const Command* command) {
    return FlagText{std::string(command->name), "", std::string(command->summary)};
  });
  text += zsh_array("_lockstep_commands", names) + "\n" + value_function();
  text += R"(
# $1: name of an array of flags, the others: words of each argument.
_lockstep_reply() {
  local flag=${words[CURRENT-1]}
  if [[ $PREFIX == --*=* ]]; then
    flag=${PREFIX%%=*}
    compset -P '*='
  fi
  local -a values=(${=$(_lockstep_values "$flag")})
  local -i place=2
  local word
  for word in ${words[3,CURRENT-1]}; do
    [[ $word == -* ]] || (( ++place ))
  done
  local -a plain=(${=argv[place]})
  if [[ $PREFIX == -* ]]; then
    _describe -o flag $1
  elif (( $#values )); then
    compadd -- $values
  else
    (( $#plain )) && compadd -- $plain
    _files
  fi
}

_lockstep_program() {
  _lockstep_reply _lockstep_settings
}

_lockstep_tool() {
  if (( CURRENT == 2 )); then
    _describe command _lockstep_commands
    return
  fi
  if (( ${words[(i)--]} < CURRENT )); then  # behind it are the program and its flags
    _lockstep_program
    return
  fi
  local -a flags
  case ${words[2]} in
)";
  for (const Command* command : commands()) {
    text += fmt::format("    {})\n{}      _lockstep_reply flags {}\n      ;;\n", command->name,
                        zsh_array("flags", flags_of(*command)), plain_words_of(*command));
  }
  text += "  esac\n}\n\ncompdef _lockstep_tool lockstep\n";
  for (const std::string& program : programs) {
    text += fmt::format("compdef _lockstep_program {}\n", shell_quoted(program));
  }
  return text;
}

int completion(const CommandLine& line, const Variables&) {
  std::vector<std::string> programs;
  for (std::size_t i = 1; i < line.arguments.size(); ++i) {
    programs.push_back(std::filesystem::path(line.arguments[i]).filename().string());  // shells look for this name too
  }
  fmt::print("{}", line.arguments[0] == "bash" ? bash_script(programs) : zsh_script(programs));
  return 0;
}

}  // namespace

const Command kCompletionCommand{.name = "completion",
                                 .arguments = "bash|zsh [PROGRAM...]",
                                 .summary = "print a script that completes flags in a shell",
                                 .description =
                                     "Prints a script that completes the commands of lockstep, the settings of a run, "
                                     "and their values, for lockstep "
                                     "and for each PROGRAM. In bash and zsh:\n"
                                     "  source <(lockstep completion bash ./train)\n"
                                     "  source <(lockstep completion zsh ./train)\n"
                                     "A program's own flags are not completed.",
                                 .exit_codes = "0, 2 usage",
                                 .run = completion};

}  // namespace lockstep
