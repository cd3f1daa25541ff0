#include "launch/requeue.h"

#include <array>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/descriptor.h"
#include "base/exec_arguments.h"
#include "base/text.h"
#include "base/write_all.h"

namespace lockstep {
namespace {

constexpr const char* kByHand = "submit the job again by hand";

std::string number_of(const Variables& variables, const char* name) {
  std::string text = variables.get(name).value_or("");
  if (const auto number = parse_int(text); !number || *number < 0) {
    throw ConfigError(fmt::format("{}=\"{}\": expected a whole number", name, printable(text)),
                      "Slurm sets it; leave out --dist.requeue outside of a job");
  }
  return text;
}

struct Ended {
  int status = 0;
  std::string output{};
};

/// Runs the words without a shell.
Ended run(std::vector<std::string> words, const Variables& variables) {
  const std::string text = join(words, " ");
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw LaunchError(fmt::format("{}: {}", text, std::strerror(errno)), kByHand);
  }
  const Descriptor output(ends[0]);
  Descriptor input(ends[1]);
  std::vector<std::string> entries = environment_entries(variables);
  const auto argv = pointers_to(words);
  const auto envp = pointers_to(entries);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.get(), STDOUT_FILENO);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), envp.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    throw LaunchError(fmt::format("{}: {}", text, std::strerror(error)), kByHand);
  }
  input.close();
  Ended ended{.output = read_to_end(output.get())};
  retry([&] { return waitpid(pid, &ended.status, 0); });
  return ended;
}

bool has_succeeded(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

}  // namespace

std::vector<std::string> requeue_command(const Variables& variables) {
  if (!variables.has("SLURM_JOB_ID")) {
    return {};
  }
  const std::string job = variables.has("SLURM_ARRAY_JOB_ID")
                              ? fmt::format("{}_{}", number_of(variables, "SLURM_ARRAY_JOB_ID"),
                                            number_of(variables, "SLURM_ARRAY_TASK_ID"))
                              : number_of(variables, "SLURM_JOB_ID");
  return {"scontrol", "requeue", job};
}

bool may_requeue(std::string_view job) {
  return job.find("JobState=") == std::string_view::npos || job.find("JobState=RUNNING") != std::string_view::npos ||
         job.find("Reason=TimeLimit") != std::string_view::npos;
}

bool run_requeue(const std::vector<std::string>& command, const Variables& variables) {
  const Ended shown = run({command.front(), "show", "job", command.back()}, variables);
  if (has_succeeded(shown.status) && !may_requeue(shown.output)) {
    return false;
  }
  if (const int status = run(command, variables).status; !has_succeeded(status)) {
    throw LaunchError(
        fmt::format("{} failed with {}", join(command, " "),
                    WIFEXITED(status) ? fmt::format("code {}", WEXITSTATUS(status)) : std::string("a signal")),
        fmt::format("{}; jobs started with --no-requeue cannot be requeued", kByHand));
  }
  return true;
}

void queue_again(const Variables& variables) {
  try {
    if (!run_requeue(requeue_command(variables), variables)) {
      log_info("the job is not queued again: it was cancelled, or is queued already");
    }
  } catch (const Error& error) {
    log_warning(error_text(error));
  }
}

}  // namespace lockstep
