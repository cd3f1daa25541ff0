#include "storage/run_directory.h"

#include <cerrno>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/descriptor.h"
#include "base/file_lock.h"
#include "base/paths.h"
#include "base/run_files.h"
#include "base/text.h"
#include "environment/process_name.h"

namespace lockstep {
namespace {

using Path = std::filesystem::path;

/// Takes the lock of the directory and, for a moment, that of its checkpoints, which a CheckpointStore of a
/// hand-written loop may hold alone. nullptr: another process holds one of them.
std::unique_ptr<FileLock> lock_both(FileSystem& fs, const Path& directory, std::string& owner) {
  auto lock = fs.try_lock(directory / kLockName, pid_on_host(), owner);
  const Path checkpoints = directory / kCheckpointsName / kLockName;
  if (lock != nullptr && fs.exists(checkpoints) && fs.try_lock(checkpoints, pid_on_host(), owner) == nullptr) {
    return nullptr;
  }
  return lock;
}

bool is_locked(const Path& file) noexcept {
  const Descriptor lock(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  return lock.is_open() && is_file_locked(lock.get());
}

}  // namespace

std::unique_ptr<FileLock> try_lock_run(FileSystem& fs, const Path& directory) noexcept {
  try {
    std::string owner;
    return fs.exists(directory) ? lock_both(fs, directory, owner) : nullptr;
  } catch (const std::exception&) {
    return nullptr;
  }
}

bool is_run_in_use(const Path& directory) noexcept {
  return is_locked(directory / kLockName) || is_locked(directory / kCheckpointsName / kLockName);
}

bool is_run_of_own_loop(const Path& directory) noexcept {
  return is_locked(directory / kCheckpointsName / kLockName) && !is_locked(directory / kLockName);
}

std::string kept_batch_limit(FileSystem& fs, const Path& directory) noexcept {
  try {
    const Path file = directory / kBatchLimitName;
    return fs.exists(file) ? read_file(fs, file) : std::string();
  } catch (const std::exception& error) {
    log_warning(fmt::format("cannot read which micro-batch did not fit, so the given batch_size is tried again: {}",
                            error.what()));
    return {};
  }
}

void drop_batch_limit(FileSystem& fs, const Path& directory) noexcept {
  try {
    fs.remove(directory / kBatchLimitName);
  } catch (const std::exception& error) {
    log_warning(fmt::format(
        "--fresh: cannot remove the file of a micro-batch that did not fit; delete it, or the next start uses it: {}",
        error.what()));
  }
}

RunDirectory::RunDirectory(FileSystem& fs, const Path& directory, const LaunchName& launch)
    : fs_(fs), directory_(without_links(std::filesystem::absolute(directory))) {
  lock(&launch);
}

RunFound RunDirectory::found() const {
  bool has_run = false;
  for (const char* name : {kRunRecordName, kCheckpointsName, kSettingsName}) {
    has_run = has_run || fs_.exists(directory_ / name);
  }
  return {.directory = directory_.string(), .has_run = has_run, .json = json()};
}

std::string RunDirectory::json() const {
  const Path file = directory_ / kRunRecordName;
  return fs_.exists(file) ? read_file(fs_, file) : std::string();
}

Path RunDirectory::set_aside() {
  if (is_inside(".", directory_)) {
    throw ConfigError(
        fmt::format("--fresh: {} is the working directory or contains it; it cannot be renamed during the "
                    "program",
                    directory_.string()),
        "start from another directory, or set a --run_dir below this one");
  }
  for (int number = 1;; ++number) {
    const Path aside = fmt::format("{}.{}", directory_.string(), number);
    try {
      fs_.rename(directory_, aside);
    } catch (const IoError& error) {
      if (error.number() == EEXIST || error.number() == ENOTEMPTY) {
        continue;
      }
      if (error.number() == EBUSY) {
        throw IoError(fmt::format("--fresh: {}; it is a mount point", error.what()),
                      "set a --run_dir below it, or move its files away yourself", EBUSY);
      }
      throw;
    }
    fs_.sync_directory(directory_.parent_path());
    const auto old_lock = std::move(lock_);  // keep the old run locked until the new one is locked
    lock(nullptr);
    return aside;
  }
}

void RunDirectory::write(const RunRecord& record) { write_file(fs_, directory_ / kRunRecordName, to_json(record)); }

bool RunDirectory::take(std::string& owner, std::optional<IoError>& missing) {
  try {
    fs_.create_directories(directory_);
    lock_ = lock_both(fs_, directory_, owner);
    return lock_ != nullptr;
  } catch (const IoError& error) {
    if (error.number() != ENOENT) {
      throw;
    }
    owner.clear();  // another start has just renamed the directory, or it can never be made
    missing = error;
    return false;
  }
}

void RunDirectory::lock(const LaunchName* patient_with) {
  constexpr std::chrono::seconds kPatience{10};        // time for a process that is being killed
  constexpr std::chrono::milliseconds kNewOwner{200};  // until its name is in the lock, that of an earlier one is there
  constexpr std::chrono::milliseconds kPause{20};
  constexpr int kMisses = 10;  // another start may rename the directory between two calls; the next attempt makes it
  const auto began = std::chrono::steady_clock::now();
  std::string owner;
  int missed = 0;  // attempts in a row
  for (std::optional<IoError> missing; !take(owner, missing); missing.reset()) {
    missed = missing ? missed + 1 : 0;
    const auto waited = std::chrono::steady_clock::now() - began;
    if (missing && (missed == kMisses || waited > kPatience)) {
      throw *missing;
    }
    const bool of_this_launch = patient_with != nullptr && [&] {
      const std::string text = json();
      return !text.empty() && same_launch(parse_run_record(text, directory_.string()).launch, *patient_with);
    }();
    if (waited > (!owner.empty() && !of_this_launch ? std::chrono::milliseconds(kNewOwner) : kPatience)) {
      throw CheckpointError(fmt::format("run directory {} is in use by {}", directory_.string(),
                                        owner.empty() ? "another start" : printable(owner)),
                            fmt::format("wait for that run to end, or use another --run_name; if that process has "
                                        "ended, a process that it started still has {0} open: fuser {0} names it",
                                        (directory_ / kLockName).string()));
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace lockstep
