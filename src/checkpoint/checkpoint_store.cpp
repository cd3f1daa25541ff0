#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include <ATen/ops/empty.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/base/log.h>
#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/storage/checkpoint_dir.h>
#include <lockstep/world/world.h>

#include "base/json.h"
#include "base/text.h"
#include "checkpoint/dtype_names.h"
#include "checkpoint/main_rank.h"
#include "checkpoint/snapshot_files.h"

namespace lockstep {
namespace {

using std::filesystem::path;

std::string this_process() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return fmt::format("pid {} on {}", ::getpid(), host.data());
}

std::unique_ptr<FileLock> lock_directory(const path& directory) {
  FileSystem& fs = real_file_system();
  fs.create_directories(directory);
  // The run's directory is as durable as what will be saved in it.
  const path run = std::filesystem::absolute(directory / ".").parent_path().parent_path();
  fs.sync_directory(run);
  fs.sync_directory(run.parent_path());
  std::string owner;
  auto lock = fs.try_lock(directory / ".lock", this_process(), owner);
  if (lock == nullptr) {
    throw CheckpointError(fmt::format("checkpoints in {}: found them in use by {}, expected no other owner",
                                      directory.string(), printable(owner)),
                          "wait for that run to end, or give this one another run directory");
  }
  return lock;
}

/// The directory of the run tells its checkpoints from another run's.
std::string run_name(const path& checkpoints) {
  return std::filesystem::absolute(checkpoints / ".").parent_path().parent_path().filename().string();
}

std::string to_bytes(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return {};
  }
  LOCKSTEP_ASSERT(tensor.scalar_type() == at::kByte && tensor.dim() == 1, "per-rank state is a row of bytes");
  const at::Tensor host = tensor.to(at::kCPU).contiguous();
  return {static_cast<const char*>(host.const_data_ptr()), host.nbytes()};
}

at::Tensor to_tensor(std::string_view bytes) {
  if (bytes.empty()) {
    return {};
  }
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

/// What ranks other than 0 must know before tensors are sent: everything but their contents.
std::string describe(const SavedSnapshot& saved) {
  Json files = Json::object();
  for (const auto& [file, tensors] : saved.snapshot.tensors) {
    Json& list = files[file] = Json::array();
    for (const auto& [name, tensor] : tensors) {
      list.push_back({{"name", name}, {"dtype", *dtype_name(tensor.scalar_type())}, {"shape", tensor.sizes().vec()}});
    }
  }
  Json sizes = Json::array();
  for (const std::string& bytes : saved.per_rank) {
    sizes.push_back(bytes.size());
  }
  return dump_json({{"values", saved.snapshot.values}, {"files", files}, {"per_rank", sizes}});
}

SavedSnapshot from_description(std::string_view text) {
  const Json json = parse_json(text);
  SavedSnapshot saved;
  saved.snapshot.values = json.at("values").get<std::map<std::string, std::string>>();
  for (const auto& [file, list] : json.at("files").items()) {
    NamedTensors& tensors = saved.snapshot.tensors[file];
    for (const Json& entry : list) {
      const auto shape = entry.at("shape").get<std::vector<std::int64_t>>();
      const auto dtype = dtype_of(entry.at("dtype").get<std::string>());
      tensors.emplace_back(entry.at("name").get<std::string>(), at::empty(shape, *dtype));
    }
  }
  for (const Json& size : json.at("per_rank")) {
    saved.per_rank.emplace_back(size.get<std::size_t>(), '\0');
  }
  return saved;
}

/// Collective. Rank 0's contents into everybody's tensors.
void broadcast_contents(World& world, SavedSnapshot& saved) {
  for (auto& [file, tensors] : saved.snapshot.tensors) {
    for (auto& [name, tensor] : tensors) {
      if (tensor.numel() == 0) {
        continue;
      }
      // As bytes: not every backend sends every dtype.
      const at::Tensor bytes = tensor.view({-1}).view(at::kByte);
      const at::Tensor staged = bytes.to(world.device());
      world.broadcast(staged);
      bytes.copy_(staged);
    }
  }
  for (std::string& bytes : saved.per_rank) {
    bytes = world.broadcast_bytes(bytes);
  }
}

/// Collective. What `read` gives on rank 0, on every rank.
Snapshot load_on_main(World& world, const std::function<SavedSnapshot()>& read) {
  SavedSnapshot saved;
  const std::string description = run_on_main(world, "loading a checkpoint", [&] {
    saved = read();
    return world.size() > 1 ? describe(saved) : std::string();
  });
  if (world.size() > 1) {
    if (!world.is_main()) {
      saved = from_description(description);
    }
    broadcast_contents(world, saved);
  }
  if (saved.per_rank.size() == static_cast<std::size_t>(world.size())) {
    saved.snapshot.per_rank = to_tensor(saved.per_rank[static_cast<std::size_t>(world.rank())]);
  }
  return std::move(saved.snapshot);
}

}  // namespace

