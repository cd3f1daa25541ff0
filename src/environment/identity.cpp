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
  return detect_identity(variables, read_text_file);
}

}  // namespace lockstep
