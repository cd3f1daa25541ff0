#include "supervise/process_state.h"

#include <fmt/format.h>

#include "base/text.h"
#include "environment/text_file.h"

namespace lockstep {

ProcessState parse_process_stat(std::string_view stat) {
  constexpr std::size_t kState = 0, kUserTicks = 11, kSystemTicks = 12;  // counted after the name
  const auto fields = stat_fields(stat);
  if (fields.size() <= kSystemTicks || fields[kState].size() != 1) {
    return {};
  }
  return {.state = fields[kState].front(),
          .cpu_ticks = parse_int(fields[kUserTicks]).value_or(0) + parse_int(fields[kSystemTicks]).value_or(0)};
}

pid_t parse_tracer(std::string_view status) { return static_cast<pid_t>(number_after(status, "TracerPid:")); }

std::string to_string(const ProcessState& process) {
  switch (process.state) {
    case 'T':
      return "stopped by a signal (state T)";
    case 't':
      return fmt::format("held by a debugger (pid {})", process.tracer);
    case 'D':
      return fmt::format("in the kernel (state D{}{})", process.waits_in.empty() ? "" : ", ", process.waits_in);
    default:
      return {};
  }
}

ProcessState read_process_state(pid_t pid) {
  const auto read = [&](const char* name) {
    return read_text_file(fmt::format("/proc/{}/{}", pid, name)).value_or("");
  };
  ProcessState process = parse_process_stat(read("stat"));
  if (process.state == 't') {
    process.tracer = parse_tracer(read("status"));
  } else if (process.state == 'D') {
    process.waits_in = printable(read("wchan"));
  }
  return process;
}

}  // namespace lockstep
