// A file of lines or records that reports on a run. Torch-free.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <lockstep/base/file_system.h>

namespace lockstep {

/// A failed report never ends the run. The first failed write logs a warning; its units are dropped and counted. Every
/// later write tries again, and the first success logs how many units are missing. Not thread-safe.
class ReportFile {
 public:
  /// Prepares an opened file for appending; it may truncate the file and append to it. Called after every opening, also
  /// after a failure that left a part of a line. False: another program wrote this file.
  using Prepare = std::function<bool(WritableFile& file, const RandomAccessFile& content)>;

  /// Opens `path` at once. If something else is there that cannot be continued (a directory, a link, a pipe, a file of
  /// another program), it is renamed to `path`.1, .2, ..., with a warning. `unit` is the plural noun of what is
  /// counted: "rows".
  ReportFile(FileSystem& fs, std::filesystem::path path, std::string unit, Prepare prepare);
  ~ReportFile();  ///< logs how many units are missing
  ReportFile(const ReportFile&) = delete;
  ReportFile& operator=(const ReportFile&) = delete;

  /// Calls `write` with the file; it writes `count` units, all or none. Returns whether they were written. A file that
  /// somebody has deleted or replaced counts as a failure, and the next write opens what is there then.
  bool write(std::int64_t count, const std::function<void(WritableFile& file)>& write);
  /// Opens the file that has replaced this one. Only inside of `write`. Throws: IoError.
  WritableFile& reopen();

 private:
  void open();
  void say_missing(std::string_view where);

  FileSystem& fs_;
  std::filesystem::path path_;
  std::string unit_;
  Prepare prepare_;
  std::unique_ptr<WritableFile> file_{};  // nullptr: not open
  bool failing_ = false;
  std::int64_t missing_ = 0;  // since the first failure
};

/// Renames `path` to `path`.1, .2, ..., with a warning that begins with `reason`. Throws: IoError.
void set_aside(FileSystem& fs, const std::filesystem::path& path, std::string_view reason);

/// The part of a text file up to the end of its last complete line. The rest was left by a crash or a full disk.
std::int64_t end_of_last_line(const RandomAccessFile& file);

}  // namespace lockstep
