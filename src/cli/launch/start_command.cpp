#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/config/config_io.h>
#include <lockstep/environment/hardware.h>
#include <lockstep/storage/checkpoint_dir.h>

#include "base/exec_arguments.h"
#include "base/run_files.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/launch/plan_command.h"
#include "cli/launch/run_command.h"
#include "cli/launch/shell_words.h"
#include "cli/runs/run_data.h"
#include "config/field_value.h"
#include "config/flags.h"
#include "plan/resolve_checked.h"

namespace lockstep {
namespace {

constexpr FlagRow kFlags[] = {
    {"yes", "", "start without the last question"},
    {"print", "", "print the command and exit; it can be pasted into a shell"},
    {"launcher", "srun|own", "in a Slurm job: srun (all its nodes) or own (this machine only)"},
};

constexpr std::string_view kOwn = "own";
constexpr std::string_view kSrun = "srun";

/// What the user asks for: flags at first, then also answers.
struct StartRequest {
  std::string program{};
  std::string launcher{};
  std::vector<std::string> settings{};           ///< as flags of the program
  std::vector<std::string> program_arguments{};  ///< those after "--"
};

struct Question {
  std::string text{};           ///< "number of ranks"
  std::string flag{};           ///< that answers it: "--nprocs"; "": only --yes does
  std::string default_text{};   ///< what an empty answer means; "": there must be an answer
  std::string default_value{};  ///< the answer without a terminal
};

/// Questions on standard error, answers from standard input.
class Interview {
 public:
  explicit Interview(const Variables& variables)
      : interactive_(isatty(STDIN_FILENO) == 1 && isatty(STDERR_FILENO) == 1),
        columns_(text_columns(probe_terminal(STDERR_FILENO, variables).width)) {}

  bool interactive() const noexcept { return interactive_; }

  void say(std::string_view text) const {
    if (interactive_) {
      const std::size_t indent = std::min(text.find_first_not_of(' '), text.size());
      write_line(fmt::format("{:{}}{}", "", indent, wrap(text.substr(indent), indent, columns_)));
    }
  }

  /// Asks until `take` accepts the answer; `take` throws ConfigError for a wrong one. "" is the default.
  void ask(const Question& question, const std::function<void(const std::string&)>& take) const {
    if (!interactive_) {
      take(question.default_value);
      return;
    }
    while (true) {
      const std::string flag = question.flag.empty() ? "" : fmt::format(" ({})", question.flag);
      const std::string otherwise = question.default_text.empty() ? "" : fmt::format(" [{}]", question.default_text);
      fmt::print(stderr, "{}{}{}: ", question.text, flag, otherwise);
      try {
        take(read_answer());
        return;
      } catch (const ConfigError& error) {
        write_line(error_text(error));
      }
    }
  }

 private:
  static std::string read_answer() {
    std::string line;
    if (!std::getline(std::cin, line)) {
      write_line("");
      throw LaunchError("the input ended before all questions were answered; nothing was started",
                        "answer with flags; see lockstep start --help", ExitCode::usage);
    }
    return std::string(trim(line));
  }