struct CheckpointStore::Impl {
  World& world;
  int keep_last;
  CheckpointDir directory;
  std::unique_ptr<FileLock> lock{};    // rank 0's
  std::optional<Manifest> verified{};  // rank 0's, by latest()

  /// A checkpoint is safe already when old ones cannot be removed.
  void retain(std::int64_t saved) {
    try {
      directory.retain(keep_last, saved);
    } catch (const IoError& error) {
      log_warning(fmt::format("old checkpoints stay: {}", error.what()));
    }
  }
};

CheckpointStore::CheckpointStore(path directory, const CheckpointConfig& config, World& world)
    : impl_(new Impl{.world = world,
                     .keep_last = std::max(config.keep_last, 2),
                     .directory = CheckpointDir(real_file_system(), directory, run_name(directory), /*restart=*/0)}) {
  run_on_main(world, "opening the checkpoint directory", [&] {
    impl_->lock = lock_directory(directory);
    if (const auto removed = impl_->directory.remove_incomplete(); !removed.empty()) {
      log_info(fmt::format("removed incomplete checkpoints: {}", join(removed, ", ")));
    }
    return std::string();
  });
}

CheckpointStore::~CheckpointStore() = default;

void CheckpointStore::save(std::int64_t step, const Snapshot& snapshot) {
  const std::vector<std::string> per_rank = impl_->world.gather(to_bytes(snapshot.per_rank));
  run_on_main(impl_->world, "saving a checkpoint", [&] {
    impl_->verified.reset();
    const auto writer = impl_->directory.begin(step, byte_size(snapshot));
    write_snapshot(*writer, step, snapshot, per_rank);
    writer->commit();
    impl_->retain(step);
    return std::string();
  });
}

std::optional<std::int64_t> CheckpointStore::latest() {
  const std::string step = run_on_main(impl_->world, "looking for a checkpoint", [&] {
    impl_->verified = impl_->directory.newest_valid([](const std::string& message) { log_warning(message); });
    return impl_->verified ? std::to_string(impl_->verified->step) : std::string();
  });
  return parse_int(step);
}

Snapshot CheckpointStore::load(std::int64_t step) {
  return load_on_main(impl_->world, [&] {
    const bool known = impl_->verified && impl_->verified->step == step;
    return read_snapshot(impl_->directory, known ? *impl_->verified : impl_->directory.verify(step));
  });
}

Snapshot load_checkpoint(const path& checkpoint, World& world) {
  return load_on_main(world, [&] {
    // "runs/a/checkpoints/step-0000000500", with or without a slash at the end.
    const path folder = std::filesystem::absolute(checkpoint / ".").parent_path();
    constexpr std::string_view kPrefix = "step-";
    const std::string name = folder.filename().string();
    const auto step = name.starts_with(kPrefix) ? parse_int(name.substr(kPrefix.size())) : std::nullopt;
    if (!step) {
      throw CheckpointError(
          fmt::format("{}: found a folder called '{}', expected step-<number>", checkpoint.string(), name),
          "name one checkpoint, e.g. runs/a/checkpoints/step-0000000500");
    }
    const CheckpointDir directory(real_file_system(), folder.parent_path(), run_name(folder.parent_path()),
                                  /*restart=*/0);
    return read_snapshot(directory, directory.verify(*step));
  });
}

}  // namespace lockstep
