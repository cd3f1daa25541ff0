// Operations on a checkpoint directory for the sweeps of this folder, and the states that they expect afterwards.
#pragma once

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/storage/checkpoint_dir.h>

#include "support/forwarding_file_system.h"
#include "unit/storage/checkpoint_samples.h"

namespace lockstep::storage_faults {

using Path = std::filesystem::path;

/// A directory in memory (/dev/shm), if available: after a kill, only the page cache matters, not the disk.
class ScratchDir {
 public:
  ScratchDir() {
    const Path shm = "/dev/shm";
    const Path parent = ::access(shm.c_str(), W_OK) == 0 ? shm : std::filesystem::temp_directory_path();
    std::string name = (parent / "lockstep_storage_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw std::system_error(errno, std::generic_category(), "mkdtemp " + name);
    }
    path_ = name;
  }
  ~ScratchDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDir(const ScratchDir&) = delete;
  ScratchDir& operator=(const ScratchDir&) = delete;
  const Path& path() const { return path_; }

  /// Copies `from` and replaces the directory of an earlier point.
  Path fresh(const Path& from) const {
    const Path to = path_ / "point";
    std::filesystem::remove_all(to);
    std::filesystem::copy(from, to,
                          std::filesystem::copy_options::recursive | std::filesystem::copy_options::copy_symlinks);
    return to;
  }

 private:
  Path path_;
};

struct Version {
  std::int64_t step = 0;
  int version = 0;
};

struct Scenario {
  const char* name;
  std::vector<Version> before;
  Version saved;
};

inline const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> all = {
      {"first", {}, {50, 1}},
      {"next", {{50, 0}}, {100, 0}},
      {"next, oldest deleted", {{50, 0}, {100, 0}}, {150, 0}},
      {"replaced", {{50, 0}, {100, 0}}, {100, 1}},
      {"the only one replaced", {{50, 0}}, {50, 1}},
  };
  return all;
}

inline void save_version(FileSystem& fs, const Path& directory, Version version) {
  CheckpointDir checkpoints(fs, directory, "run", 0);
  testing_storage::save(checkpoints, version.step, testing_storage::sample_contents(version.step, version.version));
  checkpoints.link("last", version.step);
  checkpoints.retain(2, version.step);
}

/// As save_version(), but the old ones are removed by a thread while the links are made, as CheckpointStore does it.
inline void save_and_remove_meanwhile(FileSystem& fs, const Path& directory, Version version) {
  CheckpointDir checkpoints(fs, directory, "run", 0);
  testing_storage::save(checkpoints, version.step, testing_storage::sample_contents(version.step, version.version));
  const auto dropped = checkpoints.drop(2, version.step);
  std::thread removing([&] { checkpoints.remove(dropped); });
  checkpoints.link("last", version.step);
  removing.join();
}

/// Saves like many trainers: file by file to the final path, without fsync.
inline void save_in_place(FileSystem& fs, const Path& directory, Version version) {
  Path elsewhere = directory;
  elsewhere += ".elsewhere";
  save_version(real_file_system(), elsewhere, version);
  const Path from = CheckpointDir(real_file_system(), elsewhere, "run", 0).path(version.step);
  const Path to = directory / from.filename();
  fs.create_directories(to);
  for (const std::string& name : fs.list(from)) {
    const auto file = (fs.remove(to / name), fs.create(to / name));
    file->append(testing_storage::as_bytes(testing_storage::read_all(*fs.open(from / name))));
    file->close();
  }
  fs.remove_all(elsewhere);
}

