#include "launch/descendants.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/descriptor.h"
#include "base/exec_arguments.h"
#include "base/limit_hint.h"
#include "base/text.h"
#include "base/write_all.h"
#include "environment/own_variables.h"
#include "failure/deadlines.h"

namespace lockstep {
namespace {

constexpr int kPauseMs = 5;
constexpr int kCleanScans = 2;  // a process that forks and ends during one scan is found by the next

constexpr std::array<std::string_view, 3> kJobVariables{"SLURM_JOB_ID=", "LSB_JOBID=", "PBS_JOBID="};

std::string read_all(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return file.is_open() ? read_to_end(file.get()) : std::string();
}

bool names_a_job(const std::string& entry) {
  return std::ranges::any_of(kJobVariables, [&](std::string_view variable) {
    return entry.starts_with(variable) && entry.size() > variable.size();
  });
}

/// A job that a rank has submitted has the mark, too, and may run on this machine.
bool is_of_another_job(const std::vector<std::string>& entries, const LaunchMark& launch) {
  return std::ranges::any_of(entries, [&](const std::string& entry) {
    return names_a_job(entry) && std::ranges::find(launch.jobs, entry) == launch.jobs.end();
  });
}

/// The initial environment of the process, if it has the mark of the launch and is not of another batch job. A zombie
/// has none.
std::vector<std::string> marked_environment(pid_t pid, const LaunchMark& launch) {
  const std::string environment = read_all("/proc/" + std::to_string(pid) + "/environ");
  if (environment.find(launch.id) == std::string::npos) {
    return {};  // applies to nearly all processes of the machine
  }
  const std::string mark = std::string(own_variables::kLaunchMark) + "=";
  std::vector<std::string> entries = split(environment, '\0');
  const bool is_marked = std::ranges::any_of(entries, [&](const std::string& entry) {
    return entry.starts_with(mark) && entry.find(launch.id, mark.size()) != std::string::npos;
  });
  return is_marked && !is_of_another_job(entries, launch) ? std::move(entries) : std::vector<std::string>();
}

bool is_marked(pid_t pid, const LaunchMark& launch) { return !marked_environment(pid, launch).empty(); }

bool may_finish(pid_t pid, const LaunchMark& launch) {
  return std::ranges::any_of(marked_environment(pid, launch), [](const std::string& entry) {
    return entry.starts_with(std::string(own_variables::kMayFinish) + "=");
  });
}

std::vector<pid_t> all_processes() {
  struct Close {
    void operator()(DIR* directory) const noexcept { closedir(directory); }
  };
  std::vector<pid_t> pids;
  const std::unique_ptr<DIR, Close> directory(opendir("/proc"));
  while (const dirent* entry = directory ? readdir(directory.get()) : nullptr) {
    if (const auto pid = parse_int(entry->d_name)) {
      pids.push_back(static_cast<pid_t>(*pid));
    }
  }
  return pids;
}

/// Kills every process with the mark; returns their number.
int kill_marked(const LaunchMark& launch) {
  int found = 0;
  for (const pid_t pid : all_processes()) {
    if (!is_marked(pid, launch)) {
      continue;
    }
    const Descriptor process = open_process(pid);
    if (process.is_open() && is_marked(pid, launch)) {  // checked again: the pid may belong to another process now
      syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0);
      ++found;
    }
  }
  return found;
}

/// At the end of its input the program of report.command sends what it has not sent yet.
void let_finish(const LaunchMark& launch) {
  constexpr int kLongPauseMs = 20;
  const auto deadline = std::chrono::steady_clock::now() + deadlines::kMayFinish;
  while (std::chrono::steady_clock::now() < deadline &&
         std::ranges::any_of(all_processes(), [&](pid_t pid) { return may_finish(pid, launch); })) {
    poll(nullptr, 0, kLongPauseMs);
  }
}

/// Calls `scan` until it finds nothing.
template <class Scan>
void until_none_is_left(Scan&& scan) {
  const auto deadline = std::chrono::steady_clock::now() + deadlines::kDescendants;
  for (int clean = 0; clean < kCleanScans && std::chrono::steady_clock::now() < deadline;) {
    clean = scan() == 0 ? clean + 1 : 0;
    poll(nullptr, 0, clean < kCleanScans ? kPauseMs : 0);
  }
}

/// Orphans become children of the main thread, which calls this; other threads have separate lists.
std::vector<pid_t> children() {
  const std::string self = std::to_string(getpid());
  std::vector<pid_t> pids;
  for (const std::string& word : split(read_all("/proc/" + self + "/task/" + self + "/children"), ' ')) {
    if (const auto pid = parse_int(word)) {
      pids.push_back(static_cast<pid_t>(*pid));
    }
  }
  return pids;
}

/// Main function of the watcher: waits until the supervisor is killed; one that ends normally ends the watcher first.
/// It has its own session, so that no terminal signal ends it.
[[noreturn]] void watch(int pipe, const LaunchMark& launch) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  setsid();
  prctl(PR_SET_NAME, "lockstep-watch");
  const int nothing = open("/dev/null", O_RDWR);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    dup2(nothing, fd);  // so that readers of the supervisor's output see its end
  }
  constexpr int kPipe = STDERR_FILENO + 1;
  dup2(pipe, kPipe);
  close_range(kPipe + 1, ~0U, 0);
  [[maybe_unused]] const int moved = chdir("/");  // so that the watcher keeps no mount busy

  char byte = 0;
  retry([&] { return read(kPipe, &byte, 1); });
  until_none_is_left([&] { return kill_marked(launch); });
  _exit(0);
}

}  // namespace

