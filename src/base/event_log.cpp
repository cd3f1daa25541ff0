#include "base/event_log.h"

#include <array>
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

/// A crash may have left half a line, which the next event must not continue.
bool ends_inside_a_line(FileSystem& fs, const std::filesystem::path& file) {
  const auto existing = fs.open(file);
  std::array<std::byte, 1> last{};
  if (existing->size() == 0) {
    return false;
  }
  existing->read(existing->size() - 1, last);
  return last[0] != std::byte{'\n'};
}

}  // namespace

EventLog::EventLog(FileSystem& fs, const std::filesystem::path& file) : file_(fs.open_append(file)) {
  if (ends_inside_a_line(fs, file)) {
    file_->append(std::as_bytes(std::span("\n", 1)));
  }
}

EventLog::~EventLog() = default;

void EventLog::write(std::string_view event, const EventFields& fields) {
  Json line{{"v", 1}, {"time", utc_now()}, {"event", event}};
  for (const auto& [name, value] : fields) {
    std::visit([&line, &key = name](const auto& content) { line[key] = content; }, value);
  }
  const std::string text = dump_json(line) + "\n";
  file_->append(std::as_bytes(std::span(text)));
}

}  // namespace lockstep
