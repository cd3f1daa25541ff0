#include "config/help.h"

#include <algorithm>

#include <fmt/format.h>

#include <lockstep/config/config_io.h>

#include "base/text.h"
#include "config/field_value.h"
#include "config/flags.h"
#include "config/toml_writer.h"

namespace lockstep {
namespace {

constexpr char kJoint = '\1';  // a blank at which lines are not broken

constexpr int kNarrowest = 40;
constexpr int kWidest = 120;
constexpr std::size_t kTwoColumns = 64;

std::string joined(std::string text) {
  std::ranges::replace(text, kJoint, ' ');
  return text;
}

std::string with_default(std::string_view help, std::string_view value) {
  return value.empty() ? std::string(help) : fmt::format("{} (default:{}{})", help, kJoint, value);
}

std::string target_text(const FlagTarget& target) {
  return std::visit([](const auto* value) { return to_text(*value); }, target);
}

std::string syntax_of(const ProgramFlag& flag) {
  return flag.kind == TextKind::existing_path
             ? "PATH"
             : std::visit([]<class T>(const T*) { return value_syntax<T>(); }, flag.target);
}

/// A bool's flag needs no value.
std::string flag_usage(std::string_view name, const std::string& syntax) {
  return syntax == "true|false" ? fmt::format("--[no-]{}", name) : fmt::format("--{} {}", name, syntax);
}

std::string program_help(const Flags& flags, const HelpLayout& layout) {
  std::string text;
  for (const ProgramFlag& positional : FlagsAccess::positionals(flags)) {
    text += layout.entry(positional.name, with_default(positional.help, target_text(positional.target)));
  }
  for (const ProgramFlag& flag : FlagsAccess::flags(flags)) {
    text += layout.entry(flag_usage(flag.name, syntax_of(flag)), with_default(flag.help, target_text(flag.target)));
  }
  return text.empty() ? text : "This program:\n" + text + "\n";
}

/// For lists of all settings; a page of the most used ones has no room for it.
std::string meaning_of(const FieldInfo& info) {
  return fmt::format("{}{}", info.help, info.flag_only ? " (a flag only)" : "");
}

template <class T>
std::string setting_help(const FieldInfo& info, std::string_view meaning, const T& value, const HelpLayout& layout) {
  return layout.entry(flag_usage(info.name, value_syntax<T>()), with_default(meaning, to_text(value)));
}

std::string common_settings_help(const TrainConfig& defaults, const HelpLayout& layout) {
  std::string text = "Most used settings:\n";
  int count = 0;
  visit_fields(defaults, [&](const FieldInfo& info, const auto& value) {
    ++count;
    if (info.common) {
      text += setting_help(info, info.help, value, layout);
    }
  });
  return text + "\n" + layout.paragraph(fmt::format("--help-all lists all {} settings.", count));
}

std::string all_settings_help(const TrainConfig& defaults, const HelpLayout& layout) {
  std::string text = layout.paragraph(
      "All settings. The first of these sources that has a value counts: the flag, LOCKSTEP_CFG_<SECTION>_<KEY>, "
      "--config FILE, the default.");
  std::string section = "none yet";
  visit_fields(defaults, [&](const FieldInfo& info, const auto& value) {
    if (section_of(info.name) != section) {
      section = section_of(info.name);
      text += section.empty() ? "\nSettings without a section:\n" : fmt::format("\nSection {}:\n", section);
    }
    text += setting_help(info, meaning_of(info), value, layout);
  });
  return text;
}

std::string program_frame(std::string_view program, const Flags& flags, const HelpLayout& layout) {
  std::string text = fmt::format("usage: {} [flags]", program);
  for (const std::string& field : FlagsAccess::positional_fields(flags)) {
    text += fmt::format(" [{}]", field);
  }
  for (const ProgramFlag& positional : FlagsAccess::positionals(flags)) {
    text += fmt::format(" [{}]", positional.name);
  }
  return layout.paragraph(text) + "\n" + program_help(flags, layout);
}

std::string cell(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    escaped += c == '|' ? "\\|" : std::string(1, c);
  }
  return escaped;
}

}  // namespace

std::string flag_text(const FlagRow& flag) {
  return fmt::format("{}{}--{}{}{}", flag.letter, flag.letter.empty() ? "" : ", ", flag.name,
                     flag.value.empty() ? "" : " ", flag.value);
}

HelpLayout::HelpLayout(int width)
    : width_(static_cast<std::size_t>(std::clamp(width, kNarrowest, kWidest))),
      column_(width_ < kTwoColumns ? 8 : 30) {}

