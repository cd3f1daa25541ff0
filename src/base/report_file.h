// A file that reports on a run: lines or records, one after the other. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include <lockstep/base/file_system.h>

namespace lockstep {

/// A report never ends the run. The first write that fails is a warning; what could not be written is dropped and
/// counted; every later write tries again, and the first that succeeds says how many are missing. Not thread-safe.
class ReportFile {
 public:
  /// Makes an opened file ready to be appended to; it may shorten it and append to it. Called after every opening, so
  /// again after a failure, which may have left a part of a line. False: another program wrote this file.
  using Prepare = std::function<bool(WritableFile& file, const RandomAccessFile& content)>;

  /// Opens `path` at once. What stands in its place and cannot be continued (a directory, a link, a pipe, a file of
  /// another program) is renamed to `path`.1, .2, ..., with a warning. `unit` is what is counted: "rows".
  ReportFile(FileSystem& fs, std::filesystem::path path, std::string unit, Prepare prepare);
  ~ReportFile();  ///< says how many are missing at the end
  ReportFile(const ReportFile&) = delete;
  ReportFile& operator=(const ReportFile&) = delete;

  /// Calls `write` with the file; it writes `count` units, all or none. Returns whether they are written.
  bool write(std::int64_t count, const std::function<void(WritableFile& file)>& write);
  /// The next write opens the file again: it was replaced by another one.
  void reopen() noexcept { file_.reset(); }

 private:
  void open();
  void set_aside(const std::string& reason);
  void say_missing(std::string_view where);

  FileSystem& fs_;
  std::filesystem::path path_;
  std::string unit_;
  Prepare prepare_;
  std::unique_ptr<WritableFile> file_{};  // nullptr: to be opened
  bool failing_ = false;
  std::int64_t missing_ = 0;  // since it fails
};

/// Of a text file: what stands before the end of its last whole line. The rest is what a crash or a full disk has left.
std::int64_t end_of_last_line(const RandomAccessFile& file);

}  // namespace lockstep
