#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <future>
#include <iterator>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ops/empty.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/base/log.h>
#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/storage/checkpoint_dir.h>
#include <lockstep/world/world.h>

#include "base/assertion.h"
#include "base/duration.h"
#include "base/run_files.h"
#include "base/text.h"
#include "checkpoint/contents_broadcast.h"
#include "checkpoint/contents_files.h"
#include "checkpoint/host_copies.h"
#include "checkpoint/main_rank.h"
#include "config/name_template.h"
#include "environment/process_name.h"
#include "storage/names.h"

namespace lockstep {
namespace {

using std::filesystem::path;

std::unique_ptr<FileLock> lock_directory(FileSystem& fs, const path& directory) {
  fs.create_directories(directory);
  // The directory of the run must be as durable as the checkpoints in it.
  const path run = std::filesystem::absolute(directory / ".").parent_path().parent_path();
  fs.sync_directory(run);
  fs.sync_directory(run.parent_path());
  std::string owner;
  auto lock = fs.try_lock(directory / ".lock", pid_on_host(), owner);
  if (lock == nullptr) {
    throw CheckpointError(fmt::format("checkpoints in {}: locked by {}", directory.string(), printable(owner)),
                          "wait for that run to end, or use another run directory");
  }
  return lock;
}

/// The directory of the run, which identifies its checkpoints in the log.
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

/// This rank's part of the loaded contents.
CheckpointContents take(StoredContents saved, const World& world) {
  if (saved.per_rank.size() == static_cast<std::size_t>(world.size())) {
    saved.contents.per_rank = to_tensor(saved.per_rank[static_cast<std::size_t>(world.rank())]);
  }
  return std::move(saved.contents);
}

/// Collective. Runs `read` on rank `source` and returns its result on every rank.
CheckpointContents load_on(World& world, int source, const std::function<StoredContents()>& read) {
  StoredContents saved;
  run_on(world, "loading a checkpoint", world.rank() == source, [&] {
    saved = read();
    return std::string();
  });
  broadcast_contents(world, source, saved);
  return take(std::move(saved), world);
}

/// Sets a flag on destruction.
class FlagOnExit {
 public:
  explicit FlagOnExit(std::atomic<bool>& flag) : flag_(flag) {}
  ~FlagOnExit() { flag_ = true; }
  FlagOnExit(const FlagOnExit&) = delete;
  FlagOnExit& operator=(const FlagOnExit&) = delete;

 private:
  std::atomic<bool>& flag_;
};

bool writes(const World& world, const CheckpointConfig& config) {
  return world.is_main() || (config.per_node && world.local_rank() == 0);
}

}  // namespace

struct CheckpointStore::Impl {
  using Clock = std::chrono::steady_clock;

  World& world;
  CheckpointConfig config;
  CheckpointDir directory;
  bool writes;  // this rank writes
  std::unique_ptr<FileLock> lock{};
  std::map<std::int64_t, double> scores{};      // of the checkpoints here with the monitored metric
  std::optional<std::int64_t> known_whole{};    // the newest that this store has saved or verified
  std::set<std::int64_t> damaged{};             // damaged checkpoints here, found by a load
  std::set<std::int64_t> not_finite{};          // of the checkpoints here
  HostCopies copies{};                          // of a save in the background
  std::optional<std::int64_t> in_background{};  // its step, on every rank
  std::future<double> writing{};                // seconds
  std::atomic<bool> written{false};
  std::future<void> removing{};  // of old checkpoints, after a save: begun by the thread that wrote

  void note_finite(std::int64_t step, const std::map<std::string, std::string>& values) {
    const auto found = values.find(kParametersFinite);
    not_finite.erase(step);
    if (found != values.end() && found->second == "false") {
      not_finite.insert(step);
    }
  }

  void note_score(std::int64_t step, const std::map<std::string, std::string>& values) {
    const auto found = values.find(metric_key(config.monitor));
    const auto score = found == values.end() ? std::nullopt : parse_double(found->second);
    scores.erase(step);
    if (score) {
      scores.emplace(step, *score);
    }
  }

  void forget_after(std::int64_t step) {
    std::erase_if(scores, [&](const auto& score) { return score.first > step; });
    damaged.erase(damaged.upper_bound(step), damaged.end());
    not_finite.erase(not_finite.upper_bound(step), not_finite.end());
    if (known_whole > step) {
      known_whole.reset();
    }
  }

