#include "cli/manual_page.h"

#include <span>
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

/// A paragraph per line; a line that begins with blanks stays as it is.
std::string paragraphs(std::string_view description) {
  std::string text;
  for (const std::string& line : split(description, '\n')) {
    text += line.starts_with(' ') ? fmt::format(".br\n\\&{}\n", plain(line)) : fmt::format(".PP\n{}\n", plain(line));
  }
  return text;
}

std::string items(std::span<const FlagRow> flags) {
  std::string text;
  for (const FlagRow& flag : flags) {
    text += item(flag_text(flag), flag.help);
  }
  return text;
}

std::string section(const Command& command) {
  std::string text =
      fmt::format(".SS {}\n", plain(usage_of(command))) + paragraphs(command.description) + items(command.flags);
  if (command.form == WordForm::settings) {
    text += fmt::format(
        ".PP\n{}\n",
        plain(fmt::format("It takes the settings of a run as well: see lockstep {} --help-all.", command.name)));
  }
  return text + fmt::format(".PP\nExit code: {}.\n", plain(command.exit_codes));
}

std::string title(std::string_view name) {
  return fmt::format(".TH {} 1 \"\" \"lockstep {}\" \"User Commands\"\n", plain(name), LOCKSTEP_VERSION);
}

/// Of lockstep_convert.py; a test compares them with the script.
constexpr FlagRow kConverterFlags[] = {
    {"format", "state_dict|snapshot", "of a .pt target"},
    {"ddp", "", "names in a .pt target begin with module."},
    {"step", "N", "of a checkpoint target"},
    {"epochs", "N", "finished epochs, instead of what the source says"},
};

}  // namespace

std::string manual_page() {
  std::string text =
      title("LOCKSTEP") +
      ".SH NAME\nlockstep \\- start, watch and check training runs\n"
      ".SH SYNOPSIS\n\\fBlockstep\\fR \\fICOMMAND\\fR [\\fIARGUMENT\\fR...]\n.br\n\\fBlockstep \\-\\-version\\fR\n"
      ".SH DESCRIPTION\nlockstep is a library for data\\-parallel training in C++, and this is its tool. "
      "\\fBlockstep help\\fR \\fICOMMAND\\fR and \\fBlockstep\\fR \\fICOMMAND\\fR \\fB\\-\\-help\\fR print what this "
      "page says about a command.\n"
      ".SH COMMANDS\n";
  for (const Command* command : commands()) {
    text += section(*command);
  }
  return text +
         ".SH SEE ALSO\n\\fBlockstep\\-convert\\fR(1)\n.PP\nThe manual of the library is installed in "
         "share/doc/lockstep, "
         "which is /usr/share/doc/lockstep if lockstep is a Debian package. Begin with README.md there.\n";
}

std::string converter_manual_page() {
  return title("LOCKSTEP-CONVERT") +
         ".SH NAME\nlockstep\\-convert \\- convert weights between PyTorch's files and checkpoints of lockstep\n"
         ".SH SYNOPSIS\n\\fBlockstep\\-convert\\fR [\\fIFLAG\\fR...] \\fISOURCE TARGET\\fR\n"
         ".SH DESCRIPTION\n" +
         paragraphs(
             "SOURCE is a .pt file, a .safetensors file, a checkpoint, or a run, which means its newest checkpoint. "
             "TARGET is a .pt file, a .safetensors file, or a directory of checkpoints.\n"
             "  lockstep-convert snapshot.pt checkpoints\n"
             "  lockstep-convert weights.pt model.safetensors\n"
             "  lockstep-convert checkpoints/step-0000000500 snapshot.pt --format snapshot\n"
             "  lockstep-convert runs/a weights.pt\n"
             "A .pt file is a state dict, or a dictionary with one, such as MODEL_STATE beside EPOCHS_RUN in PyTorch's "
             "DDP tutorial. Reading one executes nothing. The prefix module. of DDP is removed. A checkpoint is "
             "checked against its manifest before it is read. Only weights and the number of finished epochs are "
             "converted: no optimizer, no position in the data.\n"
             "It needs the Python packages torch, numpy and safetensors.") +
         ".SH OPTIONS\n" + items(kConverterFlags) +
         ".SH EXIT STATUS\n0: converted; 1: a Python package is missing; 2: usage; 65: the source cannot be read, or "
         "the "
         "target cannot be written.\n.SH SEE ALSO\n\\fBlockstep\\fR(1)\n";
}

}  // namespace lockstep
