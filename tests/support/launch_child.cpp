// A worker for the tests of the launcher. Each argument is the task of one rank; the last one also applies to all
// further ranks.
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/base/control.h>
#include <lockstep/base/error.h>
#include <lockstep/base/variables.h>
#include <lockstep/launch/launcher.h>

#include "base/assertion.h"
#include "base/descriptor.h"
#include "base/text.h"
#include "failure/peer_monitor.h"
#include "ipc/channel.h"
#include "ipc/progress_record.h"
#include "rank/channel_link.h"
#include "rank/crash_handler.h"
#include "rank/signals.h"
#include "rank/terminate_handler.h"
#include "supervise/worker_process.h"
#include "support/loud_lines.h"

/// With a sanitizer's handlers, ours would not be installed.
extern "C" const char* __asan_default_options() {
  return "handle_segv=0:handle_abort=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0:use_sigaltstack=0";
}

namespace gloo {
struct IoException : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct EnforceNotMet : std::runtime_error {
  using std::runtime_error::runtime_error;
};
}  // namespace gloo

namespace c10 {
struct AcceleratorError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
}  // namespace c10

/// Frees a tensor after an error of the GPU.
struct FreesOnBrokenGpu {
  ~FreesOnBrokenGpu() { fail(); }
  static void fail() { throw c10::AcceleratorError("CUDA error: device-side assert triggered"); }
};

namespace {

using namespace lockstep;

[[noreturn]] void wait_for_ever() {
  while (true) {
    pause();
  }
}

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

std::string list_descriptors() {
  std::vector<int> found;
  DIR* directory = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(directory)) {
    const auto fd = parse_int(entry->d_name);
    if (fd && *fd != dirfd(directory)) {
      found.push_back(static_cast<int>(*fd));
    }
  }
  closedir(directory);
  std::sort(found.begin(), found.end());
  return format_ranges(found);
}

bool has_signal_defaults() {
  sigset_t blocked;
  sigprocmask(SIG_BLOCK, nullptr, &blocked);
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    // Handlers do not survive exec; an ignored or blocked signal does.
    if (sigismember(&blocked, signal) == 1 || action.sa_handler == SIG_IGN) {
      return false;
    }
  }
  return true;
}

void inspect(int argc, char** argv, const Variables& environment) {
  int death_signal = 0;
  prctl(PR_GET_PDEATHSIG, &death_signal);
  char byte = 0;
  say("descriptors " + list_descriptors());
  say("stdin " + std::to_string(read(STDIN_FILENO, &byte, 1)));
  say("own group " + std::to_string(getpgrp() == getpid()));
  say("death signal " + std::to_string(death_signal));
  say("signal defaults " + std::to_string(has_signal_defaults()));
  say("argv " + join(std::vector<std::string>(argv, argv + argc), " "));
  for (const auto& [name, value] : environment.all()) {
    say(name + "=" + value);
  }
}

/// Waits for a stop request, like a trainer. Returns the exit code.
int wait_for_stop() {
  TrainControl control;
  const SignalScope scope(control);
  sigset_t all;
  sigset_t none;
  sigfillset(&all);
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &all, nullptr);  // no signal between the check and the wait
  say("ready");
  while (control.stop_requested() == StopKind::none) {
    sigsuspend(&none);
  }
  return control.stop_requested() == StopKind::interrupt ? 130 : 75;
}

[[gnu::noinline]] int overflow_the_stack(int depth) {
  volatile char frame[4096];
  frame[0] = 1;
  return depth == 0 ? frame[0] : overflow_the_stack(depth - 1) + frame[0];
}

[[gnu::noinline]] void crash_here(const std::string& how) {
  if (how == "segv") {
    volatile std::uintptr_t nowhere = 16;
    *reinterpret_cast<volatile int*>(nowhere) = 1;
  } else if (how == "overflow") {
    std::printf("%d", overflow_the_stack(1 << 30));
  } else if (how == "abort") {
    std::abort();
  } else {
    raise(how == "bus" ? SIGBUS : how == "fpe" ? SIGFPE : SIGILL);
  }
  asm volatile("");  // keeps raise() from being a tail call, which would take this function off the stack
}

