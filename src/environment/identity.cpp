#include <sys/socket.h>

#include <lockstep/base/error.h>
#include <lockstep/environment/identity.h>

#include "environment/launchers/launch_variables.h"

namespace lockstep {
namespace {

/// In order of precedence: the first reader that finds its variables answers. A launcher inside the job of another
/// launcher wins: mpirun and torchrun leave Slurm's variables in place. LSF comes before Open MPI, because jsrun also
/// sets Open MPI's variables.
constexpr std::optional<Identity> (*kReaders[])(VariableReader&) = {
    read_torchrun,
    read_lsf,
    read_open_mpi,
    read_hydra,
    read_mvapich2,
    read_slurm_step,
    read_plain,
    read_sagemaker,
    read_slurm_allocation,
    read_torchrun_settings,
};

bool is_channel(int fd) {
  int type = 0;
  socklen_t size = sizeof type;
  return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET;
}

/// A script between `lockstep run` and this program may have closed the descriptors, or use their numbers, and keep the
/// variables. Then this is a rank without a supervisor, as under other launchers.
void leave_closed_descriptors(Identity& identity) {
  if (identity.is_supervised() && identity.devices.empty() && !is_channel(identity.control_fd)) {
    identity.control_fd = identity.progress_fd = identity.store_fd = -1;
    identity.hints.emplace_back(
        "the descriptors of lockstep run are closed here, as Python's subprocess does: it does not know the steps of "
        "these ranks, and a stop may end them before they have saved; start the program with exec, or with "
        "close_fds=False");
  }
}

}  // namespace

std::optional<Identity> detect_identity(const Variables& variables, const ReadText& files) {
  for (const auto read : kReaders) {
    VariableReader reader(variables, files);
    std::optional<Identity> identity = read(reader);
    if (!identity) {
      continue;
    }
    if (!reader.problems().empty()) {
      throw ConfigError(reader.problems());
    }
    identity->variables = reader.names();
    return identity;
  }
  return std::nullopt;
}

std::optional<Identity> detect_identity(const Variables& variables) {
  auto identity = detect_identity(variables, read_text_file);
  if (identity) {
    leave_closed_descriptors(*identity);
  }
  return identity;
}

}  // namespace lockstep
