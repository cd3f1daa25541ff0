#include "rank/crash_handler.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>

#include <dirent.h>
#include <execinfo.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/assertion.h"
#include "base/descriptor.h"
#include "failure/deadlines.h"
#include "failure/end_process.h"
#include "rank/line_buffer.h"
#include "rank/symbols.h"

namespace lockstep {
namespace {

constexpr std::size_t kStackBytes = 256 << 10;
constexpr std::size_t kMaxFrames = 32;

struct Context {
  std::atomic<bool> installed{false};
  std::atomic<int> rank{0};
  std::atomic<const ProgressRecord*> record{nullptr};
  std::atomic<bool> crashing{false};
  std::atomic_flag writing{};
  std::atomic<int> awaited{0};  // requested stacks that threads have not written yet
};
static_assert(std::atomic<const ProgressRecord*>::is_always_lock_free);

// A signal handler gets only a number, so its state must be static.
constinit Context context;

pid_t thread_id() noexcept { return static_cast<pid_t>(syscall(SYS_gettid)); }

/// Address at which the signal interrupted its thread; 0: unknown on this architecture.
std::uintptr_t interrupted_at(const void* signal_context) noexcept {
  [[maybe_unused]] const auto& machine = static_cast<const ucontext_t*>(signal_context)->uc_mcontext;
#if defined(__x86_64__)
  return static_cast<std::uintptr_t>(machine.gregs[REG_RIP]);
#elif defined(__aarch64__)
  return machine.pc;
#else
  return 0;
#endif
}

void add_thread_name(LineBuffer& line) noexcept {
  const Descriptor file(open("/proc/thread-self/comm", O_RDONLY | O_CLOEXEC));
  std::array<char, 32> name;
  const ssize_t size = read(file.get(), name.data(), name.size());
  line.add("thread ").add(thread_id());
  if (size > 1) {
    line.add(" (").add({name.data(), static_cast<std::size_t>(size) - 1}).add(")");
  }
}

void add_place(LineBuffer& line) noexcept {
  const ProgressRecord* record = context.record;
  if (record == nullptr || record->beats.load(std::memory_order_relaxed) == 0) {
    return;
  }
  const ProgressView now = view(*record);
  if (now.step >= 0) {
    line.add(" at step ").add(now.step);
  }
  line.add(" in ").add(to_string(now.phase)).add(callback_of(now));
  if (now.operation != Operation::none) {
    line.add(", collective ").add(now.collectives).add(" (").add(to_string(now.operation)).add(")");
  }
}

/// The frames from the interrupted one on. backtrace() was called once before, so that its library is loaded.
void write_frames(const void* signal_context) noexcept {
  std::array<void*, kMaxFrames + 8> frames;  // and the frames of the handler
  const auto count = static_cast<std::size_t>(std::max(0, backtrace(frames.data(), static_cast<int>(frames.size()))));
  const auto pc = interrupted_at(signal_context);
  const auto found = std::find(frames.begin(), frames.begin() + static_cast<std::ptrdiff_t>(count),
                               reinterpret_cast<void*>(pc));  // a signal frame has the exact address
  auto first = static_cast<std::size_t>(found - frames.begin());
  first = first == count ? 0 : first;
  for (std::size_t i = first; i < std::min(count, first + kMaxFrames); ++i) {
    LineBuffer line;
    line.add("  #").add(i - first).add(" ");
    const auto address = reinterpret_cast<std::uintptr_t>(frames[i]);
    add_symbol(line, i == first ? address : address - 1);  // a return address may belong to the next function
    line.write_to(STDERR_FILENO);
  }
}

extern "C" void on_crash(int signal, siginfo_t* info, void* signal_context) {
  if (context.crashing.exchange(true)) {
    while (true) {
      pause();  // another thread writes its report and then ends the process
    }
  }
  end_process_within(deadlines::kCrash, 128 + signal);
  LineBuffer line;
  const char* name = sigdescr_np(signal);
  line.add("rank ").add(context.rank.load()).add(" crashed");
  add_place(line);
  line.add(": signal ").add(signal).add(" (").add(name == nullptr ? "unknown" : name).add(")");
  if (info->si_code > 0 && signal != SIGABRT) {  // sent by the processor, not by kill()
    line.add(" at address ").add_hex(reinterpret_cast<std::uintptr_t>(info->si_addr));
  }
  line.add("; stack of ");
  add_thread_name(line);
  line.add(":").write_to(STDERR_FILENO);
  write_frames(signal_context);

  if (getpid() == 1 && info->si_code <= 0) {
    _exit(128 + signal);  // the kernel does not end this process by a signal that was sent, for example by abort()
  }
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  sigaction(signal, &standard, nullptr);
  syscall(SYS_tgkill, getpid(), thread_id(), signal);  // blocked here: arrives where the thread was interrupted
}

/// Every thread writes its own stack, because no thread can read another thread's registers.
void signal_other_threads() noexcept {
  const Descriptor folder(open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  alignas(dirent64) std::array<char, 4096> buffer;
  while (true) {
    const long size = syscall(SYS_getdents64, folder.get(), buffer.data(), buffer.size());
    if (size <= 0) {
      return;
    }
    for (long at = 0; at < size;) {
      const auto* entry = reinterpret_cast<const dirent64*>(buffer.data() + at);
      at += entry->d_reclen;
      pid_t thread = 0;
      std::from_chars(entry->d_name, entry->d_name + std::strlen(entry->d_name), thread);
      if (thread != 0 && thread != thread_id()) {
        ++context.awaited;
        if (syscall(SYS_tgkill, getpid(), thread, SIGUSR2) != 0) {
          --context.awaited;
        }
      }
    }
  }
}

void write_own_stack(const void* signal_context) noexcept {
  while (context.writing.test_and_set()) {  // one stack at a time
    const timespec moment{.tv_sec = 0, .tv_nsec = 1'000'000};
    nanosleep(&moment, nullptr);
  }
  LineBuffer line;
  line.add("stack of ");
  add_thread_name(line);
  line.add(", rank ").add(context.rank.load());
  add_place(line);
  line.add(":").write_to(STDERR_FILENO);
  write_frames(signal_context);
  context.writing.clear();
}

extern "C" void on_dump(int, siginfo_t* info, void* signal_context) {
  const int saved_errno = errno;
  if (info->si_code != SI_TKILL) {  // from another process: the kernel chose this thread
    signal_other_threads();
  }
  write_own_stack(signal_context);
  if (info->si_code == SI_TKILL) {
    --context.awaited;
  }
  errno = saved_errno;
}

}  // namespace

CrashHandler::CrashHandler(int rank, const ProgressRecord* record) : stack_(new std::byte[kStackBytes]) {
  LOCKSTEP_ASSERT(!context.installed.exchange(true), "one CrashHandler at a time");
  context.rank = rank;
  context.record = record;
  void* frame = nullptr;
  backtrace(&frame, 1);  // loads the unwinder now, because a handler must not load it
  stack_t stack{};
  stack.ss_sp = stack_.get();
  stack.ss_size = kStackBytes;
  if (sigaltstack(nullptr, &stack_before_) == 0 && (stack_before_.ss_flags & SS_DISABLE) != 0) {
    sigaltstack(&stack, nullptr);
  }
  struct sigaction action {};
  sigfillset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    action.sa_sigaction = kSignals[i] == SIGUSR2 ? on_dump : on_crash;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler == SIG_DFL) {
      sigaction(kSignals[i], &action, nullptr);
    }
  }
  sigset_t dump;
  sigemptyset(&dump);
  sigaddset(&dump, SIGUSR2);
  pthread_sigmask(SIG_UNBLOCK, &dump, nullptr);  // our launcher starts this program with the signal blocked
}