  // Best first; among equals the newer first.
  std::vector<std::int64_t> by_score() const {
    std::vector<std::int64_t> steps;
    std::transform(scores.rbegin(), scores.rend(), std::back_inserter(steps), [](const auto& s) { return s.first; });
    std::stable_sort(steps.begin(), steps.end(), [&](std::int64_t a, std::int64_t b) {
      return config.mode == MonitorMode::min ? scores.at(a) < scores.at(b) : scores.at(a) > scores.at(b);
    });
    return steps;
  }

  void write(std::int64_t step, const CheckpointContents& contents, const std::vector<std::string>& per_rank) {
    if (removing.valid()) {
      removing.get();  // the space of the old ones counts as free, and no more than one save's are on the disk
    }
    const std::int64_t bytes = byte_size(contents);
    if (!config.keep_all) {
      directory.make_room(
          bytes, [&] { return newest_whole(); },
          kept_steps(known_whole.value_or(std::numeric_limits<std::int64_t>::max())));
    }
    keep_damaged();
    const auto writer = directory.begin(step, bytes);
    write_contents(*writer, step, contents, per_rank);
    writer->commit();
    known_whole = step;
    note_score(step, contents.values);
    note_finite(step, contents.values);
    retain(step);
    link(step, contents.values);
  }

  /// Deletes nothing until at least one checkpoint is known to be undamaged.
  std::optional<std::int64_t> newest_whole() {
    const auto steps = directory.steps();
    for (auto step = steps.rbegin(); step != steps.rend() && !known_whole; ++step) {
      try {
        known_whole = directory.verify(*step).step;
      } catch (const CheckpointError&) {
        damaged.insert(*step);
      }
    }
    return known_whole;
  }

  /// The run continued without them. Keep them for inspection: neither a save nor retention touches them.
  void keep_damaged() {
    for (const std::string& name : directory.abandon(std::vector(damaged.begin(), damaged.end()))) {
      log_warning(fmt::format("damaged, and no longer part of the run: {}", name));
    }
    for (const std::int64_t step : std::exchange(damaged, {})) {
      scores.erase(step);
    }
  }

  /// Retained besides the newest steps up to `saved`: the best ones, and the last one from which a run can continue.
  std::vector<std::int64_t> kept_steps(std::int64_t saved) const {
    auto kept = by_score();
    kept.resize(std::min(kept.size(), static_cast<std::size_t>(config.keep_best)));
    const auto steps = directory.steps();
    const auto finite = std::find_if(steps.rbegin(), steps.rend(), [&](std::int64_t step) {
      return step <= saved && !not_finite.contains(step) && !damaged.contains(step);
    });
    if (finite != steps.rend()) {
      kept.push_back(*finite);
    }
    return kept;
  }

  /// The new checkpoint is durable even if old ones cannot be removed. Returning their space to the disk can take as
  /// long as half a save, so nobody waits for it but the next save.
  void retain(std::int64_t saved) {
    if (config.keep_all) {
      return;
    }
    tolerating_old_ones([&] {
      std::vector<path> dropped = directory.drop(config.keep_last, saved, kept_steps(saved));
      const auto left = directory.steps();
      std::erase_if(scores,
                    [&](const auto& score) { return !std::binary_search(left.begin(), left.end(), score.first); });
      if (!dropped.empty()) {
        // The default policy: if no thread can be created, the next save removes them.
        removing = std::async([this, dropped = std::move(dropped)] {
          set_log_rank(world.rank(), world.size());
          tolerating_old_ones([&] { directory.remove(dropped); });
        });
      }
    });
  }

  static void tolerating_old_ones(const std::function<void()>& work) {
    try {
      work();
    } catch (const IoError& error) {
      log_warning(fmt::format("could not delete old checkpoints: {}", error.what()));
    }
  }

  void link(std::int64_t step, const std::map<std::string, std::string>& values) {
    const auto value = [&](std::string_view name) -> std::optional<double> {
      if (name == "step") {
        return static_cast<double>(step);
      }
      const auto found = values.find(name == "epoch" ? std::string(name) : metric_key(name));
      return found == values.end() ? std::nullopt : parse_double(found->second);
    };
    try {
      directory.link("last", step);
      if (!scores.empty()) {
        directory.link("best", by_score().front());
      }
      if (const auto name = fill_name(config.name, value); name && !name->empty()) {
        directory.link(*name, step);
      }
    } catch (const IoError&) {
      // Links are only for people, and not every file system supports them.
    } catch (const CheckpointError& error) {  // a value made the name too long
      log_warning(error.what());
    }
  }

