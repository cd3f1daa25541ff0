#include "launch/requeue.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/exec_arguments.h"
#include "base/text.h"

namespace lockstep {
namespace {

std::string number_of(const Variables& variables, const char* name) {
  std::string text = variables.get(name).value_or("");
  if (const auto number = parse_int(text); !number || *number < 0) {
    throw ConfigError(fmt::format("{}=\"{}\": expected a whole number", name, printable(text)),
                      "Slurm sets it; leave out --dist.requeue outside of a job");
  }
  return text;
}

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

void run_requeue(const std::vector<std::string>& command, const Variables& variables) {
  std::vector<std::string> words = command;
  std::vector<std::string> entries = environment_entries(variables);
  const auto argv = pointers_to(words);
  const auto envp = pointers_to(entries);
  const std::string text = join(command, " ");
  pid_t pid = -1;
  if (const int error = posix_spawnp(&pid, argv[0], nullptr, nullptr, argv.data(), envp.data()); error != 0) {
    throw LaunchError(fmt::format("{}: {}", text, std::strerror(error)), "submit the job again by hand");
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    throw LaunchError(
        fmt::format("{} failed with {}", text,
                    WIFEXITED(status) ? fmt::format("code {}", WEXITSTATUS(status)) : std::string("a signal")),
        "submit the job again by hand; jobs started with --no-requeue cannot be requeued");
  }
}

}  // namespace lockstep
