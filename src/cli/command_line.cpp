#include "cli/command_line.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "base/problems.h"
#include "base/terminal.h"
#include "base/text.h"
#include "config/command_tokens.h"
#include "config/flags.h"

namespace lockstep {
namespace {

std::string help_flag(const Command& command) {
  return fmt::format("see lockstep {} --help{}", command.name,
                     command.form == WordForm::program ? "; the program's own flags come after --" : "");
}

/// An argument of the table.
struct Slot {
  std::string name{};
  bool optional = false;
  bool many = false;
};

/// Without those behind "--", which are a program's.
std::vector<Slot> slots_of(const Command& command) {
  std::vector<Slot> slots;
  for (std::string& word : split(command.arguments, ' ')) {
    if (word.empty() || word.find("--") != std::string::npos) {
      break;
    }
    Slot slot{.optional = word.starts_with('['), .many = word.find("...") != std::string::npos};
    std::erase_if(word, [](char c) { return c == '[' || c == ']' || c == '.'; });
    slot.name = std::move(word);
    slots.push_back(std::move(slot));
  }
  return slots;
}

bool is_placeholder(std::string_view word) {
  return std::ranges::all_of(word, [](char c) { return c >= 'A' && c <= 'Z'; });
}

class Reader {
 public:
  explicit Reader(const Command& command) : command_(command) {}

  CommandLine read(std::span<const std::string> args) {
    CommandTokens tokens(args);
    bool flags_end = false;
    while (!tokens.rest().empty()) {
      const auto flag = flags_end ? std::nullopt : tokens.take_flag();
      if (flag && flag->is_help()) {
        return {.help = true};  // whatever else is wrong
      }
      if (flag) {
        read_flag(*flag, tokens);
        continue;
      }
      const bool is_end = !flags_end && tokens.rest().front() == "--";
      flags_end = flags_end || is_end || command_.form == WordForm::program;
      if (const std::string& word = tokens.take(); !is_end) {
        line_.arguments.push_back(word);
      }
    }
    check_arguments();
    return std::move(line_);
  }

 private:
  void refuse(const std::string& what, std::string hint) {
    line_.problems.push_back({printable(what), std::move(hint)});
  }

  static const FlagRow* find(std::span<const FlagRow> rows, const FlagToken& token) {
    const bool is_long = token.written.starts_with("--");
    const auto found = std::ranges::find_if(rows, [&](const FlagRow& row) {
      return is_long ? normal_name(row.name) == token.name : row.letter == token.written;
    });
    return found == rows.end() ? nullptr : &*found;
  }

  void read_flag(const FlagToken& token, CommandTokens& tokens) {
    if (const FlagRow* flag = find(command_.flags, token)) {
      read_value(*flag, token, tokens);
      return;
    }
    const FlagRow* refused = find(command_.refused, token);
    if (refused != nullptr) {
      refuse(fmt::format("--{}: not possible with lockstep {}", refused->name, command_.name),
             std::string(refused->help));
    } else {
      std::vector<std::string> names{"help"};
      std::ranges::transform(command_.flags, std::back_inserter(names),
                             [](const FlagRow& row) { return std::string(row.name); });
      refuse(token.written + ": unknown flag", did_you_mean(token.name, names, "--", help_flag(command_)));
    }
    const bool may_have_value = refused == nullptr || !refused->value.empty();
    if (may_have_value && !token.attached && tokens.value() != nullptr) {
      tokens.take();  // probably its value
    }
  }

  void read_value(const FlagRow& flag, const FlagToken& token, CommandTokens& tokens) {
    const std::string* next = tokens.value();
    // The scripts of torchrun's users give empty values for what they do not set.
    const bool may_be_empty = command_.form == WordForm::program;
    if (flag.value.empty() && token.attached) {
      refuse(token.with(*token.attached) + ": takes no value", fmt::format("use --{}", flag.name));
    } else if (flag.value.empty()) {
      line_.flags[flag.name] = {&flag, "", token.written};
    } else if (const std::string* value = token.attached ? &*token.attached : next;
               value != nullptr && (may_be_empty || !value->empty())) {
      if (command_.form == WordForm::plain && line_.has(flag.name)) {  // nothing would be done with the first value
        refuse(fmt::format("{}: found --{} twice, expected it once", token.with(*value), flag.name),
               fmt::format("give one of them, or use lockstep {} once for each", command_.name));
      }
      line_.flags[flag.name] = {&flag, *value, token.with(*value)};
      if (!token.attached) {
        tokens.take();
      }
    } else {
      refuse(token.written + ": expected a value", fmt::format("use --{} {}", flag.name, flag.value));
      if (value != nullptr && !token.attached) {
        tokens.take();  // an empty word
      }
    }
  }

  void check_arguments() {
    const std::vector<Slot> slots = slots_of(command_);
    const std::string hint = fmt::format("usage: {}", usage_of(command_));
    for (std::size_t i = 0; i < line_.arguments.size(); ++i) {
      const std::string& word = line_.arguments[i];
      if (i >= slots.size() && (slots.empty() || !slots.back().many)) {
        refuse(fmt::format("{}: unexpected argument \"{}\"", command_.name, word), hint);
        continue;
      }
      const std::string& slot = slots[std::min(i, slots.size() - 1)].name;
      if (word.empty() && command_.form == WordForm::plain) {  // mostly a variable of the shell that is not set
        refuse(fmt::format("{}: found an empty word, expected {}", command_.name, slot), hint);
        continue;
      }
      const std::vector<std::string> choices = choices_of(slot);
      if (!choices.empty() && !takes_other_words(slot) && std::ranges::find(choices, word) == choices.end()) {
        refuse(fmt::format("{}: found {}, expected {}", command_.name, word, join_or(choices)),
               did_you_mean(word, choices, "", help_flag(command_)));
      }
    }
    const std::size_t given = line_.arguments.size();
    if (given < slots.size() && !slots[given].optional && line_.problems.empty()) {
      refuse(fmt::format("{}: {} is missing", command_.name, slots[given].name), hint);
    }
  }

