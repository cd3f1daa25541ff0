#include "cli/completion_command.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/run_flags.h"
#include "cli/shell_words.h"
#include "config/field_value.h"

namespace lockstep {
namespace {

constexpr std::string_view kUsage =
    "usage: lockstep completion bash|zsh [PROGRAM...]\n\n"
    "Prints a script that completes the commands of lockstep, the settings of a run, and their values, for\n"
    "lockstep and for each PROGRAM. In bash and zsh:\n\n"
    "  source <(lockstep completion bash ./train)\n"
    "  source <(lockstep completion zsh ./train)\n\n"
    "A program's own flags are not completed.\n";

/// Flags of every program that are not settings.
const std::vector<FlagText>& program_flags() {
  static const std::vector<FlagText> flags = {
      {"--config", "FILE", "settings from a .toml or .json file"},
      {"--print-config", "", "print all settings with their origin and exit"},
      {"--dry-run", "", "print the plan and exit"},
      {"--hardware", "FILE", "plan for the machine that FILE describes"},
      {"--help", "", "print the flags that are used most and exit"},
      {"--help-all", "", "print all flags and exit"},
  };
  return flags;
}

/// All flags of a program that uses lockstep.
std::vector<FlagText> setting_flags() {
  std::vector<FlagText> flags = program_flags();
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
  std::vector<std::string> words;
  if (flag.flag == "--devices") {
    words = {"auto", "cpu"};
  } else if (flag.flag == "--resume") {
    words = {"auto", "never", "last", "best"};
  } else if (flag.syntax.find('|') != std::string::npos) {
    words = split(flag.syntax, '|');
    std::erase_if(words, [](const std::string& word) { return word.front() < 'a' || word.front() > 'z'; });
  }
  return join(words, " ");
}

std::vector<FlagText> flags_of(const Command& command) {
  std::vector<FlagText> flags = command.settings ? setting_flags() : std::vector<FlagText>{};
  if (command.name == "run") {
    flags = run_flag_texts();
  }
  for (const std::string& word : split(command.words, ' ')) {
    if (word.starts_with('-')) {
      flags.push_back({word, word == "--launcher" ? "srun|own" : "", ""});
    }
  }
  return flags;
}

std::string plain_words_of(const Command& command) {
  std::vector<std::string> words = split(command.words, ' ');
  std::erase_if(words, [](const std::string& word) { return word.empty() || word.starts_with('-'); });
  return join(words, " ");
}

std::string names_of(const std::vector<FlagText>& flags) {
  std::vector<std::string> names;
  std::transform(flags.begin(), flags.end(), std::back_inserter(names), [](const FlagText& f) { return f.flag; });
  return join(names, " ");
}

/// A shell function that prints the values of the flag $1.
std::string value_function() {
  std::string text = "_lockstep_values() {\n  case \"$1\" in\n";
  std::vector<FlagText> all = setting_flags();
  for (const Command& command : commands()) {
    if (!command.settings) {
      const auto more = flags_of(command);
      all.insert(all.end(), more.begin(), more.end());
    }
  }
  all.push_back({"--launcher", "srun|own", ""});
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
# $1: flags, $2: other words. bash makes the = between a flag and its value a word.
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
    local values
    values=$(_lockstep_values "$flag")
    COMPREPLY=($(compgen -W "${values:-$2}" -- "$cur"))
  fi
}

_lockstep_program() {
  _lockstep_reply "$_lockstep_settings" ''
}

_lockstep_tool() {
)";
  std::vector<std::string> names{"--help", "--version"};
  for (const Command& command : commands()) {
    names.emplace_back(command.name);
  }
  text += fmt::format(
      "  if ((COMP_CWORD == 1)); then\n    COMPREPLY=($(compgen -W '{}' -- \"${{COMP_WORDS[1]}}\"))\n    return\n  "
      "fi\n",
      join(names, " "));
  text +=
      "  local word\n  for word in \"${COMP_WORDS[@]:2:COMP_CWORD-2}\"; do\n    if [[ $word == -- ]]; then  # behind "
      "it "
      "are the program and its flags\n      _lockstep_program\n      return\n    fi\n  done\n";
  text += "  case \"${COMP_WORDS[1]}\" in\n";
  for (const Command& command : commands()) {
    text += fmt::format("    {}) _lockstep_reply '{}' '{}' ;;\n", command.name, names_of(flags_of(command)),
                        plain_words_of(command));
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
  std::vector<FlagText> names;
  for (const Command& command : commands()) {
    names.push_back({std::string(command.name), "", std::string(command.help)});
  }
  text += zsh_array("_lockstep_commands", names) + "\n" + value_function();
  text += R"(
# $1: name of an array of flags, the rest: other words.
_lockstep_reply() {
  local flag=${words[CURRENT-1]}
  if [[ $PREFIX == --*=* ]]; then
    flag=${PREFIX%%=*}
    compset -P '*='
  fi
  local -a values=(${=$(_lockstep_values "$flag")})
  if [[ $PREFIX == -* ]]; then
    _describe -o flag $1
  elif (( $#values )); then
    compadd -- $values
  else
    (( $# > 1 )) && compadd -- ${@:2}
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
  for (const Command& command : commands()) {
    text += fmt::format("    {})\n{}      _lockstep_reply flags {}\n      ;;\n", command.name,
                        zsh_array("flags", flags_of(command)), plain_words_of(command));
  }
  text += "  esac\n}\n\ncompdef _lockstep_tool lockstep\n";
  for (const std::string& program : programs) {
    text += fmt::format("compdef _lockstep_program {}\n", shell_quoted(program));
  }
  return text;
}

}  // namespace

int completion_command(std::span<const std::string> args) {
  if (args.size() == 1 && (args[0] == "--help" || args[0] == "-h")) {
    fmt::print("{}", kUsage);
    return 0;
  }
  if (args.empty() || (args[0] != "bash" && args[0] != "zsh")) {
    throw ConfigError(
        fmt::format("completion: found {}, expected bash or zsh", args.empty() ? "no shell" : printable(args[0])),
        "source <(lockstep completion bash ./train); see lockstep completion --help");
  }
  std::vector<std::string> programs;
  for (const std::string& program : args.subspan(1)) {
    programs.push_back(std::filesystem::path(program).filename().string());  // shells look for this name too
  }
  fmt::print("{}", args[0] == "bash" ? bash_script(programs) : zsh_script(programs));
  return 0;
}

}  // namespace lockstep
