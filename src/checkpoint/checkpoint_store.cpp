#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/world/world.h>

#include "base/duration.h"
#include "base/log_label.h"
#include "base/option_check.h"
#include "base/text.h"
#include "checkpoint/contents_broadcast.h"
#include "checkpoint/contents_files.h"
#include "checkpoint/host_copies.h"
#include "checkpoint/kept_checkpoints.h"
#include "checkpoint/main_rank.h"
#include "storage/names.h"
#include "tensor/tensor_bytes.h"
#include "world/warn_on_main.h"

namespace lockstep {
namespace {

using std::filesystem::path;

std::string to_bytes(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return {};
  }
  const bool is_row_of_bytes = tensor.scalar_type() == at::kByte && tensor.dim() == 1;
  OptionCheck("CheckpointContents")
      .refuse_if(!is_row_of_bytes,
                 fmt::format("per_rank is a {}-dimensional tensor of {}, expected a row of bytes", tensor.dim(),
                             c10::toString(tensor.scalar_type())),
                 "give it one dimension and the dtype kByte, or put the tensor into `tensors`")
      .throw_problems();
  return std::string(text_of_bytes(tensor.to(at::kCPU).contiguous()));
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
  bool per_node;  // a rank of every node writes
  bool writes;    // this rank writes
  KeptCheckpoints kept;
  HostCopies copies{};                          // of a save in the background
  std::optional<std::int64_t> in_background{};  // its step, on every rank
  std::future<double> writing{};                // seconds
  std::atomic<bool> written{false};

  /// Collective. The contents that this rank writes: those of rank 0, whose buffers and callbacks may differ from
  /// others'.
  CheckpointContents to_write(const CheckpointContents& mine, const std::vector<std::string>& per_rank) {
    if (!per_node) {
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
    return BackgroundSave{.step = *step, .duration_s = parse_double(seconds.front()).value_or(0)};
  }

  struct Candidate {
    double key = 0;  // the largest is tried first
    std::int64_t step = 0;
    int rank = 0;  // a rank that has it
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
                         .rank = static_cast<int>(rank)});
        }
      }
    }
    // Among equals the first checkpoint, of the first rank.
    std::ranges::sort(all, {}, [](const Candidate& c) { return std::tuple(-c.key, c.step, c.rank); });
    return all;
  }

  /// Collective. Loads the first undamaged candidate. If it cannot be read now, no older one takes its place, but with
  /// per_node the same one of another node.
  std::optional<StoredCheckpoint> load_first(const std::vector<Candidate>& candidates, const OnDamage& on_damage) {
    std::vector<std::string> damaged;
    std::optional<std::int64_t> unread;  // its step
    std::exception_ptr why_unread;
    for (const Candidate& candidate : candidates) {
      if (unread && candidate.step != unread) {
        break;
      }
      const bool mine = candidate.rank == world.rank();
      try {
        StoredCheckpoint stored{
            candidate.step, load_on(world, candidate.rank, [&] { return read_contents(kept.files(candidate.step)); })};
        if (mine) {
          kept.found_whole(candidate.step);
        }
        return stored;
      } catch (const CheckpointError& error) {  // the same on every rank
        if (mine) {
          kept.found_damaged(candidate.step);
        }
        damaged.push_back(step_name(candidate.step));
        warn_on_main(world, error.what());
        if (on_damage) {
          on_damage(error.what());
        }
      } catch (const IoError& error) {  // the same on every rank
        if (!unread) {
          unread = candidate.step;
          why_unread = std::current_exception();
        }
        if (per_node) {
          warn_on_main(world, error.what());
        }
      }
    }
    if (unread) {
      std::rethrow_exception(why_unread);
    }
    if (!damaged.empty()) {
      const std::string where = world.broadcast_bytes(kept.directory().path(0).parent_path().string());
      throw CheckpointError(
          fmt::format("no checkpoint in {} can be read: {}", where, join(damaged, ", ")),
          fmt::format("lockstep verify {} lists the damage; --fresh starts over and keeps them beside the new run",
                      where));
    }
    return std::nullopt;
  }
};

CheckpointStore::CheckpointStore(path directory, const CheckpointConfig& config, World& world, int restart,
                                 FileSystem& fs)
    : impl_(new Impl{.world = world,
                     .per_node = config.per_node,
                     .writes = writes(world, config),
                     .kept = KeptCheckpoints(std::move(directory), config, restart, fs)}) {
  run_on(world, "opening the checkpoint directory", impl_->writes, [&] { impl_->kept.open(); });
}

CheckpointStore::~CheckpointStore() {
  if (impl_ && impl_->writing.valid()) {
    impl_->writing.wait();
  }
}

void CheckpointStore::save(std::int64_t step, const CheckpointContents& contents) {
  wait_for_save();
  const std::vector<std::string> per_rank = impl_->world.gather(to_bytes(contents.per_rank));
  const CheckpointContents mine = impl_->to_write(contents, per_rank);
  run_on(impl_->world, "saving a checkpoint", impl_->writes, [&] { impl_->kept.write(step, mine, per_rank); });
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
      impl_->writing = std::async(std::launch::async, [impl = impl_.get(), &copies, step, start,
                                                       per_rank = std::move(per_rank), label = log_label()] {
        const FlagOnExit flag(impl->written);
        const LogLabelScope scope(label);
        impl->kept.write(step, copies, per_rank);
        return seconds_since(start);
      });
    });
  } catch (...) {  // it failed on another node: the save that started here must not be taken for the next one
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
  const auto found = impl_->candidates([&] { return impl_->kept.newest_first(); });
  return found.empty() ? std::nullopt : std::optional(found.front().step);
}

CheckpointContents CheckpointStore::load(std::int64_t step) {
  const auto found = impl_->candidates([&] { return impl_->kept.newest_first(); });
  const auto here = std::find_if(found.begin(), found.end(), [&](const auto& c) { return c.step == step; });
  return load_on(impl_->world, here == found.end() ? 0 : here->rank,
                 [&] { return read_contents(impl_->kept.files(step)); });
}

std::optional<StoredCheckpoint> CheckpointStore::load_latest(const OnDamage& on_damage) {
  return impl_->load_first(impl_->candidates([&] { return impl_->kept.newest_first(); }), on_damage);
}

std::optional<StoredCheckpoint> CheckpointStore::load_best(const OnDamage& on_damage) {
  return impl_->load_first(impl_->candidates([&] { return impl_->kept.best_first(); }), on_damage);
}

std::optional<std::pair<std::int64_t, double>> CheckpointStore::best() {
  const auto found = impl_->candidates([&] { return impl_->kept.best_first(); });
  return found.empty() ? std::nullopt
                       : std::optional(std::pair(found.front().step, impl_->kept.value_of(found.front().key)));
}

void CheckpointStore::abandon_after(std::int64_t step) {
  wait_for_save();
  run_on(impl_->world, "renaming newer checkpoints", impl_->writes, [&] { impl_->kept.abandon_after(step); });
}

}  // namespace lockstep