  /// Collective. The contents that this rank writes: those of rank 0, whose buffers and callbacks may differ from
  /// others'.
  CheckpointContents to_write(const CheckpointContents& mine, const std::vector<std::string>& per_rank) {
    if (!config.per_node) {
      return mine;
    }
    StoredContents saved{.contents = mine, .per_rank = per_rank};
    broadcast_contents(world, /*source=*/0, saved);
    return std::move(saved.contents);
  }

  std::optional<BackgroundSave> wait() {
    const auto step = std::exchange(in_background, std::nullopt);
    if (!step) {
      return std::nullopt;
    }
    const auto seconds =
        run_on(world, "writing a checkpoint", writes, [&] { return fmt::format("{:.6f}", writing.get()); });
    return BackgroundSave{.step = *step, .seconds = parse_double(seconds.front()).value_or(0)};
  }

  struct Candidate {
    double key = 0;  // the largest is tried first
    std::int64_t step = 0;
    int rank = 0;  // a rank that has it
    auto operator<=>(const Candidate&) const = default;
  };

  /// Collective. The checkpoints of the writing ranks, in the order in which a load tries them.
  std::vector<Candidate> candidates(const std::function<std::map<std::int64_t, double>()>& mine) {
    wait();
    std::vector<Candidate> all;
    const auto answers = run_on(world, "looking for a checkpoint", writes, [&] {
      std::string text;
      for (const auto& [step, key] : mine()) {
        text += fmt::format("{:.17g} {}\n", key, step);
      }
      return text;
    });
    for (std::size_t rank = 0; rank < answers.size(); ++rank) {
      for (const std::string& line : split(answers[rank], '\n')) {
        if (const auto space = line.find(' '); space != std::string::npos) {
          all.push_back({.key = parse_double(line.substr(0, space)).value_or(0),
                         .step = parse_int(line.substr(space + 1)).value_or(0),
                         .rank = -static_cast<int>(rank)});  // among equals the first rank
        }
      }
    }
    std::sort(all.begin(), all.end(), std::greater<>());
    for (Candidate& candidate : all) {
      candidate.rank = -candidate.rank;
    }
    return all;
  }

  std::map<std::int64_t, double> steps_as_keys() const {
    std::map<std::int64_t, double> keys;
    for (const std::int64_t step : directory.steps()) {
      keys.emplace(step, static_cast<double>(step));
    }
    return keys;
  }