[[noreturn]] void throw_logic_error(const char* what) { throw std::logic_error(what); }
[[noreturn]] void throw_in_noexcept() noexcept { throw_logic_error("left a noexcept function"); }

/// The arguments of throw:WHAT.
const std::map<std::string, void (*)()> kThrows = {
    {"std", [] { throw std::runtime_error("cannot decode img_4411.jpg"); }},
    {"ours", [] { throw DataError("sample 5 is unusable"); }},
    {"int", [] { throw 5; }},
    {"noexcept", [] { throw_in_noexcept(); }},
    {"thread", [] { std::thread([] { throw_logic_error("left a thread"); }).join(); }},
    {"gpu",
     [] {
       const FreesOnBrokenGpu tensor;
       FreesOnBrokenGpu::fail();
     }},
    {"gloo", [] { std::thread([] { throw gloo::IoException("Connection reset by peer"); }).join(); }},
    {"enforce", [] { std::thread([] { throw gloo::EnforceNotMet("unexpected op code"); }).join(); }},
    {"mismatch",
     [] {
       std::thread([] {
         throw gloo::EnforceNotMet("200 vs 4. Is there a distributed collective mismatch in your code?");
       }).join();
     }},
    {"terminate", [] { std::terminate(); }},
    {"assertion",
     [] {
       const std::string what = "assertion";
       LOCKSTEP_ASSERT(what.empty(), "a test wants this to fail");
     }},
};

[[noreturn]] void eat_memory() {
  for (std::vector<std::vector<char>> eaten;;) {
    eaten.emplace_back(std::size_t{1} << 20, 'x');
  }
}

void leave_grandchild() {
  if (fork() == 0) {
    wait_for_ever();
  }
}

/// Forks twice and starts a new session, so that it is no longer related to the worker. `bare`: also clears the
/// environment.
void leave_daemon(bool bare) {
  std::array<int, 2> ends{};
  [[maybe_unused]] const int made = pipe(ends.data());
  const pid_t child = fork();
  if (child == 0) {
    setsid();
    const pid_t daemon = fork();
    if (daemon != 0) {
      [[maybe_unused]] const ssize_t written = write(ends[1], &daemon, sizeof(daemon));
      _exit(0);
    }
    if (bare) {
      std::string name = "sleep";
      std::string seconds = "1000";
      const std::array<char*, 3> argv{name.data(), seconds.data(), nullptr};
      const std::array<char*, 1> environment{nullptr};
      execve("/bin/sleep", argv.data(), environment.data());
      _exit(1);
    }
    wait_for_ever();
  }
  waitpid(child, nullptr, 0);
  pid_t daemon = 0;
  [[maybe_unused]] const ssize_t size = read(ends[0], &daemon, sizeof(daemon));
  close(ends[0]);
  close(ends[1]);
  say("daemon " + std::to_string(daemon));
}

/// All ranks connect to rank 0's socket and check that they belong to one launch.
bool rendezvous(int rank, int world_size, int port, const std::string& run_id) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string heard(run_id.size(), ' ');
  if (rank != 0) {
    while (true) {
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
        return write(fd, run_id.data(), run_id.size()) == static_cast<ssize_t>(run_id.size()) &&
               read(fd, heard.data(), heard.size()) == static_cast<ssize_t>(heard.size()) && heard == run_id;
      }
      close(fd);
      poll(nullptr, 0, 1);  // rank 0 does not listen yet
    }
  }
  constexpr int kStoreFd = 5;
  listen(kStoreFd, SOMAXCONN);
  for (int peer = 1; peer < world_size; ++peer) {
    const int fd = accept(kStoreFd, nullptr, nullptr);
    if (recv(fd, heard.data(), heard.size(), MSG_WAITALL) != static_cast<ssize_t>(heard.size()) || heard != run_id ||
        write(fd, run_id.data(), run_id.size()) != static_cast<ssize_t>(run_id.size())) {
      return false;
    }
  }
  return true;
}

