#include "storage/commit.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/assertion.h"
#include "base/crc32c.h"
#include "base/text.h"
#include "storage/manifest.h"
#include "storage/names.h"

namespace lockstep {
namespace {

using Bytes = std::span<const std::byte>;
using Path = std::filesystem::path;

// Computes the checksums of a stream's chunks and writes it.
class ChunkedFile {
 public:
  // `buffer` gathers small pieces; all files of a checkpoint share it.
  ChunkedFile(std::unique_ptr<WritableFile> file, std::string name, std::vector<std::byte>& buffer)
      : file_(std::move(file)), buffer_(buffer) {
    entry_.name = std::move(name);
    buffer_.clear();
  }

  void append(Bytes bytes) {
    if (buffer_.size() + bytes.size() > kPiece) {
      flush();
    }
    if (bytes.size() < kPiece) {
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    } else {
      emit(bytes);
    }
  }

  Manifest::File finish() {
    flush();
    file_->sync();
    file_->close();
    return std::move(entry_);
  }

 private:
  static constexpr auto kChunk = static_cast<std::size_t>(kChunkBytes);
  static constexpr std::size_t kPiece = 256 << 10;  // still in the cache of the core when it is copied

  void flush() {
    emit(buffer_);
    buffer_.clear();
  }

  void emit(Bytes bytes) {
    while (!bytes.empty()) {
      const std::size_t in_chunk = static_cast<std::size_t>(entry_.size) % kChunk;
      const Bytes piece = bytes.first(std::min({bytes.size(), kPiece, kChunk - in_chunk}));
      if (in_chunk == 0) {
        entry_.crc32c.push_back(0);
      }
      entry_.crc32c.back() = crc32c(piece, entry_.crc32c.back());
      entry_.size += static_cast<std::int64_t>(piece.size());
      file_->append(piece);
      bytes = bytes.subspan(piece.size());
    }
  }

  std::unique_ptr<WritableFile> file_;
  std::vector<std::byte>& buffer_;
  Manifest::File entry_{};
};

class CommitWriter final : public CheckpointWriter {
 public:
  CommitWriter(FileSystem& fs, Path directory, Manifest manifest, std::int64_t expected_bytes)
      : fs_(fs),
        directory_(std::move(directory)),
        temporary_(directory_ / temporary_name(manifest.step)),
        manifest_(std::move(manifest)),
        expected_bytes_(expected_bytes) {
    naming_step([&] { fs_.create_directories(temporary_); });
  }

  ~CommitWriter() override {
    if (state_ == State::renamed) {
      return;
    }
    try {
      fs_.remove_all(temporary_);
    } catch (...) {  // remove_incomplete() deletes it later; a destructor cannot report errors
    }
  }

  void add(const std::string& name, const std::function<void(const std::function<void(Bytes)>&)>& produce,
           std::int64_t expected_bytes) override {
    LOCKSTEP_ASSERT(state_ == State::writing, "add() must come before commit() and not after a failure");
    check_name(name);
    state_ = State::failed;  // until this file is complete
    naming_step([&] {
      auto created = fs_.create(temporary_ / name);
      if (expected_bytes > 0) {
        created->reserve(expected_bytes);
      }
      ChunkedFile file(std::move(created), name, buffer_);
      produce([&](Bytes bytes) { file.append(bytes); });
      manifest_.files.push_back(file.finish());
    });
    state_ = State::writing;
  }

  void commit() override {
    LOCKSTEP_ASSERT(state_ == State::writing, "commit() must be called once and not after a failure");
    state_ = State::failed;
    naming_step([&] {
      write_manifest();
      fs_.sync_directory(temporary_);
      move_aside();
      fs_.rename(temporary_, directory_ / step_name(manifest_.step));
      state_ = State::renamed;
      fs_.sync_directory(directory_);
      remove_aside();
    });
  }

 private:
  enum class State { writing, failed, renamed };

  void check_name(const std::string& name) const {
    if (!is_file_name(name) || name == kManifestName) {
      throw CheckpointError(fmt::format("checkpoint file name: found \"{}\", expected [A-Za-z0-9._-]{{1,128}}", name));
    }
    for (const Manifest::File& file : manifest_.files) {
      if (file.name == name) {
        throw CheckpointError("checkpoint file name: found " + name + " twice");
      }
    }
  }

  void write_manifest() {
    const std::string text = manifest_text(manifest_);
    const std::unique_ptr<WritableFile> file = fs_.create(temporary_ / kManifestName);
    file->append(std::as_bytes(std::span(text)));
    file->sync();
    file->close();
  }

  // A directory cannot replace one that is not empty. Until the new one is in place, readers use the one moved aside.
  void move_aside() {
    const Path target = directory_ / step_name(manifest_.step);
    if (fs_.exists(target)) {
      fs_.sync_directory(directory_);  // the target must be durable before an older copy is removed,
      remove_aside();
      fs_.sync_directory(directory_);  // and that copy must be gone before the next one exists
      fs_.rename(target, directory_ / aside_name(manifest_.step));
    }
  }

  void remove_aside() {
    for (const std::string& name : fs_.list(directory_)) {
      const auto parsed = parse_directory_name(name);
      if (parsed && parsed->kind == DirectoryKind::aside && parsed->step == manifest_.step) {
        fs_.remove_all(directory_ / name);
      }
    }
  }

  template <typename Function>
  void naming_step(const Function& function) const {
    try {
      function();
    } catch (const IoError& error) {
      throw IoError(fmt::format("cannot save {}: {}{}", step_name(manifest_.step), error.what(), space(error.number())),
                    error.hint(), error.number());
    }
  }

  // Information for a user with a full disk.
  std::string space(int error) const {
    if (error != ENOSPC && error != EDQUOT) {
      return {};
    }
    try {
      const std::string needed = expected_bytes_ > 0 ? fmt::format(", needed {}", human_bytes(expected_bytes_)) : "";
      return fmt::format(" (free {}{})", human_bytes(fs_.free_bytes(directory_)), needed);
    } catch (const IoError&) {
      return {};
    }
  }

  FileSystem& fs_;
  Path directory_;
  Path temporary_;
  Manifest manifest_;
  std::int64_t expected_bytes_;
  std::vector<std::byte> buffer_{};
  State state_ = State::writing;
};

}  // namespace

std::unique_ptr<CheckpointWriter> make_commit_writer(FileSystem& fs, Path directory, Manifest manifest,
                                                     std::int64_t expected_bytes) {
  return std::make_unique<CommitWriter>(fs, std::move(directory), std::move(manifest), expected_bytes);
}

}  // namespace lockstep
