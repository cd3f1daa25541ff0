#include <algorithm>
#include <filesystem>
#include <functional>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <lockstep/config/config_io.h>

#include "base/mapped.h"
#include "base/paths.h"
#include "base/problems.h"
#include "base/run_files.h"
#include "base/text.h"
#include "config/check_config.h"
#include "config/command_tokens.h"
#include "config/config_file.h"
#include "config/field_value.h"
#include "config/flags.h"
#include "config/help.h"
#include "config/idle_settings.h"
#include "config/invocation.h"
#include "config/name_hints.h"
#include "config/parsed_arguments.h"
#include "config/setting_form.h"
#include "config/shown_value.h"
#include "config/toml_writer.h"
#include "config/without_files.h"

namespace lockstep {
namespace {

/// A path of the program that must exist, from the strongest source so far.
struct GivenPath {
  std::string label{};  ///< "--text a.txt", "run.toml:3: program.text = a.txt"
  std::string path{};
  std::string help{};
};

std::vector<std::string> field_names() {
  std::vector<std::string> names;
  const TrainConfig config;
  visit_fields(config, [&names](const FieldInfo& info, const auto&) { names.emplace_back(info.name); });
  return names;
}

/// Applies file, environment and flags to the defaults and collects all problems.
class Parser {
 public:
  Parser(const TrainConfig& defaults, std::span<const std::string> args, const Variables& variables, const Flags& flags,
         std::optional<std::string>& config_text)
      : defaults_(defaults),
        config_text_(config_text),
        variables_(variables),
        flags_(FlagsAccess::flags(flags)),
        positional_fields_(FlagsAccess::positional_fields(flags)),
        positionals_(FlagsAccess::positionals(flags)),
        of_tool_(FlagsAccess::of_tool(flags)),
        arguments_(parse_arguments(args, options(), !positional_fields_.empty() || !positionals_.empty())) {
    result_.config = defaults;
    const auto values = config_values(defaults);
    const auto plain = config_values(TrainConfig());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto& [name, value] = values[i];
      const bool is_plain = value == plain[i].second;
      result_.origins[name] = is_plain ? "default" : "program";
      // An invalid default is a mistake of the program; the message must say so.
      labels_[name] = fmt::format("{} ({})", FlagToken{.written = name}.with(value),
                                  is_plain ? "the default" : "the program's default");
    }
    for (const auto* kind : {&flags_, &positionals_}) {
      for (const ProgramFlag& flag : *kind) {
        result_.origins[flag.name] = "program";
        if (flag.kind == TextKind::existing_path) {
          const std::string& path = *std::get<std::string*>(flag.target);
          paths_[flag.name] = {.label = fmt::format("{} {} (the program's default)", flag.name, shown_value(path)),
                               .path = path,
                               .help = flag.help};
        }
      }
    }
  }

  Invocation run() {
    if (arguments_.help || arguments_.help_all) {
      result_.help = arguments_.help;
      result_.help_all = arguments_.help_all;
      return result_;  // ignore all other problems
    }
    check_program_flags();
    problems_.insert(problems_.end(), arguments_.problems.begin(), arguments_.problems.end());
    apply_options();
    apply_file();
    apply_environment();
    apply_flags();
    check_paths();
    refuse_empty_names();
    let_the_name_decide();
    let_the_stronger_begin();
    let_the_mode_decide();
    const std::vector<Problem> found = check_config(result_.config, labels_, unknown());
    problems_.insert(problems_.end(), found.begin(), found.end());
    find_idle();
    for (Problem& problem : problems_) {
      problem.hint = hint_in_form(form_of(problem), problem.hint);
    }
    throw_if_any(std::move(problems_));
    for (const auto& commit : commits_) {
      commit();
    }
    return result_;
  }

 private:
  std::vector<Option> options() const {
    auto all = mapped(kProgramFlags, [](const FlagRow& flag) {
      return Option{normal_name(flag.name), flag.value.empty()};
    });
    const TrainConfig config;
    visit_fields(config, [&all]<class T>(const FieldInfo& info, const T&) {
      all.push_back({std::string(info.name), std::is_same_v<T, bool>});
    });
    for (const ProgramFlag& flag : flags_) {
      all.push_back({flag.name, std::holds_alternative<bool*>(flag.target)});
    }
    return all;
  }

  void refuse(std::string what, std::string hint) { problems_.push_back({std::move(what), std::move(hint)}); }

