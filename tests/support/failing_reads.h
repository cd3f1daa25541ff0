// A file system on which one file cannot be read, for example because the file server fails. Torch-free.
#pragma once

#include <memory>
#include <utility>

#include "base/io_error.h"
#include "support/forwarding_file_system.h"

namespace lockstep {

enum class ReadStage { inspect, open, read };

class FailingReads final : public ForwardingFileSystem {
 public:
  FailingReads(FileSystem& inner, Path file) : ForwardingFileSystem(inner), file_(std::move(file)) {}

  ReadStage stage = ReadStage::read;
  int error = 0;  ///< 0: none

  bool exists(const Path& path) override {
    fail(ReadStage::inspect, "inspect", path);
    return inner_.exists(path);
  }
  std::unique_ptr<RandomAccessFile> open(const Path& path) override {
    fail(ReadStage::open, "open", path);
    return std::make_unique<File>(*this, inner_.open(path), path);
  }

 private:
  class File final : public RandomAccessFile {
   public:
    File(const FailingReads& disk, std::unique_ptr<RandomAccessFile> inner, Path path)
        : disk_(disk), inner_(std::move(inner)), path_(std::move(path)) {}
    std::int64_t size() const override { return inner_->size(); }
    void read(std::int64_t offset, std::span<std::byte> out) const override {
      disk_.fail(ReadStage::read, "read", path_);
      inner_->read(offset, out);
    }

   private:
    const FailingReads& disk_;
    std::unique_ptr<RandomAccessFile> inner_;
    Path path_;
  };

  void fail(ReadStage at, const char* verb, const Path& path) const {
    if (error != 0 && at == stage && path == file_) {
      throw_io_error(verb, path, error);
    }
  }

  Path file_;
};

}  // namespace lockstep