Descendants::Descendants(std::string launch_id, const Variables& environment) : launch_{.id = std::move(launch_id)} {
  std::ranges::copy_if(environment_entries(environment), std::back_inserter(launch_.jobs), names_a_job);
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw LaunchError(fmt::format("cannot watch workers: pipe: {}", std::strerror(errno)), limit_hint(errno));
  }
  const Descriptor watched(ends[0]);
  watcher_pipe_ = Descriptor(ends[1]);
  watcher_ = fork();
  if (watcher_ == 0) {
    watcher_pipe_.close();  // else this process would keep the pipe open for which it waits
    watch(watched.get(), launch_);
  }
  if (watcher_ < 0) {
    throw LaunchError(fmt::format("cannot watch workers: fork: {}", std::strerror(errno)), limit_hint(errno));
  }
  if (!adopts_orphans_) {
    return;
  }
  for (const pid_t child : children()) {
    own_.insert(child);
  }
  prctl(PR_GET_CHILD_SUBREAPER, &subreaper_before_);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

Descendants::~Descendants() {
  end();
  if (adopts_orphans_) {
    prctl(PR_SET_CHILD_SUBREAPER, subreaper_before_);
  }
  kill(watcher_, SIGKILL);  // it has nothing to do, and may be stopped or dead already
  retry([&] { return waitpid(watcher_, nullptr, 0); });
}

void Descendants::reap() noexcept {
  while (adopts_orphans_) {
    siginfo_t ended{};
    // Orphans become children of the main thread; those of the program's other threads are not ours.
    if (waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT | __WNOTHREAD) != 0 || ended.si_pid == 0) {
      return;
    }
    if (!own_.contains(ended.si_pid)) {
      waitpid(ended.si_pid, nullptr, WNOHANG);
      continue;
    }
    for (const pid_t child : children()) {  // one that is ours has ended before them, and perhaps nobody waits for it
      if (!own_.contains(child)) {
        waitpid(child, nullptr, WNOHANG);
      }
    }
    return;
  }
}

int Descendants::kill_orphans() noexcept {
  if (!adopts_orphans_) {
    return 0;
  }
  int found = 0;
  for (const pid_t child : children()) {
    if (!own_.contains(child)) {
      kill(child, SIGKILL);  // not reaped before the line below, so the pid still belongs to it
      waitpid(child, nullptr, WNOHANG);
      ++found;
    }
  }
  return found;
}

void Descendants::end() noexcept {
  let_finish(launch_);
  until_none_is_left([this] { return kill_marked(launch_) + kill_orphans(); });
}

}  // namespace lockstep