  /// The form of the setting with which the problem begins.
  SettingForm form_of(const Problem& problem) const {
    if (config_file_ && problem.what.starts_with(*config_file_ + ":")) {
      return to_lower(*config_file_).ends_with("json") ? SettingForm::json : SettingForm::toml;
    }
    return problem.what.starts_with(kSettingVariables) ? SettingForm::variable : SettingForm::flag;
  }

  /// Where a value comes from.
  struct Source {
    std::string label{};   // as messages call it: "--optim.lr x", "run.toml:3: optim.lr = x"
    std::string origin{};  // "flag", "environment NAME", "file PATH"
  };

  /// Finds the field and lets `parse(info, member)` set it. False: there is no such field.
  template <class Parse>
  bool set_field(const std::string& name, const Source& source, Parse&& parse) {
    bool found = false;
    visit_fields(result_.config, [&](const FieldInfo& info, auto& value) {
      if (info.name != name) {
        return;
      }
      found = true;
      if (info.flag_only && source.origin != "flag") {
        refuse(source.label + ": can only be a flag", fmt::format("use --{} on the command line", name));
      } else if (const Refusal refusal = parse(info, value)) {
        refuse(source.label + ": " + refusal->what,
               refusal->hint.empty() ? fmt::format("{}: {}", info.name, info.help) : refusal->hint);
      } else {
        labels_[name] = source.label;
        result_.origins[name] = source.origin;
      }
    });
    return found;
  }

  void check_program_flags() {
    for (const auto& [function, kind] : {std::pair("add", &flags_), std::pair("positional", &positionals_)}) {
      for (const ProgramFlag& flag : *kind) {
        if (const auto begin = flag.name.find_first_not_of('_'); begin != 0 && begin != std::string::npos) {
          refuse(
              fmt::format("Flags::{}(\"{}\"): expected a name without - or _ in front", function, printable(flag.name)),
              fmt::format("use \"{}\"", printable(flag.name.substr(begin))));
        }
      }
    }
    std::set<std::string> taken;
    for (const Option& option : options()) {
      if (!taken.insert(option.name).second) {
        refuse(fmt::format("--{}: the program declares a flag with the name of a lockstep flag", option.name),
               "rename the program's flag");
      }
    }
    for (const ProgramFlag& positional : positionals_) {
      if (!taken.insert(positional.name).second) {
        refuse(fmt::format("{}: the program declares a positional argument with the name of another flag or argument",
                           positional.name),
               "rename the positional argument");
      }
    }
    const std::vector<std::string> fields = field_names();
    for (const std::string& field : positional_fields_) {
      if (std::ranges::find(fields, field) == fields.end()) {
        refuse(fmt::format("Flags::positional(\"{}\"): unknown setting", printable(field)),
               hint_for_unknown(field, fields, "", "see --help-all for all settings"));
      }
    }
  }

  void apply_options() {
    for (const Assignment& given : arguments_.assignments) {
      if (given.text.empty() && (given.name == "config" || given.name == "hardware")) {
        refuse(given.label + ": expected a file", fmt::format("leave --{} out", given.name));
      } else if (given.name == "config") {
        config_file_ = given.text;
      } else if (given.name == "hardware") {
        result_.hardware_file = given.text;
      } else if (given.name == "print_config") {
        read_switch(given, result_.print_config);
      } else if (given.name == "dry_run") {
        read_switch(given, result_.dry_run);
      }
    }
    result_.dry_run = result_.dry_run || !result_.hardware_file.empty();
  }

  void read_switch(const Assignment& given, bool& out) {
    if (const Refusal refusal = from_text(FieldInfo{}, given.text, out)) {
      refuse(given.label + ": " + refusal->what, fmt::format("use --{} alone", given.name));
    }
  }

  void apply_file() {
    if (!config_file_) {
      return;
    }
    result_.config_file = *config_file_;
    std::optional<std::vector<FileSetting>> settings;
    note_problems(problems_, [&] {
      if (!config_text_) {
        config_text_ = read_config_text(*config_file_);
      }
      settings = parse_config_text(*config_text_, *config_file_);
    });
    if (!settings) {
      return;
    }
    std::set<std::string> seen;
    for (const FileSetting& setting : *settings) {
      const std::string name = normal_name(setting.name);
      const Source source{fmt::format("{}: {} = {}", setting.place, setting.name, shown_value(describe(setting.value))),
                          "file " + *config_file_};
      const auto parse = [&](const FieldInfo& info, auto& value) { return from_file(info, setting.value, value); };
      if (!seen.insert(name).second) {
        refuse(fmt::format("{}: {} is set twice", setting.place, setting.name), "remove one of them");
      } else if (const auto own = name_of_program(name); own && of_tool_) {
        continue;  // only the program can check it
      } else if (own && !set_program_value(*own, source, parse)) {
        refuse(fmt::format("{}: {}: this program has no such flag", setting.place, printable(setting.name)),
               hint_for_unknown(*own, program_names(), fmt::format("{}.", kProgramSection),
                                "see --help for the program's own flags"));
      } else if (!own && !set_field(name, source, parse)) {
        refuse(fmt::format("{}: {}: unknown setting", setting.place, printable(setting.name)),
               is_program_flag(name)
                   ? fmt::format("this is the program's own flag; write it in the section [{}]", kProgramSection)
                   : hint_for_unknown(name, field_names(), "", "see --help-all for all settings"));
      }
    }
    take_directory_of_run();
  }

