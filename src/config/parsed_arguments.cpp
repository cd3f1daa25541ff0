#include "config/parsed_arguments.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/mapped.h"
#include "base/text.h"
#include "config/command_tokens.h"
#include "config/field_value.h"
#include "config/name_hints.h"
#include "config/shown_value.h"

namespace lockstep {
namespace {

bool is_bool_word(std::string_view text) {
  bool ignored = false;
  return !from_text(FieldInfo{}, text, ignored);
}

class ArgumentReader {
 public:
  ArgumentReader(std::span<const std::string> args, std::vector<Option> options, bool takes_words)
      : tokens_(args), options_(std::move(options)), takes_words_(takes_words) {}

  ParsedArguments read() {
    while (!tokens_.rest().empty()) {
      if (const auto flag = tokens_.take_flag()) {
        if (flag->is_help()) {
          result_.help = true;
        } else if (flag->is_help_all()) {
          result_.help_all = true;
        } else {
          read_flag(*flag);
        }
      } else if (const std::string& word = tokens_.take(); word == "--") {
        result_.words.insert(result_.words.end(), tokens_.rest().begin(), tokens_.rest().end());
        break;
      } else {
        result_.words.push_back(word);
      }
    }
    return std::move(result_);
  }

 private:
  void read_flag(const FlagToken& flag) {
    const bool is_long = flag.written.starts_with("--");
    const Option* negated = is_long && flag.name.starts_with("no_") ? find(flag.name.substr(3)) : nullptr;
    if (const Option* option = is_long ? find(flag.name) : nullptr) {
      read_value(flag, *option);
    } else if (negated == nullptr || !negated->is_bool) {
      refuse(flag.written + ": unknown flag",
             hint_for_unknown(flag.name, names(), "--",
                              is_long ? "see --help-all for all flags" : "flags begin with --; see --help-all"));
      if (!flag.attached && tokens_.value() != nullptr) {
        tokens_.take();  // probably its value: do not report it as a second problem
      }
    } else if (flag.attached) {
      refuse(flag.with(*flag.attached) + ": takes no value", fmt::format("use --{}={}", negated->name, *flag.attached));
    } else {
      result_.assignments.push_back({negated->name, "false", flag.written});
    }
  }

  void read_value(const FlagToken& flag, const Option& option) {
    const std::string* next = tokens_.value();
    if (flag.attached) {
      result_.assignments.push_back({flag.name, *flag.attached, flag.with(*flag.attached)});
    } else if (option.is_bool && (next == nullptr || !is_bool_word(*next))) {
      result_.assignments.push_back({flag.name, "true", flag.written});
      if (next != nullptr) {
        result_.switches_before[result_.words.size()] = flag.written;
      }
    } else if (option.is_bool && takes_words_ && (*next == "0" || *next == "1")) {
      refuse(fmt::format("{}: {} may be its value or a positional argument", flag.with(*next), *next),
             fmt::format("write {}={} if it is the value, else the positional arguments first", flag.written, *next));
      tokens_.take();
    } else if (next != nullptr) {
      result_.assignments.push_back({flag.name, *next, flag.with(*next)});
      tokens_.take();
    } else {
      const auto found = tokens_.rest();
      refuse(fmt::format("{}: expected a value{}", flag.written,
                         found.empty() ? "" : ", found " + shown_value(found.front())),
             fmt::format("use {}=VALUE", flag.written));
    }
  }

  void refuse(const std::string& what, std::string hint) {
    result_.problems.push_back({printable(what), std::move(hint)});
  }

  const Option* find(std::string_view name) const {
    const auto found = std::ranges::find_if(options_, [&](const Option& o) { return o.name == name; });
    return found == options_.end() ? nullptr : &*found;
  }

  std::vector<std::string> names() const { return mapped(options_, &Option::name); }

  CommandTokens tokens_;
  std::vector<Option> options_;
  bool takes_words_;
  ParsedArguments result_{};
};

}  // namespace

ParsedArguments parse_arguments(std::span<const std::string> args, std::vector<Option> options, bool takes_words) {
  return ArgumentReader(args, std::move(options), takes_words).read();
}

}  // namespace lockstep