/// Behaves like kernels before 5.11.
void refuse_close_range() {
  std::array<sock_filter, 4> rules{{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                                    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
                                    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
                                    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)}};
  const sock_fprog program{.len = rules.size(), .filter = rules.data()};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0 || close_range(100, 100, CLOSE_RANGE_CLOEXEC) == 0) {
    say("close_range is not refused");
    _exit(3);
  }
}

/// One rank: what it was told to do, and by whom.
struct Worker {
  int argc = 0;
  char** argv = nullptr;
  const Variables& environment;
  std::vector<std::string> words{};  // TASK:ARGUMENT:...
  std::shared_ptr<const Channel> channel{};

  int argument(std::size_t index) const { return static_cast<int>(parse_int(words.at(index)).value()); }
  int number(const char* name) const { return static_cast<int>(parse_int(environment.get(name).value()).value()); }
  int rank() const { return number("RANK"); }
  int finish(int code) const {
    channel->send({.kind = Message::Kind::finished, .code = code});
    return code;
  }
};

/// The objects that run() gives every rank, in the middle of step 812.
struct RankTools {
  explicit RankTools(const Worker& worker)
      : board(WorkerProcess::kProgressFd, worker.rank()),
        record(board[worker.rank()]),
        crash_handler(worker.rank(), &record),
        terminate_handler(record,
                          [channel = worker.channel](const Failure& failure) { channel->send(to_message(failure)); }),
        monitor({.rank = worker.rank(), .supervisor = std::make_unique<ChannelLink>(worker.rank(), worker.channel)}) {
    record.set_step(812);
    record.set_phase(Phase::data);
  }
  ProgressBoard board;
  ProgressRecord& record;
  CrashHandler crash_handler;
  TerminateHandler terminate_handler;
  PeerMonitor monitor;
};

[[noreturn]] void say_ready_and_wait() {
  say("ready " + std::to_string(getpid()));
  wait_for_ever();
}

int crash(const Worker& worker) {
  const RankTools tools(worker);
  crash_here(worker.words.at(1));
  return 0;
}

int throw_it(const Worker& worker) {
  const RankTools tools(worker);
  try {
    const PhaseScope forward(tools.record, Phase::forward);
    tools.record.begin(Operation::all_reduce, 4);
    kThrows.at(worker.words.at(1))();
  } catch (...) {
    const Failure failure = current_failure();
    worker.channel->send(to_message(failure));
    _exit(failure.code);
  }
  return 0;
}

/// Its work is done, and so is that of the others.
int end_after_work(const Worker& worker) {
  const RankTools tools(worker);
  tools.record.set_phase(Phase::teardown);
  tools.terminate_handler.finished(worker.argument(1));
  worker.finish(worker.argument(1));
  kThrows.at(worker.words.at(2))();
  return 1;
}

int eat(const Worker& worker) {
  const RankTools tools(worker);
  eat_memory();
}

int stand(const Worker& worker) {
  const RankTools tools(worker);
  if (worker.words.size() > 1) {
    tools.record.set_phase(Phase::backward);
    tools.record.begin(Operation::all_reduce, worker.argument(1));
  }
  wait_for_ever();
}

int obey(const Worker& worker) {
  const RankTools tools(worker);
  say_ready_and_wait();
}