  /// The config.toml in the directory of a run means that run, also from elsewhere and after a copy.
  void take_directory_of_run() {
    const std::filesystem::path file = *config_file_;
    const std::filesystem::path directory = directory_of(file);
    std::error_code ignored;
    if (file.filename() == kSettingsName && std::filesystem::exists(directory / kRunRecordName, ignored)) {
      result_.config.run_dir = directory.string();
      result_.origins["run_dir"] = "file " + *config_file_;
      labels_["run_dir"] = fmt::format("{}: the directory of the run", *config_file_);
      is_of_run_ = true;
    }
  }

  /// "width" of "program.width".
  static std::optional<std::string> name_of_program(std::string_view name) {
    const std::string prefix = fmt::format("{}.", kProgramSection);
    return name.starts_with(prefix) ? std::optional(std::string(name.substr(prefix.size()))) : std::nullopt;
  }

  std::vector<std::string> program_names() const {
    std::vector<std::string> names;
    for (const auto* kind : {&flags_, &positionals_}) {
      std::ranges::transform(*kind, std::back_inserter(names), &ProgramFlag::name);
    }
    return names;
  }

  void apply_environment() {
    std::vector<std::string> settings = field_names();
    for (const std::string& name : program_names()) {
      settings.push_back(fmt::format("{}.{}", kProgramSection, name));
    }
    const auto known =
        mapped(settings, [](const std::string& setting) { return variable_name(kSettingVariables, setting); });
    const std::string of_program = variable_name(kSettingVariables, fmt::format("{}.", kProgramSection));
    for (const auto& [variable, text] : variables_.all()) {
      if (!variable.starts_with(kSettingVariables) || (of_tool_ && variable.starts_with(of_program))) {
        continue;
      }
      const auto found = std::ranges::find(known, variable);
      if (found == known.end()) {
        refuse(printable(variable) + ": unknown setting in the environment",
               hint_for_unknown(variable.substr(kSettingVariables.size()), without_prefix(known), kSettingVariables,
                                "unset it, or see --help-all for all settings"));
        continue;
      }
      const std::string& name = settings[static_cast<std::size_t>(found - known.begin())];
      const Source source{FlagToken{.written = variable, .attached = text}.with(text), "environment " + variable};
      const auto parse = [&given = text](const FieldInfo& info, auto& value) { return from_text(info, given, value); };
      if (const auto own = name_of_program(name)) {
        set_program_value(*own, source, parse);
      } else {
        set_field(name, source, parse);
      }
    }
  }

  static std::vector<std::string> without_prefix(std::vector<std::string> variables) {
    for (std::string& name : variables) {
      name.erase(0, kSettingVariables.size());
    }
    return variables;
  }

  void apply_flags() {
    const std::vector<std::string>& words = arguments_.words;
    const std::size_t fields = positional_fields_.size();
    for (std::size_t i = 0; i < words.size(); ++i) {
      const auto parse = [&](const FieldInfo& info, auto& value) { return from_text(info, words[i], value); };
      const auto source = [&](const std::string& name) {
        return Source{FlagToken{.written = name}.with(words[i]), "flag"};
      };
      if (i < fields) {
        set_field(positional_fields_[i], source(positional_fields_[i]), parse);
      } else if (i - fields < positionals_.size()) {
        const std::string& name = positionals_[i - fields].name;
        set_program_value(name, source(name), parse);
      } else if (const auto before = arguments_.switches_before.find(i); before != arguments_.switches_before.end()) {
        refuse(fmt::format("{} {}: expected true or false", before->second, shown_value(words[i])),
               fmt::format("use {} alone for true", before->second));
      } else {
        refuse(fmt::format("unexpected argument \"{}\"", shown_value(words[i])),
               is_command_of_lightning(words[i]) ? "leave it out: the program decides what it does"
                                                 : at_most(fields + positionals_.size()));
      }
    }
    // Last, because a flag counts more than an argument without a name.
    for (const Assignment& given : arguments_.assignments) {
      const auto parse = [&](const FieldInfo& info, auto& value) { return from_text(info, given.text, value); };
      const Source source{given.label, "flag"};
      set_field(given.name, source, parse);
      set_program_value(given.name, source, parse);
    }
  }