/// After a crash, a new process finds the previous checkpoint or the one being saved; always the latter after the save
/// has returned. Cleanup removes all leftovers and changes nothing else, and the next save works.
inline bool survives(const Path& directory, const Scenario& scenario, bool acknowledged) {
  FileSystem& fs = real_file_system();
  const auto check = [&] {
    const CheckpointDir checkpoints(fs, directory, "run", 1);
    std::vector<std::string> damages;
    const auto newest = testing_storage::newest_valid(checkpoints, &damages);
    if (!newest) {
      return scenario.before.empty() && !acknowledged && damages.empty();
    }
    const auto found = testing_storage::load(checkpoints, *newest);
    const auto is = [&](Version version) {
      return newest->step == version.step && found == testing_storage::sample_contents(version.step, version.version);
    };
    return damages.empty() &&
           (is(scenario.saved) || (!acknowledged && !scenario.before.empty() && is(scenario.before.back())));
  };
  const auto is_clean = [&] {
    for (const std::string& name : fs.list(directory)) {
      if (name.find('.') != std::string::npos && !name.starts_with("last")) {
        return false;
      }
    }
    return true;
  };
  if (!check()) {
    return false;
  }
  CheckpointDir(fs, directory, "run", 1).remove_incomplete();
  if (!check() || !is_clean()) {
    return false;
  }
  save_version(fs, directory, {500, 0});
  return is_clean() && testing_storage::newest_valid(CheckpointDir(fs, directory, "run", 1))->step == 500;
}

/// Calls `at` before and after every modifying operation and in the middle of writes and removals, with the number of
/// points so far.
class SteppedFileSystem final : public ForwardingFileSystem {
 public:
  using At = std::function<void(const char* operation, const Path& path)>;
  SteppedFileSystem(FileSystem& inner, At at) : ForwardingFileSystem(inner), at_(std::move(at)) {}

  std::unique_ptr<WritableFile> create(const Path& path) override {
    at_("create", path);
    return std::make_unique<File>(inner_.create(path), at_, path);
  }
  void create_directories(const Path& path) override {
    at_("mkdir", path);
    inner_.create_directories(path);
    at_("made", path);
  }
  void sync_directory(const Path& path) override {
    at_("sync", path);
    inner_.sync_directory(path);
  }
  void rename(const Path& from, const Path& to) override {
    at_("rename", to);
    inner_.rename(from, to);
    at_("renamed", to);
  }
  void replace_link(const Path& link, const Path& target) override {
    at_("link", link);
    inner_.replace_link(link, target);
    at_("linked", link);
  }
  void remove(const Path& path) override {
    at_("remove", path);
    inner_.remove(path);
  }
  void remove_all(const Path& path) override {
    if (std::filesystem::is_directory(std::filesystem::symlink_status(path))) {
      for (const std::string& name : inner_.list(path)) {
        remove_all(path / name);
      }
    }
    at_("remove", path);
    inner_.remove_all(path);
  }

 private:
  class File final : public ForwardingFile {
   public:
    File(std::unique_ptr<WritableFile> inner, At at, Path path)
        : ForwardingFile(std::move(inner)), at_(std::move(at)), path_(std::move(path)) {}
    void reserve(std::int64_t bytes) override {
      at_("reserve", path_);
      ForwardingFile::reserve(bytes);
    }
    void append(std::span<const std::byte> bytes) override {
      at_("write", path_);
      ForwardingFile::append(bytes.first(bytes.size() / 2));
      at_("half written", path_);
      ForwardingFile::append(bytes.subspan(bytes.size() / 2));
      at_("written", path_);
    }
    void truncate(std::int64_t bytes) override {
      at_("shorten", path_);
      ForwardingFile::truncate(bytes);
    }
    void sync() override {
      at_("fsync", path_);
      ForwardingFile::sync();
    }
    void close() override {
      at_("close", path_);
      ForwardingFile::close();
    }

   private:
    At at_;
    Path path_;
  };

  At at_;
};

enum class Ending { finished, killed, failed };

/// Runs `work` in a separate process, on a file system that kills it at point `point` (from 0).
inline Ending run_until_killed(int point, const std::function<void(FileSystem&)>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::atomic<int> reached = 0;
    SteppedFileSystem fs(real_file_system(), [&](const char*, const Path&) {
      if (reached++ == point) {
        ::kill(::getpid(), SIGKILL);
      }
    });
    try {
      work(fs);
      ::_exit(0);
    } catch (...) {
      ::_exit(1);
    }
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) {
    throw std::system_error(errno, std::generic_category(), "fork");
  }
  if (WIFSIGNALED(status)) {
    return WTERMSIG(status) == SIGKILL ? Ending::killed : Ending::failed;
  }
  return WEXITSTATUS(status) == 0 ? Ending::finished : Ending::failed;
}

}  // namespace lockstep::storage_faults
