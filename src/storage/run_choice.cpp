#include "storage/run_choice.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <system_error>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/storage/checkpoint_dir.h>

#include "base/paths.h"
#include "base/run_files.h"
#include "base/text.h"
#include "storage/run_record.h"

namespace lockstep {
namespace {

/// Ascending.
std::vector<std::string> values(FileSystem& fs, const RunPattern& pattern) {
  std::vector<std::string> found;
  for (const std::string& name : fs.list(pattern.parent.empty() ? "." : pattern.parent)) {
    if (auto value = pattern.value_in(name)) {
      found.push_back(std::move(*value));
    }
  }
  std::ranges::sort(found, [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  });
  return found;
}

/// A directory without a run, or with a damaged run.json, is nobody's.
bool is_of(FileSystem& fs, const std::filesystem::path& directory, const std::function<bool(const LaunchName&)>& mine) {
  try {
    const auto file = directory / kRunRecordName;
    return fs.exists(file) && mine(parse_run_record(read_file(fs, file), file.string()).launch);
  } catch (const Error&) {
    return false;
  }
}

/// The oldest one: a batch job that starts several runs one after the other continues them in this order.
std::optional<std::string> find(FileSystem& fs, const RunPattern& pattern,
                                const std::function<bool(const LaunchName&)>& mine) {
  const auto all = values(fs, pattern);
  const auto found = std::ranges::find_if(all, [&](const auto& value) { return is_of(fs, pattern.path(value), mine); });
  return found == all.end() ? std::nullopt : std::optional(pattern.path(*found));
}

std::string newest(FileSystem& fs, const RunPattern& pattern) {
  const auto all = values(fs, pattern);
  const auto found = std::find_if(all.rbegin(), all.rend(), [&](const auto& value) {
    return !CheckpointDir(fs, std::filesystem::path(pattern.path(value)) / kCheckpointsName).steps().empty();
  });
  if (found == all.rend()) {
    throw CheckpointError(fmt::format("found no run {} with a checkpoint, expected one to continue", pattern.path("*")),
                          "check --run_dir and --run_name, or leave out --resume to begin one");
  }
  return pattern.path(*found);
}

/// "20261121-100000", UTC.
std::string time_now() {
  std::string text = utc_time().substr(0, std::string_view("2026-11-21T10:00:00").size());
  std::erase_if(text, [](char c) { return c == '-' || c == ':'; });
  std::ranges::replace(text, 'T', '-');
  return text;
}

std::string next_value(const RunPattern& pattern, const std::vector<std::string>& known) {
  if (pattern.kind == RunPattern::Kind::time) {
    return time_now();
  }
  return std::to_string(known.empty() ? 1 : parse_int(known.back()).value_or(0) + 1);
}

bool create(const std::filesystem::path& directory) {
  std::error_code error;
  const bool created = std::filesystem::create_directory(directory, error);
  if (error && error != std::errc::file_exists) {
    throw IoError(fmt::format("cannot create {}: {}", directory.string(), error.message()), {}, error.value());
  }
  return created;
}

}  // namespace

std::string choose_run(FileSystem& fs, const RunPattern& pattern, const RunChoice& choice) {
  const auto is_mine = [&](const LaunchName& launch) { return same_launch(launch, choice.launch); };
  if (const auto earlier = find(fs, pattern, is_mine)) {
    return *earlier;
  }
  if (choice.newest) {
    return newest(fs, pattern);
  }
  if (choice.creates && !pattern.parent.empty()) {
    fs.create_directories(pattern.parent);
  }
  while (true) {
    const std::string directory = pattern.path(next_value(pattern, values(fs, pattern)));
    if (!choice.creates) {
      return directory;
    }
    if (create(directory)) {
      fs.sync_directory(directory_of(directory));
      return directory;
    }
    if (pattern.kind == RunPattern::Kind::time) {  // another start took this second
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
}

std::string find_run_of(FileSystem& fs, const RunPattern& pattern, const std::string& launch) noexcept {
  try {
    return find(fs, pattern, [&](const LaunchName& name) { return name.id == launch; }).value_or("");
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace lockstep