  static constexpr int kWeightOfFile = 1;
  static int weight_of(std::string_view origin) {
    return origin == "flag"                     ? 3
           : origin.starts_with("environment ") ? 2
           : origin.starts_with("file ")        ? kWeightOfFile
                                                : 0;
  }

  /// An empty variable of a script would begin, or continue, another run. A file has the defaults, as `lockstep config`
  /// prints them.
  void refuse_empty_names() {
    const TrainConfig& config = result_.config;
    const auto check = [&](const std::string& name, const std::string& value, const char* expected, const char* hint) {
      if (value.empty() && weight_of(result_.origins[name]) > kWeightOfFile) {
        refuse(fmt::format("{}: expected {}", labels_[name], expected), hint);
      }
    };
    check("run_name", config.run_name, "a name", "leave it out for the name of the program");
    check("run_dir", config.run_dir, "a directory", "leave it out for runs/<run_name>");
    check("init_weights", config.init_weights, "a directory or a file", "leave it out to begin without other weights");
  }

  /// If a run_name comes from a stronger source than run_dir (such as the config.toml of another run), run_dir does not
  /// apply.
  void let_the_name_decide() {
    if (std::string& origin = result_.origins["run_name"]; result_.config.run_name.empty() && weight_of(origin) > 0) {
      result_.config.run_name = defaults_.run_name;
      origin = "program";
    }
    if (weight_of(result_.origins["run_name"]) > weight_of(result_.origins["run_dir"])) {
      result_.config.run_dir.clear();
      result_.origins["run_dir"] = result_.origins["run_name"];
    } else if (is_of_run_ && result_.origins["run_dir"] == result_.origins["resume"] && run_continues()) {
      result_.config.resume = TrainConfig().resume;  // how that run began does not matter any more
      result_.origins["resume"] = "default";
    }
  }

  /// Whether the run has a checkpoint. Without one, and with --fresh, it begins again as it began.
  bool run_continues() const {
    std::error_code ignored;
    const std::filesystem::directory_iterator names(std::filesystem::path(result_.config.run_dir) / kCheckpointsName,
                                                    ignored);
    return !result_.config.fresh && std::any_of(begin(names), end(names), [](const auto& entry) {
      const std::string name = entry.path().filename().string();
      return name.starts_with(kStepPrefix) && name.find('.') == std::string::npos;
    });
  }

  /// Both say with which weights a run begins: of two sources the stronger one decides.
  void let_the_stronger_begin() {
    TrainConfig& config = result_.config;
    if (config.init_weights.empty() || resumes_itself(config.resume)) {
      return;
    }
    const int weights = weight_of(result_.origins["init_weights"]);
    const int resume = weight_of(result_.origins["resume"]);
    if (weights > resume) {
      config.resume = TrainConfig().resume;
      result_.origins["resume"] = "default";
    } else if (resume > weights) {
      config.init_weights.clear();
      result_.origins["init_weights"] = "default";
    }
  }

  /// A measurement or a trial needs no changes of a file or of the program that also say how the run decides.
  void let_the_mode_decide() {
    TrainConfig& config = result_.config;
    const TrainConfig off;
    const auto drop = [&](const std::string& mode, const std::string& name, auto& value, const auto& without) {
      const std::string origin = result_.origins[mode];
      const int weight = weight_of(result_.origins[name]);
      if (value == without || weight >= weight_of(origin)) {
        return;
      }
      if (weight > 0) {
        result_.warnings.push_back(fmt::format("{}: has no effect with {}", labels_[name], mode));
      }
      value = without;
      result_.origins[name] = origin;
    };
    if (config.barebones) {
      visit_excluded_by_barebones(
          config, [&](const char* name, auto& value, const auto& without) { drop("barebones", name, value, without); });
      drop("barebones", "dist.requeue", config.dist.requeue, off.dist.requeue);
    }
    if (config.fast_dev_run > 0) {
      drop("fast_dev_run", "dist.requeue", config.dist.requeue, off.dist.requeue);
    }
  }

  bool is_program_flag(std::string_view name) const {
    const auto names = program_names();
    return std::ranges::find(names, name) != names.end();
  }

