// A checkpoint of any run, named by the user.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/storage/checkpoint_dir.h>
#include <lockstep/world/world.h>

#include "base/run_files.h"
#include "checkpoint/contents_broadcast.h"
#include "checkpoint/named_checkpoint.h"
#include "storage/names.h"

namespace lockstep {
namespace {

using std::filesystem::path;

/// The directory of a run, or that of its checkpoints.
StoredContents read_newest(const path& folder, const OnDamage& on_damage) {
  FileSystem& fs = real_file_system();
  const path inside = folder / kCheckpointsName;
  const CheckpointDir directory(fs, fs.exists(inside) ? inside : folder);
  const auto steps = directory.steps();
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    try {
      return read_contents({fs, directory.path(*step), *step});
    } catch (const CheckpointError& error) {
      log_warning(error.what());
      if (on_damage) {
        on_damage(error.what());
      }
    }
  }
  throw CheckpointError(fmt::format("{}: it has no readable checkpoint", folder.string()),
                        "name a run directory, e.g. runs/a, or one checkpoint in it");
}

/// nullopt: not the name of a checkpoint that is complete.
std::optional<std::int64_t> step_in(const std::string& name) {
  const auto parsed = parse_directory_name(name);
  return parsed && parsed->kind == DirectoryKind::committed ? std::optional(parsed->step) : parse_abandoned_name(name);
}

}  // namespace

CheckpointContents load_checkpoint(const path& checkpoint, World& world, const OnDamage& on_damage) {
  return load_on(world, /*source=*/0, [&] {
    const path folder = named_folder(checkpoint);
    const auto step = step_in(folder.filename().string());
    return step ? read_contents({real_file_system(), folder, *step}) : read_newest(folder, on_damage);
  });
}

}  // namespace lockstep
