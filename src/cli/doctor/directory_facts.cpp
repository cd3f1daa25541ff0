#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>

#include <fmt/format.h>
#include <sys/stat.h>

#include "base/duration.h"
#include "base/text.h"
#include "base/wall_clock.h"
#include "cli/doctor/facts.h"

namespace lockstep {
namespace {

using Path = std::filesystem::path;

Path nearest_existing(const Path& directory) {
  std::error_code error;
  Path path = std::filesystem::absolute(directory, error).lexically_normal();
  path = path.has_filename() ? path : path.parent_path();  // "a/." became "a/"
  while (!std::filesystem::exists(path, error) && path.has_relative_path()) {
    path = path.parent_path();
  }
  return path;
}

/// /proc/self/mountinfo writes blanks of paths as "\040".
std::string unescape(std::string_view text) {
  constexpr std::size_t kDigits = 3;
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    if (text[i] == '\\' && i + kDigits < text.size() &&
        std::from_chars(&text[i + 1], &text[i + 1] + kDigits, value, 8).ptr == &text[i + 1] + kDigits) {
      out += static_cast<char>(value);
      i += kDigits;
    } else {
      out += text[i];
    }
  }
  return out;
}

bool is_below(const Path& path, const Path& folder) {
  const auto [end, ignored] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end();
}

double modification_time(const Path& file) {
  struct stat status {};
  if (stat(file.c_str(), &status) != 0) {
    throw IoError(fmt::format("cannot inspect {}: {}", file.string(), std::strerror(errno)), {}, errno);
  }
  return static_cast<double>(status.st_mtim.tv_sec) + 1e-9 * static_cast<double>(status.st_mtim.tv_nsec);
}

/// 0 if the time of the file lies between the two times, up to the grain of a file system's clock.
double skew(double time, double before, double after) {
  constexpr double kGrain = 0.02;
  return time < before - kGrain ? time - before : time > after + kGrain ? time - after : 0;
}

void write_and_sync(FileSystem& fs, const Path& file, DirectoryFacts& facts) {
  const std::vector<std::byte> bytes(std::size_t{1} << 20);
  const double before = unix_time();
  const auto writer = fs.create(file);
  facts.failed = "write a file";
  writer->append(bytes);
  facts.failed = "make a file durable (fsync)";
  std::array<double, 3> times{};
  for (double& seconds : times) {
    const auto start = std::chrono::steady_clock::now();
    writer->append(std::span(bytes).first(1));
    writer->sync();
    seconds = seconds_since(start);
  }
  std::ranges::sort(times);
  facts.sync_s = times[1];
  writer->close();
  facts.clock_skew_s = skew(modification_time(file), before, unix_time());
}

std::string lock_problem(FileSystem& fs, const Path& file) {
  try {
    std::string owner;
    const auto first = fs.try_lock(file, "doctor", owner);
    if (!first) {
      return "a lock on a new file was refused";
    }
    return fs.try_lock(file, "doctor", owner) ? "two locks on one file were granted at once" : "";
  } catch (const IoError& error) {
    return error.what();
  }
}

}  // namespace

std::string file_system_of(std::string_view mountinfo, const Path& path) {
  constexpr std::size_t kMountPoint = 4;
  std::string kind;
  std::size_t longest = 0;
  for (const std::string& line : split(mountinfo, '\n')) {
    const std::vector<std::string> words = split(line, ' ');
    const auto dash = std::ranges::find(words, "-");  // ends the optional fields
    if (words.size() <= kMountPoint || words.end() - dash < 2) {
      continue;
    }
    const std::string mount = unescape(words[kMountPoint]);
    if (mount.size() >= longest &&
        is_below(path, mount == "/" ? "/" : Path(mount))) {  // a later mount hides earlier ones
      longest = mount.size();
      kind = *(dash + 1);
    }
  }
  return kind;
}

DirectoryFacts collect_directory_facts(FileSystem& fs, const Path& directory) {
  DirectoryFacts facts{.asked = directory, .checked = nearest_existing(directory)};
  std::error_code error;
  const Path real = std::filesystem::canonical(facts.checked, error);
  facts.file_system = file_system_of(read_text_file("/proc/self/mountinfo").value_or(""), error ? facts.checked : real);
  const Path probe = facts.checked / fmt::format(".lockstep-doctor.{}", random_id());
  try {
    facts.failed = "inspect its file system";
    facts.free_bytes = fs.free_bytes(facts.checked);
    facts.failed = "create a directory";
    fs.create_directories(probe);
    facts.failed = "create a file";
    write_and_sync(fs, probe / "file", facts);
    facts.failed = "rename a file and a directory";
    fs.rename(probe / "file", probe / "renamed");
    fs.create_directories(probe / "directory");
    fs.rename(probe / "directory", probe / "renamed_directory");
    facts.failed = "make a directory durable (fsync)";
    fs.sync_directory(probe);
    facts.lock_problem = lock_problem(fs, probe / "lock");
    facts.failed = "remove a directory";
    fs.remove_all(probe);
    facts.failed.clear();
  } catch (const IoError& failure) {
    facts.error = failure.what();
    try {
      fs.remove_all(probe);
    } catch (const IoError&) {  // the first failure is reported
    }
  }
  return facts;
}

}  // namespace lockstep
