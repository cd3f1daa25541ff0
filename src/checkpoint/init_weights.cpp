#include "checkpoint/init_weights.h"

#include <system_error>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/paths.h"

namespace lockstep {

void check_init_weights(const std::string& from) {
  std::error_code ignored;
  if (!std::filesystem::exists(from, ignored)) {
    throw CheckpointError(fmt::format("--init_weights {}: no such file or directory", from),
                          "give the directory of a run or of a checkpoint, or a file of safetensors or torch.save");
  }
}

void check_init_weights(const std::string& from, const std::filesystem::path& directory) {
  check_init_weights(from);
  if (is_inside(from, directory)) {
    throw CheckpointError(fmt::format("--init_weights {} with --fresh: it is in {}, which --fresh renames first", from,
                                      directory.string()),
                          "give the new run another name: --run_name NAME instead of --fresh");
  }
}

}  // namespace lockstep
