#include "base/event_log.h"

#include <chrono>
#include <ctime>
#include <span>

#include <fmt/format.h>

#include <lockstep/base/file_system.h>

#include "base/json.h"

namespace lockstep {
namespace {

std::string utc_now() {
  using namespace std::chrono;
  const auto now = time_point_cast<milliseconds>(system_clock::now());
  const std::time_t seconds = system_clock::to_time_t(floor<std::chrono::seconds>(now));
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                     utc.tm_hour, utc.tm_min, utc.tm_sec, (now.time_since_epoch() % 1s).count());
}

/// A crash may have left half a line, which the next event must not continue. It stays: the supervisor and rank 0 both
/// append to this file.
bool begin_a_line(WritableFile& file, const RandomAccessFile& content) {
  if (end_of_last_line(content) != content.size()) {
    file.append(std::as_bytes(std::span("\n", 1)));
  }
  return true;
}

}  // namespace

EventLog::EventLog(FileSystem& fs, const std::filesystem::path& file) : file_(fs, file, "events", begin_a_line) {}

void EventLog::write(std::string_view event, const EventFields& fields) {
  Json line{{"v", 1}, {"time", utc_now()}, {"event", event}};
  for (const auto& [name, value] : fields) {
    std::visit([&line, &key = name](const auto& content) { line[key] = content; }, value);
  }
  const std::string text = dump_json(line) + "\n";
  file_.write(1, [&](WritableFile& file) { file.append(std::as_bytes(std::span(text))); });
}

}  // namespace lockstep
