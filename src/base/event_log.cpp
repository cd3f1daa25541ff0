#include "base/event_log.h"

#include <span>

#include <lockstep/base/file_system.h>

#include "base/json.h"
#include "base/text.h"

namespace lockstep {
namespace {

/// A crash may have left half a line; the next event must start a new one. The half line stays, because the supervisor
/// and rank 0 both append to this file.
bool begin_a_line(WritableFile& file, const RandomAccessFile& content) {
  if (end_of_last_line(content) != content.size()) {
    file.append(std::as_bytes(std::span("\n", 1)));
  }
  return true;
}

}  // namespace

EventLog::EventLog(FileSystem& fs, const std::filesystem::path& file) : file_(fs, file, "events", begin_a_line) {}

void EventLog::write(std::string_view event, const EventFields& fields) {
  Json line{{"v", 1}, {"time", utc_time()}, {"event", event}};
  for (const auto& [name, value] : fields) {
    std::visit([&line, &key = name](const auto& content) { line[key] = content; }, value);
  }
  const std::string text = dump_json(line) + "\n";
  file_.write(1, [&](WritableFile& file) { file.append(std::as_bytes(std::span(text))); });
}

}  // namespace lockstep
