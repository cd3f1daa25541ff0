#include <cerrno>
#include <cstdint>
#include <cstring>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/launch/launcher.h>

#include "base/terminal.h"
#include "control/progress_record.h"
#include "launch/descriptor.h"
#include "launch/signal_inbox.h"
#include "launch/supervisor.h"
#include "launch/worker_process.h"

namespace lockstep {
namespace {

[[noreturn]] void throw_system_error(std::string_view what) {
  throw LaunchError(fmt::format("cannot start workers: {}: {}", what, std::strerror(errno)));
}

struct StoreSocket {
  Descriptor socket;
  int port = 0;
};

/// Bound here, so that no port has to be chosen and nobody can take it; rank 0 serves the store on it.
StoreSocket bind_store_socket() {
  Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!listener.is_open() || bind(listener.get(), generic, size) != 0 || listen(listener.get(), SOMAXCONN) != 0 ||
      getsockname(listener.get(), generic, &size) != 0) {
    throw_system_error("socket on 127.0.0.1");
  }
  return {std::move(listener), ntohs(address.sin_port)};
}

std::string random_run_id() {
  std::uint64_t bits = 0;
  if (getrandom(&bits, sizeof(bits), 0) != static_cast<ssize_t>(sizeof(bits))) {
    throw_system_error("getrandom");
  }
  return fmt::format("{:016x}", bits);
}

/// A rebuild during start-up replaces the file, not what this opens.
Descriptor open_own_program() {
  Descriptor program(open("/proc/self/exe", O_PATH | O_CLOEXEC));
  if (!program.is_open()) {
    throw LaunchError(fmt::format("cannot start workers: /proc/self/exe: {}", std::strerror(errno)),
                      "mount /proc, or start one process per rank, e.g. with torchrun --no-python");
  }
  return program;
}

Variables worker_environment(const LaunchRequest& request, int rank, int port, const std::string& run_id) {
  const int width = request.terminal_status ? probe_terminal(STDERR_FILENO, request.environment).width : 0;
  auto values = request.environment.all();
  values["RANK"] = values["LOCAL_RANK"] = std::to_string(rank);
  values["WORLD_SIZE"] = values["LOCAL_WORLD_SIZE"] = std::to_string(request.world_size);
  values["GROUP_RANK"] = "0";
  values["MASTER_ADDR"] = "127.0.0.1";
  values["MASTER_PORT"] = std::to_string(port);
  values.emplace("OMP_NUM_THREADS", std::to_string(request.threads_per_rank));  // the user's own value wins
  values.emplace("TORCH_CPP_LOG_LEVEL",
                 "ERROR");  // c10d warns about sockets of ranks that failed: the failure is what counts
  values["LOCKSTEP_RUN_ID"] = run_id;
  values["LOCKSTEP_CONTROL_FD"] = std::to_string(WorkerProcess::kControlFd);
  values["LOCKSTEP_PROGRESS_FD"] = std::to_string(WorkerProcess::kProgressFd);
  values["LOCKSTEP_TERMINAL_WIDTH"] = std::to_string(width);
  values.erase("LOCKSTEP_STORE_FD");
  if (rank == 0) {
    values["LOCKSTEP_STORE_FD"] = std::to_string(WorkerProcess::kStoreFd);
  }
  return Variables(std::move(values));
}

}  // namespace

LaunchReport launch_workers(const LaunchRequest& request) {
  LOCKSTEP_ASSERT(request.world_size > 0 && !request.argv.empty(), "a launch has ranks and a command line");
  SignalInbox signals;  // before the first worker, so that no request is lost
  const std::string run_id = random_run_id();
  const Descriptor own_program = request.program.empty() ? open_own_program() : Descriptor();
  ProgressBoard progress(request.world_size);
  std::vector<WorkerProcess> workers;
  {
    const StoreSocket store = bind_store_socket();
    for (int rank = 0; rank < request.world_size; ++rank) {
      workers.emplace_back(WorkerCommand{.program = request.program,
                                         .own_program = own_program.get(),
                                         .argv = request.argv,
                                         .environment = worker_environment(request, rank, store.port, run_id),
                                         .progress = progress.fd(),
                                         .store_socket = rank == 0 ? store.socket.get() : -1});
    }
  }  // rank 0 holds the socket alone now: when it dies, nobody waits for an answer
  return supervise(std::move(workers), std::move(progress), signals,
                   {.grace = request.grace,
                    .terminal_status = request.terminal_status,
                    .stall = {.warning = request.stall_warning, .deadline = request.stall_deadline}});
}

}  // namespace lockstep
