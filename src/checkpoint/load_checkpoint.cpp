// A checkpoint of any run, named by the user.
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/storage/checkpoint_dir.h>
#include <lockstep/world/world.h>

#include "base/run_files.h"
#include "checkpoint/contents_broadcast.h"
#include "storage/names.h"

namespace lockstep {
namespace {

using std::filesystem::path;

// "step-0000000500", with or without a trailing slash. Links are followed, because the user named them.
path real_folder(const path& named) {
  std::error_code missing;
  const path folder = std::filesystem::canonical(named, missing);
  if (missing) {
    throw CheckpointError(
        fmt::format("{}: {}, expected a checkpoint or a run directory", named.string(), missing.message()),
        "name one checkpoint, e.g. runs/a/checkpoints/step-0000000500, or a run, e.g. runs/a");
  }
  return folder;
}

StoredContents read_newest(const path& run, const OnDamage& on_damage) {
  const CheckpointDir directory(real_file_system(), run / kCheckpointsName);
  const auto steps = directory.steps();
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    try {
      return read_contents(directory, *step);
    } catch (const CheckpointError& error) {
      log_warning(error.what());
      if (on_damage) {
        on_damage(error.what());
      }
    }
  }
  throw CheckpointError(fmt::format("{}: it has no readable checkpoint", run.string()),
                        "name a run directory, e.g. runs/a, or one checkpoint in it");
}

}  // namespace

CheckpointContents load_checkpoint(const path& checkpoint, World& world, const OnDamage& on_damage) {
  return load_on(world, /*source=*/0, [&] {
    const path folder = real_folder(checkpoint);
    const auto parsed = parse_directory_name(folder.filename().string());
    if (!parsed || parsed->kind != DirectoryKind::committed) {
      return read_newest(folder, on_damage);
    }
    const CheckpointDir directory(real_file_system(), folder.parent_path());
    return read_contents(directory, parsed->step);
  });
}

}  // namespace lockstep
