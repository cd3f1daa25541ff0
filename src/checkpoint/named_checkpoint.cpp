#include "checkpoint/named_checkpoint.h"

#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/about_another_rank.h"
#include "base/paths.h"
#include "config/check_config.h"

namespace lockstep {
namespace {

using std::filesystem::path;

constexpr std::string_view kResume = "--resume";

void check_is_kept(std::string_view flag, const std::string& named, const path& directory) {
  if (is_inside(named, directory)) {
    throw CheckpointError(
        fmt::format("{} {} with --fresh: it is in {}, which --fresh renames first", flag, named, directory.string()),
        "instead of --fresh give the new run another --run_name, or another --run_dir if that is set");
  }
}

/// `named`, of the same origin as `error`.
template <class AnError>
[[noreturn]] void throw_like(const AnError& error, AnError named) {
  if (dynamic_cast<const AboutAnotherRank*>(&error) != nullptr) {
    throw OfAnotherRank<AnError>(std::move(named));
  }
  throw named;
}

}  // namespace

path named_folder(const path& named) {
  std::error_code missing;
  const path folder = std::filesystem::canonical(named, missing);
  if (missing) {
    throw CheckpointError(
        fmt::format("{}: {}, expected a checkpoint or a run directory", named.string(), missing.message()),
        "name one checkpoint, e.g. runs/a/checkpoints/step-0000000500, or a run, e.g. runs/a");
  }
  if (!std::filesystem::is_directory(folder, missing)) {
    throw CheckpointError(fmt::format("{}: it is a file, expected a checkpoint or a run directory", named.string()),
                          "load_tensors() reads a file of weights, and --init_weights begins a training with them; a "
                          "checkpoint is a directory, e.g. runs/a/checkpoints/step-0000000500");
  }
  return folder;
}

void check_init_weights(const std::string& from) {
  std::error_code ignored;
  if (!std::filesystem::exists(from, ignored)) {
    throw CheckpointError(fmt::format("--init_weights {}: no such file or directory", from),
                          "give the directory of a run or of a checkpoint, or a file of safetensors or torch.save");
  }
}

void check_before_rename(const TrainConfig& config, const path& directory) {
  if (!config.init_weights.empty()) {
    check_init_weights(config.init_weights);
    check_is_kept("--init_weights", config.init_weights, directory);
  }
  if (!resumes_itself(config.resume)) {
    naming_flag(kResume, [&] { named_folder(config.resume); });
    check_is_kept(kResume, config.resume, directory);
  }
}

void rethrow_naming(std::string_view flag) {
  const auto named = [flag](const Error& error) { return fmt::format("{}: {}", flag, error.what()); };
  try {
    throw;
  } catch (const CheckpointError& error) {
    throw_like(error, CheckpointError(named(error), error.hint(), error.exit_code()));
  } catch (const IoError& error) {
    throw_like(error, IoError(named(error), error.hint(), error.number()));
  }
}

}  // namespace lockstep