  bool interactive_;
  std::size_t columns_;
};

bool is_set(const Invocation& invocation, const std::string& name) {
  const auto found = invocation.origins.find(name);
  return found != invocation.origins.end() && found->second != "program" && found->second != "default";
}

/// The settings that flags or answers set, as flags of the program.
std::vector<std::string> setting_words(const Invocation& invocation) {
  std::vector<std::string> words;
  if (!invocation.config_file.empty()) {
    words.insert(words.end(), {"--config", invocation.config_file.string()});
  }
  visit_fields(invocation.config, [&]<class T>(const FieldInfo& info, const T& value) {
    const std::string text = to_text(value);
    const bool replaced = info.name == "run_dir" && text.empty();  // by run_name
    if (invocation.origins.at(std::string(info.name)) != "flag" || replaced) {
      return;
    }
    if constexpr (std::is_same_v<T, bool>) {
      words.push_back(fmt::format("--{}{}", value ? "" : "no-", info.name));
    } else if (text.empty() || text.starts_with('-')) {
      words.push_back(fmt::format("--{}={}", info.name, text));
    } else {
      words.insert(words.end(), {fmt::format("--{}", info.name), text});
    }
  });
  if (invocation.print_config) {
    words.emplace_back("--print-config");
  }
  if (!invocation.hardware_file.empty()) {
    words.insert(words.end(), {"--hardware", invocation.hardware_file.string()});
  } else if (invocation.dry_run) {
    words.emplace_back("--dry-run");
  }
  return words;
}

class Guide {
 public:
  Guide(StartRequest request, const Variables& variables)
      : request_(std::move(request)),
        variables_(variables),
        hardware_(probe_hardware(variables)),
        interview_(variables) {
    const auto nodes = parse_int(variables.get("SLURM_JOB_NUM_NODES").value_or("1")).value_or(1);
    slurm_job_ = variables.get("SLURM_JOB_ID").value_or("");
    job_nodes_ = static_cast<int>(std::clamp<std::int64_t>(nodes, 1, 65536));
  }

  /// The command, after all questions.
  std::vector<std::string> command() {
    check(request_);
    show_machine();
    ask_program();
    ask_launcher();
    ask_ranks();
    ask_number("batch_size", "samples per rank and micro-batch", {"global_batch_size"});
    ask_number("max_epochs", "epochs", {"max_steps"});
    ask_name();
    ask_resume();
    std::vector<std::string> words;
    if (request_.launcher == kSrun) {
      words = {"srun", "--kill-on-bad-exit=1", "--ntasks-per-node=1"};
    }
    words.push_back(request_.program);
    const auto settings = setting_words(parse(request_));
    words.insert(words.end(), settings.begin(), settings.end());
    words.insert(words.end(), request_.program_arguments.begin(), request_.program_arguments.end());
    return words;
  }

  const Interview& interview() const noexcept { return interview_; }

 private:
  Invocation parse(const StartRequest& request) const {
    return parse_invocation(defaults(request), request.settings, variables_, FlagsAccess::for_tool());
  }

  static TrainConfig defaults(const StartRequest& request) {
    return {.run_name = std::filesystem::path(request.program).filename().string()};
  }

  int nodes(const StartRequest& request) const { return request.launcher == kSrun ? job_nodes_ : 1; }

  /// The errors that the program itself would report, as far as they do not depend on its defaults. Throws:
  /// ConfigError.
  void check(const StartRequest& request) const {
    const Invocation invocation = parse(request);
    const Hardware hardware = invocation.hardware_file.empty() ? hardware_ : read_hardware(invocation.hardware_file);
    resolve_checked(invocation.config, {}, hardware,
                    nodes(request) > 1 ? std::optional(one_process_per_node(nodes(request), "Slurm")) : std::nullopt);
  }

  void add(const std::string& flag) {
    StartRequest longer = request_;
    longer.settings.push_back(flag);
    check(longer);
    request_ = std::move(longer);
  }

  /// The answer "" leaves the default of the program.
  void ask_setting(const std::string& name, const Question& question) {
    interview_.ask(question, [&](const std::string& answer) {
      if (!answer.empty()) {
        add(fmt::format("--{}={}", name, answer));
      }
    });
  }

