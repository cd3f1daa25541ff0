#include "supervise/worker_process.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/exec_arguments.h"
#include "base/limit_hint.h"
#include "base/signals_blocked.h"
#include "environment/cpu_set.h"

namespace lockstep {
namespace {

/// Sent by the child if it cannot execute the program.
struct StartFailure {
  std::array<char, 16> step{};
  int error = 0;
};

/// All data that the child needs, created before the fork, because the child must not allocate memory.
struct ChildPlan {
  pid_t parent = 0;
  const char* program = nullptr;  // nullptr: own_program
  int own_program = -1;
  char** argv = nullptr;
  char** envp = nullptr;
  std::array<int, 6> inherited{};  // become 0, 1, 2, kControlFd, kProgressFd, kStoreFd; -1: none
  int failures = -1;               // pipe for a StartFailure
  const cpu_set_t* cores = nullptr;
  std::size_t cores_size = 0;
};

/// nullptr for {}.
CpuSet cpu_set_of(const std::vector<int>& cores, std::size_t& size) {
  if (cores.empty()) {
    return nullptr;
  }
  const auto count = static_cast<std::size_t>(*std::ranges::max_element(cores)) + 1;
  CpuSet set(CPU_ALLOC(count));
  size = CPU_ALLOC_SIZE(count);
  CPU_ZERO_S(size, set.get());
  for (const int core : cores) {
    CPU_SET_S(static_cast<std::size_t>(core), size, set.get());
  }
  return set;
}

struct Pipe {
  Descriptor read;
  Descriptor write;
};

std::string start_hint(const std::string& program, int error) {
  if (std::string limit = limit_hint(error); !limit.empty()) {
    return limit;
  }
  if (program == "this program") {
    return "start one process per rank, e.g. with torchrun --no-python";
  }
  switch (error) {
    case ENOEXEC:
      return "a script needs a first line such as #!/bin/sh; a program must be built for this kind of machine";
    case ENOENT:
      return "check the path, and in a script the interpreter that its first line names";
    default:
      return "check the path and its permissions";
  }
}

[[noreturn]] void throw_start_error(const std::string& program, std::string_view step, int error) {
  const auto code = error == ENOENT ? ExitCode::not_found : ExitCode::cannot_run;
  throw LaunchError(fmt::format("cannot start {}: {}: {}", program, step, std::strerror(error)),
                    start_hint(program, error), code);
}

Pipe make_pipe(const std::string& program) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw_start_error(program, "pipe", errno);
  }
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// Runs in the child, where only async-signal-safe calls are allowed.
class Child {
 public:
  explicit Child(const ChildPlan& plan) noexcept : plan_(plan) {}

  [[noreturn]] void become_program() noexcept {
    die_with_parent();
    check("setpgid", setpgid(0, 0));
    if (plan_.cores != nullptr) {
      check("affinity", sched_setaffinity(0, plan_.cores_size, plan_.cores));
    }
    place_descriptors();
    reset_signals();
    if (plan_.program != nullptr) {
      execve(plan_.program, plan_.argv, plan_.envp);
    } else {
      execveat(plan_.own_program, "", plan_.argv, plan_.envp, AT_EMPTY_PATH);
    }
    fail("exec");
  }

 private:
  [[noreturn]] void fail(const char* step) const noexcept {
    StartFailure failure{.error = errno};
    std::strncpy(failure.step.data(), step, failure.step.size() - 1);
    [[maybe_unused]] const ssize_t written = write(plan_.failures, &failure, sizeof(failure));
    _exit(static_cast<int>(ExitCode::cannot_run));
  }

  template <class Result>
  Result check(const char* step, Result result) const noexcept {
    if (result < 0) {
      fail(step);
    }
    return result;
  }

  void die_with_parent() const noexcept {
    check("prctl", prctl(PR_SET_PDEATHSIG, SIGKILL));
    if (getppid() != plan_.parent) {  // the parent died before the line above
      _exit(static_cast<int>(ExitCode::cannot_run));
    }
  }

  void place_descriptors() noexcept {
    const int count = static_cast<int>(plan_.inherited.size());
    const auto out_of_the_way = [&](int fd) { return check("fcntl", fcntl(fd, F_DUPFD_CLOEXEC, count)); };
    plan_.failures = out_of_the_way(plan_.failures);
    if (plan_.own_program >= 0) {
      plan_.own_program = out_of_the_way(plan_.own_program);
    }
    for (int& fd : plan_.inherited) {
      fd = fd >= 0 ? out_of_the_way(fd) : -1;
    }
    for (int target = 0; target < count; ++target) {
      if (const int fd = plan_.inherited[static_cast<std::size_t>(target)]; fd >= 0) {
        check("dup2", dup2(fd, target));
      } else {
        close(target);
      }
    }
    if (close_range(static_cast<unsigned>(count), ~0U, CLOSE_RANGE_CLOEXEC) != 0) {
      close_on_exec_one_by_one(count);
    }
  }

