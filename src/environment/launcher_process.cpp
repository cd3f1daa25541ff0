#include "environment/launcher_process.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/text.h"
#include "environment/text_file.h"

namespace lockstep {
namespace {

constexpr int kDeepest = 32;  // of the processes above this one

/// Launchers that start each rank and wait for it. "environment" is not one: it may be a person at a terminal who
/// leaves.
bool watches_its_ranks(const Identity& identity) {
  constexpr std::array<std::string_view, 6> kWatching{"torchrun", "Open MPI", "Hydra", "MVAPICH2", "LSF", "Slurm"};
  return std::ranges::find(kWatching, identity.launcher) != kWatching.end() && !identity.variables.empty();
}

/// 0: the process is outside of this container or does not exist.
pid_t parent_of(pid_t pid) {
  if (pid == getpid()) {
    return getppid();
  }
  return static_cast<pid_t>(number_after(read_text_file(fmt::format("/proc/{}/status", pid)).value_or(""), "PPid:"));
}

/// Also false if the system does not allow us to look: the process then belongs to another user.
bool was_given(pid_t pid, const std::string& entry) {
  std::ifstream in(fmt::format("/proc/{}/environ", pid), std::ios::binary);
  for (std::string variable; std::getline(in, variable, '\0');) {
    if (variable == entry) {
      return true;
    }
  }
  return false;
}

std::string name_of(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/comm", pid));
  std::string name;
  std::getline(in, name);
  return fmt::format("pid {} ({})", pid, printable(name));
}

}  // namespace

bool is_ancestor(pid_t pid) {
  pid_t above = parent_of(getpid());
  for (int depth = 0; depth < kDeepest && above > 1 && above != pid; ++depth) {
    above = parent_of(above);
  }
  return above > 1 && above == pid;
}

std::vector<LauncherProcess> open_launcher(const Identity& identity, const Variables& environment) {
  std::vector<LauncherProcess> found;
  if (!watches_its_ranks(identity)) {
    return found;
  }
  const std::string& variable = identity.variables.front();  // contains the rank
  const std::string entry = variable + "=" + environment.get(variable).value_or("");
  pid_t child = getpid();
  for (int depth = 0; depth < kDeepest; ++depth) {
    const pid_t pid = parent_of(child);
    if (pid <= 1) {
      break;  // it ends after us, or is outside of this container
    }
    LauncherProcess process{.handle = open_process(pid), .name = name_of(pid)};
    if (parent_of(child) != pid) {  // the pid may belong to another process now
      throw CommError(fmt::format("the launcher ended while rank {} started", identity.rank));
    }
    if (process.handle.is_open()) {
      found.push_back(std::move(process));
    }
    if (!was_given(pid, entry)) {
      break;
    }
    child = pid;
  }
  return found;
}

}  // namespace lockstep