  void show_machine() const {
    interview_.say(hardware_.gpus.empty()
                       ? fmt::format("This machine has {} and no GPU{}", counted(hardware_.cores, "core"),
                                     hardware_.gpu_note.empty() ? "." : ": " + hardware_.gpu_note)
                       : fmt::format("This machine has {} and {}.", counted(hardware_.cores, "core"),
                                     counted(std::ssize(hardware_.gpus), "GPU")));
    for (const Gpu& gpu : hardware_.gpus) {
      interview_.say(
          fmt::format("  {}, {} of {} free", gpu.name, human_bytes(gpu.free_bytes), human_bytes(gpu.memory_bytes)));
    }
    if (!slurm_job_.empty()) {
      interview_.say(fmt::format("This shell is in the Slurm job {} with {}.", printable(slurm_job_),
                                 counted(job_nodes_, "node")));
    } else if (is_installed("sbatch")) {
      interview_.say("Slurm is installed, but this shell is in no job: the run uses this machine only.");
    }
    interview_.say("An empty answer takes the value in [ ].");
  }

  bool is_installed(const std::string& program) const {
    try {
      find_program(program, variables_);
      return true;
    } catch (const LaunchError&) {
      return false;
    }
  }

  void take_program(const std::string& program) {
    if (program.empty()) {
      throw ConfigError("start: no program to start", "lockstep start ./train; see lockstep start --help");
    }
    try {
      find_program(program, variables_);
    } catch (const LaunchError& error) {
      if (!interview_.interactive()) {
        throw;
      }
      throw ConfigError(error.what(), error.hint());  // is asked again
    }
    request_.program = program;
  }

  void ask_program() {
    if (!request_.program.empty()) {
      find_program(request_.program, variables_);
      return;
    }
    interview_.ask({.text = "program"}, [&](const std::string& answer) { take_program(answer); });
  }

  void take_launcher(const std::string& launcher) {
    if (launcher != kSrun && launcher != kOwn) {
      throw ConfigError(fmt::format("--launcher {}: expected srun or own", printable(launcher)),
                        "srun: on all nodes of the Slurm job; own: on this machine only");
    }
    if (launcher == kSrun && slurm_job_.empty()) {
      throw ConfigError("--launcher srun: this shell is in no Slurm job", "start it inside salloc or sbatch");
    }
    StartRequest other = request_;
    other.launcher = launcher;
    check(other);
    request_ = std::move(other);
  }

  void ask_launcher() {
    if (!request_.launcher.empty()) {
      take_launcher(request_.launcher);
      return;
    }
    if (slurm_job_.empty()) {
      take_launcher(std::string(kOwn));
      return;
    }
    const std::string usual(kSrun);
    interview_.ask({.text = fmt::format("launcher, srun for {} or own for this one", counted(job_nodes_, "node")),
                    .flag = "--launcher",
                    .default_text = usual},
                   [&](const std::string& answer) { take_launcher(answer.empty() ? usual : answer); });
  }

  void ask_ranks() {
    const Invocation invocation = parse(request_);
    const auto decided = {"devices", "nprocs", "compute_setup"};
    if (std::ranges::any_of(decided, [&](const char* name) { return is_set(invocation, name); })) {
      return;
    }
    if (!hardware_.gpus.empty()) {
      ask_setting("devices", {.text = "devices: a number of GPUs, indices such as 0,2, or cpu",
                              .flag = "--devices",
                              .default_text = fmt::format("all {}", counted(std::ssize(hardware_.gpus), "GPU"))});
    } else {
      ask_setting("nprocs",
                  {.text = "number of ranks", .flag = "--nprocs", .default_text = fmt::format("{}", nodes(request_))});
    }
  }

  void ask_number(const std::string& name, const std::string& text, const std::vector<std::string>& others) {
    const Invocation invocation = parse(request_);
    if (!is_set(invocation, name) &&
        std::ranges::none_of(others, [&](const auto& other) { return is_set(invocation, other); })) {
      ask_setting(name, {.text = text, .flag = "--" + name, .default_text = "as the program says"});
    }
  }

  void ask_name() {
    const Invocation invocation = parse(request_);
    if (!is_set(invocation, "run_name") && !is_set(invocation, "run_dir")) {
      ask_setting("run_name",
                  {.text = "name of the run", .flag = "--run_name", .default_text = invocation.config.run_name});
    }
  }