std::string HelpLayout::paragraph(std::string_view text) const { return joined(wrap(text, 0, width_)) + "\n"; }

std::string HelpLayout::entry(const std::string& name, std::string_view help) const {
  std::string text = fitted(name);
  if (text.size() + 2 > column_) {
    text += '\n';
    text.append(column_, ' ');
  } else {
    text.resize(column_, ' ');
  }
  return text + joined(wrap(help, column_, width_)) + "\n";
}

std::string HelpLayout::entry(const FlagRow& flag) const { return entry(flag_text(flag), flag.help); }

/// Words of a value that do not fit are on the next line.
std::string HelpLayout::fitted(const std::string& name) const {
  constexpr std::string_view kIndent = "      ";
  std::string text = "  ";
  std::size_t column = text.size();
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('|', begin), name.size() - 1) + 1;
    if (column + (end - begin) > width_) {
      text += '\n';
      text += kIndent;
      column = kIndent.size();
    }
    text += name.substr(begin, end - begin);
    column += end - begin;
    begin = end;
  }
  return text;
}

std::string settings_help(const TrainConfig& defaults, const HelpLayout& layout, bool all) {
  std::string text = "Running:\n";
  for (const FlagRow& flag : kProgramFlags) {
    text += layout.entry(flag);
  }
  text += layout.entry("--", "everything after it is not a flag") + "\n";
  return text + (all ? all_settings_help(defaults, layout) : common_settings_help(defaults, layout));
}

std::string help_text(std::string_view program, const TrainConfig& defaults, const Flags& flags, int width) {
  const HelpLayout layout(width);
  return program_frame(program, flags, layout) + settings_help(defaults, layout, false);
}

std::string help_all_text(std::string_view program, const TrainConfig& defaults, const Flags& flags, int width) {
  const HelpLayout layout(width);
  return program_frame(program, flags, layout) + settings_help(defaults, layout, true);
}

std::string print_config_text(const Invocation& invocation, const Flags& flags) {
  return write_toml(invocation.config, invocation.origins) +
         write_program_toml(program_values(flags), invocation.origins);
}

std::vector<ProgramValue> program_values(const Flags& flags) {
  std::vector<ProgramValue> values;
  for (const auto* kind : {&FlagsAccess::flags(flags), &FlagsAccess::positionals(flags)}) {
    for (const ProgramFlag& flag : *kind) {
      values.push_back({.name = flag.name,
                        .text = target_text(flag.target),
                        .is_text = std::holds_alternative<std::string*>(flag.target),
                        .may_change = flag.may_change});
    }
  }
  return values;
}

std::string configuration_markdown() {
  std::string text;
  std::string section = "none yet";
  const TrainConfig defaults;
  visit_fields(defaults, [&]<class T>(const FieldInfo& info, const T& value) {
    if (section_of(info.name) != section) {
      section = section_of(info.name);
      text += section.empty() ? "\n## Top level\n" : fmt::format("\n## `{}`\n", section);
      text += "\n| setting | value | default | ranks agree | meaning |\n|---|---|---|---|---|\n";
    }
    const std::string shown = to_text(value);
    text += fmt::format("| `{}` | {} | {} | {} | {} |\n", info.name, cell(value_syntax<T>()),
                        shown.empty() ? "" : fmt::format("`{}`", shown), info.ranks_agree ? "yes" : "",
                        cell(meaning_of(info)));
  });
  return text;
}

std::string config_template() {
  constexpr std::size_t kWidth = 100;
  std::string text =
      "# Settings of a lockstep program, for --config. A line without its first # sets a value; the values shown are\n"
      "# the defaults of lockstep, which a program may have changed: --print-config shows those of the program.\n"
      "# The program's own flags are in a section [program].\n";
  const auto comment = [&](std::string_view words) {
    for (const std::string& line : split(wrap(words, 0, kWidth - 2), '\n')) {
      text += "# " + line + "\n";
    }
  };
  std::string section;
  const TrainConfig defaults;
  visit_fields(defaults, [&]<class T>(const FieldInfo& info, const T& value) {
    if (section_of(info.name) != section) {
      section = section_of(info.name);
      text += fmt::format("\n[{}]\n", section);
    }
    text += "\n";
    comment(fmt::format("{}: {}", info.name, info.help));
    if (info.flag_only) {
      comment(fmt::format("Not for a file: only the flag --{} sets it.", info.name));
      return;
    }
    comment("Value: " + allowed_values<T>(info));
    const std::string_view key = info.name.substr(section.empty() ? 0 : section.size() + 1);
    text += fmt::format("#{} = {}\n", key, to_toml(value));
  });
  return text;
}

}  // namespace lockstep
