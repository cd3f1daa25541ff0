// Forwards every operation to another file system; tests override operations to inject errors.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <lockstep/base/file_system.h>

namespace lockstep {

class ForwardingFile : public WritableFile {
 public:
  explicit ForwardingFile(std::unique_ptr<WritableFile> inner) : inner_(std::move(inner)) {}
  void reserve(std::int64_t bytes) override { inner_->reserve(bytes); }
  void append(std::span<const std::byte> bytes) override { inner_->append(bytes); }
  void truncate(std::int64_t bytes) override { inner_->truncate(bytes); }
  void sync() override { inner_->sync(); }
  void close() override { inner_->close(); }
  bool is_in_place() const override { return inner_->is_in_place(); }

 private:
  std::unique_ptr<WritableFile> inner_;
};

class ForwardingFileSystem : public FileSystem {
 public:
  explicit ForwardingFileSystem(FileSystem& inner) : inner_(inner) {}

  std::unique_ptr<WritableFile> create(const Path& path) override { return inner_.create(path); }
  std::unique_ptr<WritableFile> open_append(const Path& path) override { return inner_.open_append(path); }
  std::unique_ptr<RandomAccessFile> open(const Path& path) override { return inner_.open(path); }
  void create_directories(const Path& path) override { inner_.create_directories(path); }
  void sync_directory(const Path& path) override { inner_.sync_directory(path); }
  void rename(const Path& from, const Path& to) override { inner_.rename(from, to); }
  void replace(const Path& from, const Path& to) override { inner_.replace(from, to); }
  void replace_link(const Path& link, const Path& target) override { inner_.replace_link(link, target); }
  std::optional<Path> read_link(const Path& path) override { return inner_.read_link(path); }
  void remove(const Path& path) override { inner_.remove(path); }
  void remove_all(const Path& path) override { inner_.remove_all(path); }
  bool exists(const Path& path) override { return inner_.exists(path); }
  std::vector<std::string> list(const Path& path) override { return inner_.list(path); }
  std::int64_t free_bytes(const Path& path) override { return inner_.free_bytes(path); }
  std::unique_ptr<FileLock> try_lock(const Path& path, const std::string& text, std::string& owner) override {
    return inner_.try_lock(path, text, owner);
  }

 protected:
  FileSystem& inner_;
};

}  // namespace lockstep