  void ask_resume() {
    const Invocation invocation = parse(request_);
    const std::filesystem::path directory = run_directory(invocation.config);
    FileSystem& fs = real_file_system();
    if (is_set(invocation, "resume") || invocation.config.fresh || !is_run(fs, directory)) {
      return;
    }
    const auto steps = CheckpointDir(fs, directory / kCheckpointsName).steps();
    const std::string usual = "resume";
    interview_.say(steps.empty() ? fmt::format("{} contains a run without a checkpoint.", directory.string())
                                 : fmt::format("{} contains a run; its newest checkpoint is step {}.",
                                               directory.string(), *std::ranges::max_element(steps)));
    interview_.ask({.text = "resume it, or fresh: start over and keep the old directory beside it",
                    .flag = "--resume, --fresh",
                    .default_text = usual},
                   [&](const std::string& answer) {
                     if (answer == "fresh") {
                       add("--fresh");
                     } else if (!answer.empty() && answer != usual) {
                       throw ConfigError(fmt::format("found {}, expected resume or fresh", printable(answer)));
                     }
                   });
  }

  StartRequest request_;
  const Variables& variables_;
  Hardware hardware_;
  std::string slurm_job_{};
  int job_nodes_ = 1;
  Interview interview_;
};

[[noreturn]] void become(std::vector<std::string> words, const Variables& variables) {
  const std::string file = find_program(words.front(), variables);
  std::vector<std::string> entries = environment_entries(variables);
  std::signal(SIGXFSZ, SIG_DFL);  // main() ignores it; the program decides itself
  execve(file.c_str(), pointers_to(words).data(), pointers_to(entries).data());
  throw LaunchError(fmt::format("cannot run {}: {}", file, std::strerror(errno)));
}

int start(const CommandLine& line, const Variables& variables) {
  if (const auto identity = detect_identity(variables); identity && identity->launcher != "single") {
    throw ConfigError(fmt::format("start: found the variables of a launcher ({}: {}), expected a shell",
                                  identity->launcher, join(identity->variables, ", ")),
                      "start the program itself");
  }
  const StartRequest request{.program = line.arguments.empty() ? "" : line.arguments[0],
                             .launcher = line.value("launcher", ""),
                             .settings = setting_words(line.settings),
                             .program_arguments = line.rest};
  Guide guide(request, variables);
  const std::vector<std::string> command = guide.command();
  if (line.has("print")) {
    fmt::print("{}\n", shell_command(command));
    return 0;
  }
  write_line("command: " + shell_command(command));
  bool yes = line.has("yes");
  if (!yes) {
    guide.interview().ask({.text = "start it, y or n", .default_text = "n", .default_value = "n"},
                          [&](const std::string& answer) {
                            const std::string word = to_lower(answer);
                            yes = word == "y" || word == "yes";
                            if (!yes && !word.empty() && word != "n" && word != "no") {
                              throw ConfigError(fmt::format("found {}, expected y or n", printable(answer)));
                            }
                          });
  }
  if (!yes && !guide.interview().interactive()) {
    throw ConfigError("start: there is no terminal to ask, so nothing was started",
                      "use --yes to start the command, or --print to only print it");
  }
  if (!yes) {
    write_line("nothing was started");
    return 0;
  }
  become(command, variables);
}

}  // namespace

const Command kStartCommand{
    .name = "start",
    .arguments = "[PROGRAM] [-- ARGUMENT...]",
    .summary = "ask for what a run needs, then start it",
    .description =
        "Asks for what flags do not say: the program, the launcher in a Slurm job, ranks, batch and length, and what "
        "to "
        "do with an earlier run of this name. Then it prints the command and starts it. Without a terminal it takes "
        "the "
        "defaults. The program's own flags come after --.",
    .exit_codes = "that of the program; 0 nothing was started, 2 usage, 126 or 127 the program cannot be started",
    .flags = kFlags,
    .form = WordForm::settings,
    .run = start};

}  // namespace lockstep
