// events.jsonl: one versioned JSON line per event of a run. Torch-free.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/report_file.h"

namespace lockstep {

using EventValue = std::variant<std::string, std::int64_t, double, bool>;
using EventFields = std::vector<std::pair<std::string, EventValue>>;

/// Appends {"v":1,"time":"2026-11-21T10:00:00.123Z","event":"save",...}. Each line is one write. A failed write is a
/// warning (ReportFile). Not thread-safe.
class EventLog {
 public:
  EventLog(FileSystem& fs, const std::filesystem::path& file);
  void write(std::string_view event, const EventFields& fields = {});

 private:
  ReportFile file_;
};

}  // namespace lockstep