CrashHandler::~CrashHandler() {
  drop_requests();
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    if (before_[i].sa_handler == SIG_DFL) {
      sigaction(kSignals[i], &before_[i], nullptr);
    }
  }
  if ((stack_before_.ss_flags & SS_DISABLE) != 0) {
    sigaltstack(&stack_before_, nullptr);
  }
  context.installed = false;
}

// Other threads may not have taken a request for their stacks yet, and the default action of its signal ends the
// process. A stack that is being written tells the place of this rank.
void CrashHandler::drop_requests() noexcept {
  struct sigaction current {};
  sigaction(SIGUSR2, nullptr, &current);
  if ((current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == on_dump) {
    struct sigaction ignored {};
    ignored.sa_handler = SIG_IGN;
    sigaction(SIGUSR2, &ignored, nullptr);
  }
  while (context.writing.test_and_set()) {
    std::this_thread::yield();
  }
  context.record = nullptr;
  context.writing.clear();
}

void dump_stacks() noexcept {
  struct sigaction action {};
  sigaction(SIGUSR2, nullptr, &action);
  if (context.installed && (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_dump) {
    signal_other_threads();
  }
}

void wait_for_stacks(std::chrono::milliseconds longest) noexcept {
  for (std::chrono::milliseconds waited{0}; context.awaited > 0 && waited < longest;
       waited += deadlines::kLingerPause) {
    std::this_thread::sleep_for(deadlines::kLingerPause);  // handlers only decrement a counter
  }
}

}  // namespace lockstep