  /// Finds the program's flag and lets `parse(info, value)` set its value, which is stored separately until the whole
  /// configuration is valid. False: there is no such flag.
  template <class Parse>
  bool set_program_value(const std::string& name, const Source& source, Parse&& parse) {
    for (const auto* kind : {&flags_, &positionals_}) {
      for (const ProgramFlag& flag : *kind) {
        if (flag.name == name) {
          std::visit([&](auto* target) { set_program_target(flag, target, source, parse); }, flag.target);
          return true;
        }
      }
    }
    return false;
  }

  template <class T, class Parse>
  void set_program_target(const ProgramFlag& flag, T* target, const Source& source, Parse&& parse) {
    T value = *target;
    if (const Refusal refusal = parse(FieldInfo{}, value)) {
      refuse(source.label + ": " + refusal->what, fmt::format("{}: {}", flag.name, flag.help));
      return;
    }
    if constexpr (std::is_same_v<T, std::string>) {
      if (const auto path = paths_.find(flag.name); path != paths_.end()) {
        path->second.label = source.label;
        path->second.path = value;
      }
    }
    commits_.push_back([target, value = std::move(value)] { *target = value; });
    result_.origins[flag.name] = source.origin;
  }

  /// The tool does not know the program's defaults.
  std::set<std::string, std::less<>> unknown() const {
    std::set<std::string, std::less<>> names;
    for (const auto& [name, origin] : result_.origins) {
      if (of_tool_ && origin == "default") {
        names.insert(name);
      }
    }
    return names;
  }

  void check_paths() {
    if (!result_.hardware_file.empty() || result_.print_config) {
      return;  // they are for another machine, or only shown
    }
    for (const auto& [name, given] : paths_) {
      std::error_code error;
      if (!given.path.empty() && !std::filesystem::exists(given.path, error)) {
        refuse(fmt::format("{}: {}", given.label, error ? error.message() : "no such file or directory"),
               fmt::format("{}: {}", name, given.help));
      }
    }
  }

  /// A mistake on the command line; a file may be shared by several programs and runs. The tool does not know what the
  /// program sets.
  void find_idle() {
    if (of_tool_) {
      return;
    }
    for (const IdleSetting& idle : find_idle_settings(defaults_, result_.config)) {
      const int weight = weight_of(result_.origins[idle.name]);
      if (weight < weight_of(result_.origins[idle.cause])) {
        continue;  // what it needs was switched off on purpose
      }
      const std::string what = fmt::format("{}: has no effect {}", labels_[idle.name], idle.reason);
      if (weight > kWeightOfFile) {
        refuse(what, idle.hint);
      } else if (weight == kWeightOfFile) {
        result_.warnings.push_back(fmt::format("{}; {}", what, hint_in_form(form_of({what, {}}), idle.hint)));
      }
    }
  }

  static bool is_command_of_lightning(const std::string& word) {
    return word == "fit" || word == "validate" || word == "test" || word == "predict";
  }

  std::string at_most(std::size_t words) const {
    if (words == 0) {
      return of_tool_ ? "plan describes settings and hardware; PROGRAM --dry-run prints the plan of a program"
                      : "this program takes flags only; see --help";
    }
    return fmt::format("this program takes {} at most; see --help",
                       words == 1 ? "one argument" : fmt::format("{} arguments", words));
  }

  const TrainConfig& defaults_;
  std::optional<std::string>& config_text_;
  const Variables& variables_;
  const std::vector<ProgramFlag>& flags_;
  const std::vector<std::string>& positional_fields_;
  const std::vector<ProgramFlag>& positionals_;
  const bool of_tool_;
  const ParsedArguments arguments_;
  Invocation result_{};
  std::optional<std::string> config_file_{};
  bool is_of_run_ = false;  // it is the config.toml in the directory of a run
  std::map<std::string, std::string> labels_{};
  std::map<std::string, GivenPath> paths_{};
  std::vector<Problem> problems_{};
  std::vector<std::function<void()>> commits_{};
};

}  // namespace

Invocation parse_invocation(const TrainConfig& defaults, std::span<const std::string> args, const Variables& variables,
                            const Flags& flags) {
  std::optional<std::string> config_text;
  return parse_invocation(defaults, args, variables, flags, config_text);
}

Invocation parse_invocation(const TrainConfig& defaults, std::span<const std::string> args, const Variables& variables,
                            const Flags& flags, std::optional<std::string>& config_text) {
  return Parser(defaults, args, variables, flags, config_text).run();
}

}  // namespace lockstep
