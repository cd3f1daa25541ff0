#include "base/report_file.h"

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

namespace lockstep {
namespace {

/// The path exists and is not a regular file.
bool is_no_file(const IoError& error) {
  return error.number() == EISDIR || error.number() == ELOOP || error.number() == ENXIO;
}

}  // namespace

ReportFile::ReportFile(FileSystem& fs, std::filesystem::path path, std::string unit, Prepare prepare)
    : fs_(fs), path_(std::move(path)), unit_(std::move(unit)), prepare_(std::move(prepare)) {
  write(0, [](WritableFile&) {});
}

ReportFile::~ReportFile() { say_missing("ends early"); }

bool ReportFile::write(std::int64_t count, const std::function<void(WritableFile& file)>& write) {
  try {
    if (file_ == nullptr) {
      open();
    } else if (!file_->is_in_place()) {  // what is appended to such a file is lost
      throw IoError(fmt::format("{} was deleted or replaced", path_.string()));
    }
    write(*file_);
  } catch (const IoError& error) {
    file_.reset();
    if (!std::exchange(failing_, true)) {
      log_warning(fmt::format("{}; the run goes on without these {}", error.what(), unit_));
    }
    missing_ += count;
    return false;
  }
  if (count > 0 && std::exchange(failing_, false)) {
    say_missing("is written again");
  }
  return true;
}

WritableFile& ReportFile::reopen() {
  file_ = fs_.open_append(path_);
  return *file_;
}

void ReportFile::open() {
  try {
    file_ = fs_.open_append(path_);
  } catch (const IoError& error) {
    if (!is_no_file(error)) {
      throw;
    }
    set_aside(fs_, path_, error.what());
    file_ = fs_.open_append(path_);
  }
  if (!prepare_(*file_, *fs_.open(path_))) {
    set_aside(fs_, path_, fmt::format("{} was written by another program", path_.string()));
    file_ = fs_.open_append(path_);
    prepare_(*file_, *fs_.open(path_));
  }
}

void ReportFile::say_missing(std::string_view where) {
  if (const auto missing = std::exchange(missing_, 0); missing > 0) {
    log_warning(fmt::format("{} {}; missing {}: {}", path_.string(), where, unit_, missing));
  }
}

void set_aside(FileSystem& fs, const std::filesystem::path& path, std::string_view reason) {
  for (int number = 1;; ++number) {
    const std::filesystem::path aside = fmt::format("{}.{}", path.string(), number);
    if (!fs.exists(aside)) {
      fs.rename(path, aside);
      log_warning(fmt::format("{}: moved it to {}", reason, aside.filename().string()));
      return;
    }
  }
}

std::int64_t end_of_last_line(const RandomAccessFile& file) {
  constexpr std::int64_t kBlock = 4096;
  std::vector<std::byte> block;
  for (std::int64_t end = file.size(); end > 0; end -= static_cast<std::int64_t>(block.size())) {
    block.resize(static_cast<std::size_t>(std::min(end, kBlock)));
    const std::int64_t begin = end - static_cast<std::int64_t>(block.size());
    file.read(begin, block);
    const auto found = std::find(block.rbegin(), block.rend(), std::byte{'\n'});
    if (found != block.rend()) {
      return begin + (block.rend() - found);
    }
  }
  return 0;
}

}  // namespace lockstep
