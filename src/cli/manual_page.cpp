#include "cli/manual_page.h"

#include <string_view>

#include <fmt/format.h>

#include <lockstep/version.h>

#include "base/text.h"
#include "cli/commands.h"

namespace lockstep {
namespace {

/// No character of it means something to man.
std::string plain(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    safe += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
  }
  return safe.starts_with('.') || safe.starts_with('\'') ? "\\&" + safe : safe;
}

std::string item(std::string_view term, std::string_view text) {
  return fmt::format(".TP\n\\fB{}\\fR\n{}\n", plain(term), plain(text));
}

std::string section(const Command& command) {
  std::string text = fmt::format(".SS {}\n", plain(usage_of(command)));
  for (const std::string& line : split(command.description, '\n')) {
    text += line.starts_with(' ') ? fmt::format(".br\n\\&{}\n", plain(line)) : fmt::format(".PP\n{}\n", plain(line));
  }
  for (const FlagRow& flag : command.flags) {
    text += item(flag_text(flag), flag.help);
  }
  if (command.form == WordForm::settings) {
    text += fmt::format(
        ".PP\n{}\n",
        plain(fmt::format("It takes the settings of a run as well: see lockstep {} --help-all.", command.name)));
  }
  return text + fmt::format(".PP\nExit code: {}.\n", plain(command.exit_codes));
}

}  // namespace

std::string manual_page() {
  std::string text = fmt::format(
      ".TH LOCKSTEP 1 \"\" \"lockstep {}\" \"User Commands\"\n"
      ".SH NAME\nlockstep \\- start, watch and check training runs\n"
      ".SH SYNOPSIS\n\\fBlockstep\\fR \\fICOMMAND\\fR [\\fIARGUMENT\\fR...]\n.br\n\\fBlockstep \\-\\-version\\fR\n"
      ".SH DESCRIPTION\nlockstep is a library for data\\-parallel training in C++, and this is its tool. "
      "\\fBlockstep help\\fR \\fICOMMAND\\fR and \\fBlockstep\\fR \\fICOMMAND\\fR \\fB\\-\\-help\\fR print what this "
      "page "
      "says about a command.\n"
      ".SH COMMANDS\n",
      LOCKSTEP_VERSION);
  for (const Command* command : commands()) {
    text += section(*command);
  }
  return text;
}

}  // namespace lockstep