  /// Collective. Loads the first undamaged candidate.
  std::optional<StoredCheckpoint> load_first(const std::vector<Candidate>& candidates, const OnDamage& on_damage) {
    std::vector<std::string> unreadable;
    for (const Candidate& candidate : candidates) {
      const bool mine = candidate.rank == world.rank();
      try {
        StoredCheckpoint stored{
            candidate.step, load_on(world, candidate.rank, [&] { return read_contents(directory, candidate.step); })};
        if (mine) {
          known_whole = candidate.step;
        }
        return stored;
      } catch (const CheckpointError& error) {  // the same on every rank
        if (mine) {
          damaged.insert(candidate.step);
        }
        unreadable.push_back(step_name(candidate.step));
        if (world.is_main()) {
          log_warning(error.what());
        }
        if (on_damage) {
          on_damage(error.what());
        }
      }
    }
    if (!unreadable.empty()) {
      const std::string where = world.broadcast_bytes(directory.path(0).parent_path().string());
      throw CheckpointError(
          fmt::format("no checkpoint in {} can be read: {}", where, join(unreadable, ", ")),
          fmt::format("lockstep verify {} lists the damage; --fresh starts over and keeps them beside the new run",
                      where));
    }
    return std::nullopt;
  }
};

CheckpointStore::CheckpointStore(path directory, const CheckpointConfig& config, World& world, int restart,
                                 FileSystem& fs)
    : impl_(new Impl{.world = world,
                     .config = config,
                     .directory = CheckpointDir(fs, directory, run_name(directory), restart),
                     .writes = writes(world, config)}) {
  impl_->config.keep_last = std::max(config.keep_last, 2);
  run_on(world, "opening the checkpoint directory", impl_->writes, [&] {
    impl_->lock = lock_directory(fs, directory);
    if (const auto removed = impl_->directory.remove_incomplete(); !removed.empty()) {
      log_info(fmt::format("removed incomplete checkpoints: {}", join(removed, ", ")));
    }
    for (const std::int64_t step : impl_->directory.steps()) {
      const auto values = peek_values(impl_->directory, step);
      impl_->note_finite(step, values);
      if (!config.monitor.empty()) {
        impl_->note_score(step, values);
      }
    }
    return std::string();
  });
}

CheckpointStore::~CheckpointStore() {
  if (impl_ && impl_->writing.valid()) {
    impl_->writing.wait();
  }
  if (impl_ && impl_->removing.valid()) {
    impl_->removing.wait();
  }
}

void CheckpointStore::save(std::int64_t step, const CheckpointContents& contents) {
  wait_for_save();
  const std::vector<std::string> per_rank = impl_->world.gather(to_bytes(contents.per_rank));
  const CheckpointContents mine = impl_->to_write(contents, per_rank);
  run_on(impl_->world, "saving a checkpoint", impl_->writes, [&] {
    impl_->write(step, mine, per_rank);
    return std::string();
  });
}

void CheckpointStore::save_in_background(std::int64_t step, const CheckpointContents& contents) {
  wait_for_save();
  std::vector<std::string> per_rank = impl_->world.gather(to_bytes(contents.per_rank));
  const auto start = Impl::Clock::now();
  const CheckpointContents mine = impl_->to_write(contents, per_rank);
  try {
    run_on(impl_->world, "copying the state", impl_->writes, [&] {
      const CheckpointContents& copies = impl_->copies.take(mine);
      impl_->written = false;
      impl_->writing =
          std::async(std::launch::async, [impl = impl_.get(), &copies, step, start, per_rank = std::move(per_rank)] {
            const FlagOnExit flag(impl->written);
            set_log_rank(impl->world.rank(), impl->world.size());
            impl->write(step, copies, per_rank);
            return seconds_since(start);
          });
      return std::string();
    });
  } catch (...) {  // it failed on another node: the save that started here must not meet the next one
    impl_->writing = {};
    throw;
  }
  impl_->in_background = step;
}

bool CheckpointStore::save_ended() const noexcept {
  return impl_->world.is_main() && impl_->in_background && impl_->written;
}

std::optional<BackgroundSave> CheckpointStore::wait_for_save() { return impl_->wait(); }

std::optional<std::int64_t> CheckpointStore::latest() {
  const auto found = impl_->candidates([&] { return impl_->steps_as_keys(); });
  return found.empty() ? std::nullopt : std::optional(found.front().step);
}

CheckpointContents CheckpointStore::load(std::int64_t step) {
  const auto found = impl_->candidates([&] { return impl_->steps_as_keys(); });
  const auto here = std::find_if(found.begin(), found.end(), [&](const auto& c) { return c.step == step; });
  return load_on(impl_->world, here == found.end() ? 0 : here->rank,
                 [&] { return read_contents(impl_->directory, step); });
}

std::optional<StoredCheckpoint> CheckpointStore::load_latest(const OnDamage& on_damage) {
  return impl_->load_first(impl_->candidates([&] { return impl_->steps_as_keys(); }), on_damage);
}

std::optional<StoredCheckpoint> CheckpointStore::load_best(const OnDamage& on_damage) {
  const auto found = impl_->candidates([&] {
    auto keys = impl_->scores;
    for (auto& [step, key] : keys) {
      key = impl_->config.mode == MonitorMode::min ? -key : key;
    }
    return keys;
  });
  return impl_->load_first(found, on_damage);
}

std::optional<std::pair<std::int64_t, double>> CheckpointStore::best() {
  wait_for_save();
  std::string mine;  // rank 0 has the scores
  if (const auto steps = impl_->by_score(); !steps.empty()) {
    mine = fmt::format("{} {:.17g}", steps.front(), impl_->scores.at(steps.front()));
  }
  const std::string text = impl_->world.broadcast_bytes(mine);
  const std::size_t space = text.find(' ');
  if (space == std::string::npos) {
    return std::nullopt;
  }
  return std::pair(parse_int(text.substr(0, space)).value_or(0), parse_double(text.substr(space + 1)).value_or(0));
}

void CheckpointStore::abandon_after(std::int64_t step) {
  wait_for_save();
  run_on(impl_->world, "renaming newer checkpoints", impl_->writes, [&] {
    std::vector<std::int64_t> steps = impl_->directory.steps();
    std::erase_if(steps, [&](std::int64_t other) { return other <= step; });
    for (const std::string& name : impl_->directory.abandon(steps)) {
      log_warning(fmt::format("newer than step {}, and no longer part of the run: {}", step, name));
    }
    impl_->forget_after(step);
    return std::string();
  });
}

namespace {

// "step-0000000500", with or without a trailing slash. Links are followed, because the user named them.
path real_folder(const path& named) {
  std::error_code missing;
  const path folder = std::filesystem::canonical(named, missing);
  if (missing) {
    throw CheckpointError(
        fmt::format("--resume {}: {}, expected a checkpoint or a run directory", named.string(), missing.message()),
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