  const Command& command_;
  CommandLine line_{};
};

/// The flags of the table beside the settings.
CommandLine read_with_settings(const Command& command, std::span<const std::string> args, const Variables& variables) {
  // What is behind "--" belongs to a program, if the command takes one.
  const auto end = command.arguments.empty() ? args.end() : std::ranges::find(args, "--");
  std::map<std::string_view, std::string> texts;
  std::map<std::string_view, bool> switches;
  Flags flags = FlagsAccess::for_tool();
  for (const FlagRow& row : command.flags) {
    if (row.value.empty()) {
      flags.add(std::string(row.name), &switches[row.name], std::string(row.help));
    } else {
      flags.add(std::string(row.name), &texts[row.name], std::string(row.help));
    }
  }
  const std::vector<Slot> slots = slots_of(command);
  for (const Slot& slot : slots) {
    flags.positional(slot.name, &texts[slot.name], "");
  }
  CommandLine line{.settings = parse_invocation({}, std::vector<std::string>(args.begin(), end), variables, flags)};
  line.help = line.settings.help;
  line.help_all = line.settings.help_all;
  for (const FlagRow& row : command.flags) {
    const auto text = texts.find(row.name);
    if (text != texts.end() && line.settings.origins[normal_name(row.name)] == "flag") {
      line.flags[row.name] = {&row, text->second,
                              FlagToken{.written = fmt::format("--{}", row.name)}.with(text->second)};
    } else if (switches[row.name]) {
      line.flags[row.name] = {&row, "", fmt::format("--{}", row.name)};
    }
  }
  for (const Slot& slot : slots) {
    if (!texts[slot.name].empty()) {
      line.arguments.push_back(texts[slot.name]);
    }
  }
  line.rest.assign(end == args.end() ? end : end + 1, args.end());
  return line;
}

}  // namespace

std::string GivenFlag::hint() const { return fmt::format("--{} {}: {}", row->name, row->value, row->help); }

const GivenFlag* CommandLine::find(std::string_view flag) const {
  const auto found = flags.find(flag);
  return found == flags.end() ? nullptr : &found->second;
}

std::string CommandLine::value(std::string_view flag, std::string otherwise) const {
  const GivenFlag* given = find(flag);
  return given == nullptr ? std::move(otherwise) : given->text;
}

int CommandLine::number(std::string_view flag, int least, int most, int otherwise) const {
  const GivenFlag* given = find(flag);
  if (given == nullptr) {
    return otherwise;
  }
  const auto number = parse_int(given->text);
  if (!number || *number < least || *number > most) {
    throw ConfigError(fmt::format("{}: expected a whole number from {} to {}", given->label, least, most),
                      given->hint());
  }
  return static_cast<int>(*number);
}

CommandLine read_command_line(const Command& command, std::span<const std::string> args, const Variables& variables) {
  return command.form == WordForm::settings ? read_with_settings(command, args, variables) : Reader(command).read(args);
}

int execute(const Command& command, std::span<const std::string> args, const Variables& variables) {
  CommandLine line = read_command_line(command, args, variables);
  if (line.help || line.help_all) {
    fmt::print("{}", help_of(command, probe_terminal(STDOUT_FILENO, variables).width, line.help_all));
    return 0;
  }
  if (command.form != WordForm::program) {  // `run` reports them with its own
    throw_if_any(std::move(line.problems));
  }
  return command.run(line, variables);
}

std::string usage_of(const Command& command) {
  std::string text = fmt::format("lockstep {}", command.name);
  if (command.form == WordForm::plain) {
    for (const FlagRow& flag : command.flags) {
      text += fmt::format(" [--{}{}{}]", flag.name, flag.value.empty() ? "" : " ", flag.value);
    }
  } else {
    text += command.form == WordForm::program ? " [flags] [--]" : " [flags]";
  }
  return text + (command.arguments.empty() ? "" : " ") + std::string(command.arguments);
}

std::string help_of(const Command& command, int width, bool all_settings) {
  const HelpLayout layout(width);
  std::string text = layout.paragraph("usage: " + usage_of(command)) + "\n";
  for (const std::string& line : split(command.description, '\n')) {
    text += line.starts_with(' ') ? line + "\n" : layout.paragraph(line);
  }
  text += "\n";
  for (const FlagRow& flag : command.flags) {
    text += layout.entry(flag);
  }
  const bool settings = command.form == WordForm::settings;
  if (!settings) {
    text += layout.entry({"help", "", "print this text and exit", "-h"});
  }
  text += "\n" + layout.paragraph(fmt::format("exit code: {}", command.exit_codes));
  return settings ? text + "\n" + settings_help({}, layout, all_settings) : text;
}

std::vector<std::string> choices_of(std::string_view argument) {
  if (argument.find('|') == std::string_view::npos) {
    return {};
  }
  std::vector<std::string> words = split(argument, '|');
  std::erase_if(words, is_placeholder);
  return words;
}

bool takes_other_words(std::string_view argument) { return std::ranges::any_of(split(argument, '|'), is_placeholder); }

}  // namespace lockstep