int work(const Worker& worker) {
  const RankTools tools(worker);
  tools.record.begin_program();
  worker.channel->send({.kind = Message::Kind::started});
  tools.record.begin_fit(811);
  tools.record.set_step(812);
  TrainControl control;
  const SignalScope scope(control);
  tools.record.set_phase(Phase::forward);
  [[maybe_unused]] const StopKind none = control.stop_requested();  // from now on a signal is a request
  say("ready " + std::to_string(getpid()));
  while (control.stop_requested() == StopKind::none) {
    tools.record.set_phase(Phase::forward);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (worker.words.size() > 1) {
    tools.record.set_phase(Phase::save);
    std::this_thread::sleep_for(std::chrono::milliseconds(worker.argument(1)));
    if (const auto gate = worker.environment.get("TEST_GATE")) {
      say("saving");
      retry([&] { return open(gate->c_str(), O_RDONLY); });  // until the test opens this pipe, too
    }
    if (worker.words.size() > 2) {
      crash_here(worker.words.at(2));
    }
    say("saved");
  }
  return worker.finish(75);
}

int talk(const Worker& worker) {
  const RankTools tools(worker);
  TrainControl control;
  const SignalScope scope(control);
  for (int i = 0; control.stop_requested() == StopKind::none; ++i) {
    tools.record.set_phase(Phase::forward);
    std::printf("line %d of a rank that talks much\n", i);
  }
  return worker.finish(75);
}

int send_failure(const Worker& worker, bool secondary) {
  worker.channel->send(
      {.kind = Message::Kind::failure, .text = worker.words.at(2), .code = worker.argument(1), .secondary = secondary});
  return worker.argument(1);
}

int train(const Worker& worker) {
  const int attempt = worker.number("LOCKSTEP_RESTART");
  const std::vector<std::string> steps = split(worker.words.at(2), ',');
  ProgressBoard board(worker.number("LOCKSTEP_PROGRESS_FD"), worker.number("LOCAL_RANK"));
  board[worker.number("LOCAL_RANK")].begin_fit(0);
  board[worker.number("LOCAL_RANK")].set_step(
      parse_int(steps[std::min<std::size_t>(static_cast<std::size_t>(attempt), steps.size() - 1)]).value());
  say("attempt " + std::to_string(attempt));
  if (attempt < worker.argument(1)) {
    raise(SIGKILL);
  }
  return worker.finish(0);
}

int loud(const Worker& worker) {
  for (int line = 0; line < worker.argument(1); ++line) {
    const std::string text = loud_line(worker.rank(), line);
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
  std::fflush(stdout);
  return worker.finish(0);
}

int steady(const Worker& worker) {
  std::chrono::steady_clock::duration longest{};
  for (int line = 0; line < worker.argument(1); ++line) {
    const auto begin = std::chrono::steady_clock::now();
    say("line " + std::to_string(line) + std::string(200, '.'));
    longest = std::max(longest, std::chrono::steady_clock::now() - begin);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  say("longest write " + std::to_string(longest / std::chrono::milliseconds(1)));
  return worker.finish(0);
}

int print(const Worker& worker) {
  std::fputs("to out\n[rank0]: mine\n[rank1]: not mine\n50%\r100%\r\n\x1b[31mred\x1b[0m\a\n\nlast, not ended", stdout);
  std::fputs("to err\n", stderr);
  std::fflush(stdout);
  worker.channel->send({.kind = Message::Kind::line, .text = "step 20 | loss 2.1\x1b[2J"});
  return worker.finish(0);
}

int flood(const Worker& worker) {
  const RankTools tools(worker);
  for (int i = 0; i < worker.argument(1); ++i) {
    tools.record.set_phase(Phase::forward);  // so only what it waits for a reader is no progress
    std::printf("line %d of a rank that talks much\n", i);
  }
  std::fflush(stdout);
  return worker.finish(0);
}

/// What a rank can be told to do. A task returns the exit code.
const std::map<std::string, int (*)(const Worker&)> kTasks = {
    {"finish", [](const Worker& worker) { return worker.finish(worker.argument(1)); }},  // finish:CODE
    {"exit", [](const Worker& worker) { return worker.argument(1); }},                   // exit:CODE
    {"announce",                                                                         // announce:ANNOUNCED:EXIT
     [](const Worker& worker) {
       worker.finish(worker.argument(1));
       return worker.argument(2);
     }},
    {"fail", [](const Worker& worker) { return send_failure(worker, /*secondary=*/false); }},  // fail:CODE:TEXT
    {"lost", [](const Worker& worker) { return send_failure(worker, /*secondary=*/true); }},   // lost:CODE:TEXT
    {"fail_and_hang",
     [](const Worker& worker) -> int {
       worker.channel->send({.kind = Message::Kind::failure, .text = "hung afterwards", .code = 1});
       wait_for_ever();
     }},
    {"abort",
     [](const Worker&) -> int {
       std::fputs("terminate called after throwing an instance of 'std::logic_error'\n", stderr);
       std::abort();
     }},
    {"segfault",
     [](const Worker&) {
       signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would report and exit
       return raise(SIGSEGV);
     }},
    {"crash", crash},         // crash:HOW
    {"throw", throw_it},      // throw:WHAT
    {"end", end_after_work},  // end:CODE:WHAT
    {"eat", eat},
    {"stand", stand},  // stand:BYTES, in an all-reduce; without it, in data
    {"obey", obey},
    {"work", work},  // work:SAVE_MS:HOW, steps until a stop request; then a save that takes so long, and crashes
    {"talk", talk},  // lines until a stop request
    {"wait", [](const Worker&) -> int { say_ready_and_wait(); }},
    {"stubborn",
     [](const Worker&) -> int {
       signal(SIGTERM, SIG_IGN);
       signal(SIGINT, SIG_IGN);
       say_ready_and_wait();
     }},
    {"stop", [](const Worker& worker) { return worker.finish(wait_for_stop()); }},
    {"grandchild",
     [](const Worker& worker) {
       leave_grandchild();
       return worker.finish(0);
     }},
    {"daemon",  // daemon:stay, daemon:finish
     [](const Worker& worker) {
       leave_daemon(/*bare=*/false);
       if (worker.words.at(1) == "stay") {
         wait_for_ever();
       }
       return worker.finish(0);
     }},
    {"bare_daemon",
     [](const Worker& worker) {
       leave_daemon(/*bare=*/true);
       return worker.finish(0);
     }},
    {"rendezvous",
     [](const Worker& worker) {
       const bool done = rendezvous(worker.rank(), worker.number("WORLD_SIZE"), worker.number("MASTER_PORT"),
                                    worker.environment.get("LOCKSTEP_RUN_ID").value());
       return worker.finish(done ? 0 : 1);
     }},
    {"train", train},    // train:FAILURES:STEP,STEP...: number of deaths; the n-th death is at the n-th step
    {"loud", loud},      // loud:LINES
    {"steady", steady},  // steady:LINES, one every millisecond
    {"flood", flood},    // flood:LINES
    {"print", print},
    {"inspect",
     [](const Worker& worker) {
       inspect(worker.argc, worker.argv, worker.environment);
       return worker.finish(0);
     }},
};

}  // namespace

// At the end of a rank under load, the thread of LeakSanitizer that stops the others sometimes waits for ever. What
// these short ranks leave behind is of no interest.
extern "C" [[gnu::visibility("default")]] int __lsan_is_turned_off() { return 1; }

int main(int argc, char** argv) {
  const Variables environment = read_environment();
  const std::vector<std::string> launch = split(argc > 1 ? argv[1] : "", ':');
  if (environment.has("TEST_OLD_KERNEL") && !environment.has("RANK")) {
    refuse_close_range();
  }
  if (!environment.has("RANK") && launch[0] == "launch") {  // launch:RANKS:GRACE:STALL_WARNING:STALL_DEADLINE, in ms
    const auto milliseconds = [&](std::size_t index) {
      return std::chrono::milliseconds(parse_int(launch.at(index)).value());
    };
    return launch_workers({.argv = {argv + 1, argv + argc},
                           .ranks_per_node = {static_cast<int>(parse_int(launch.at(1)).value())},
                           .grace = milliseconds(2),
                           .stall_warning = milliseconds(3),
                           .stall_deadline = milliseconds(4),
                           .environment = environment})
        .exit_code;
  }
  if (!environment.has("RANK")) {  // started without a launcher: launches itself after its file was deleted
    unlink(argv[0]);
    return launch_workers({.argv = {argv, argv + argc}, .ranks_per_node = {2}, .environment = environment}).exit_code;
  }
  Worker worker{.argc = argc, .argv = argv, .environment = environment};
  worker.words = split(argv[std::min(worker.rank() + 1, argc - 1)], ':');
  worker.channel = std::make_shared<const Channel>(worker.number("LOCKSTEP_CONTROL_FD"));
  if (const auto fifo = environment.get("TEST_FIFO")) {
    open(fifo->c_str(), O_WRONLY);  // kept open to the end: the test detects when the last holder has ended
  }
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  const auto task = kTasks.find(worker.words.front());
  if (task == kTasks.end()) {
    std::fprintf(stderr, "unknown task %s\n", worker.words.front().c_str());
    return 2;
  }
  return task->second(worker);
}