  /// For kernels before 5.11, and for containers that reject unknown system calls.
  void close_on_exec_one_by_one(int first) const noexcept {
    const int folder = check("/proc/self/fd", open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    alignas(dirent64) std::array<char, 4096> entries;
    while (const long size = check("/proc/self/fd", syscall(SYS_getdents64, folder, entries.data(), entries.size()))) {
      for (long at = 0; at < size;) {
        const auto* entry = reinterpret_cast<const dirent64*>(entries.data() + at);
        at += entry->d_reclen;
        int fd = -1;
        std::from_chars(entry->d_name, entry->d_name + std::strlen(entry->d_name), fd);
        if (fd >= first) {
          check("fcntl", fcntl(fd, F_SETFD, FD_CLOEXEC));
        }
      }
    }
  }

  void reset_signals() const noexcept {
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;
    for (int signal = 1; signal < NSIG; ++signal) {
      struct sigaction before {};
      sigaction(signal, nullptr, &before);
      if (is_stop_request(signal) && before.sa_handler == SIG_IGN) {
        continue;  // ignored on purpose, as by nohup: a rank may get the signal without the launcher
      }
      sigaction(signal, &standard, nullptr);  // fails for SIGKILL and SIGSTOP, which always have the default action
    }
    sigset_t blocked;
    sigemptyset(&blocked);
    if (plan_.program == nullptr) {
      sigaddset(&blocked, SIGUSR2);  // a request for stacks waits until this library can answer it: CrashHandler
    }
    check("sigprocmask", sigprocmask(SIG_SETMASK, &blocked, nullptr));
  }

  ChildPlan plan_;
};

pid_t fork_child(const ChildPlan& plan) {
  const AllSignalsBlocked blocked;
  const pid_t pid = fork();
  if (pid == 0) {
    Child(plan).become_program();
  }
  return pid;
}

bool read_failure(int fd, StartFailure& failure) {
  const ssize_t size = retry([&] { return read(fd, &failure, sizeof(failure)); });
  return size == static_cast<ssize_t>(sizeof(failure));
}

}  // namespace

bool is_stop_request(int signal) noexcept {
  return signal == SIGINT || signal == SIGTERM || signal == SIGUSR1 || signal == SIGHUP;
}

WorkerProcess::WorkerProcess(const WorkerCommand& command) : channel_(-1) {
  const std::string program = command.program.empty() ? "this program" : command.program;
  std::vector<std::string> argv = command.argv;
  std::vector<std::string> environment = environment_entries(command.environment);
  const std::vector<char*> argv_pointers = pointers_to(argv);
  const std::vector<char*> environment_pointers = pointers_to(environment);

  const Descriptor no_input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!no_input.is_open()) {
    throw_start_error(program, "/dev/null", errno);
  }
  Pipe output = make_pipe(program);
  Pipe errors = make_pipe(program);
  Pipe failures = make_pipe(program);
  auto [supervisor_end, worker_end] = make_channel_pair();

  std::size_t cores_size = 0;
  const auto cores = cpu_set_of(command.cores, cores_size);
  const ChildPlan plan{.parent = getpid(),
                       .program = command.program.empty() ? nullptr : command.program.c_str(),
                       .own_program = command.own_program,
                       .argv = const_cast<char**>(argv_pointers.data()),
                       .envp = const_cast<char**>(environment_pointers.data()),
                       .inherited = {no_input.get(), output.write.get(), errors.write.get(), worker_end.fd(),
                                     command.progress, command.store_socket},
                       .failures = failures.write.get(),
                       .cores = cores.get(),
                       .cores_size = cores_size};
  pid_ = fork_child(plan);
  if (pid_ < 0) {
    throw_start_error(program, "fork", errno);
  }
  pidfd_ = open_process(pid_);
  failures.write.close();
  StartFailure failure;
  if (!pidfd_.is_open()) {
    const int error = errno;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    throw_start_error(program, "pidfd_open", error);
  }
  if (read_failure(failures.read.get(), failure)) {
    reap();
    throw_start_error(program, failure.step.data(), failure.error);
  }
  for (Pipe* pipe : {&output, &errors}) {
    fcntl(pipe->read.get(), F_SETFL, O_NONBLOCK);
  }
  output_ = std::move(output.read);
  errors_ = std::move(errors.read);
  channel_ = std::move(supervisor_end);
}

WorkerProcess::WorkerProcess(WorkerProcess&& other) noexcept = default;

WorkerProcess::~WorkerProcess() {
  if (is_running()) {
    kill_group();
    reap();
  }
}

void WorkerProcess::signal_group(int signal) const noexcept { kill(-pid_, signal); }

ExitStatus WorkerProcess::status() const noexcept {
  siginfo_t info{};
  retry([&] { return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT); });
  return info.si_code == CLD_EXITED ? ExitStatus{.code = info.si_status, .signal = 0}
                                    : ExitStatus{.code = 0, .signal = info.si_status};
}

ExitStatus WorkerProcess::reap() noexcept {
  // Until the process is reaped, its pid and the group's id cannot be reused: so check first, then kill the group, then
  // reap.
  const ExitStatus ended = status();
  kill_group();
  retry([&] { return waitpid(pid_, nullptr, 0); });
  pidfd_.close();
  return ended;
}

}  // namespace lockstep
