#include "supervise/process_state.h"

#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "base/text.h"

namespace lockstep {
namespace {

std::string read_proc(pid_t pid, std::string_view name) {
  std::ostringstream text;
  text << std::ifstream(fmt::format("/proc/{}/{}", pid, name)).rdbuf();
  return std::move(text).str();
}

}  // namespace

ProcessState parse_process_stat(std::string_view stat) {
  constexpr std::size_t kState = 0, kUserTicks = 11, kSystemTicks = 12;  // counted after the name
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string_view::npos) {
    return {};
  }
  const auto fields = split(trim(stat.substr(name_end + 1)), ' ');
  if (fields.size() <= kSystemTicks || fields[kState].size() != 1) {
    return {};
  }
  return {.state = fields[kState].front(),
          .cpu_ticks = parse_int(fields[kUserTicks]).value_or(0) + parse_int(fields[kSystemTicks]).value_or(0)};
}

pid_t parse_tracer(std::string_view status) {
  constexpr std::string_view kLabel = "TracerPid:";
  for (const std::string& line : split(status, '\n')) {
    if (line.starts_with(kLabel)) {
      return static_cast<pid_t>(parse_int(trim(std::string_view(line).substr(kLabel.size()))).value_or(0));
    }
  }
  return 0;
}

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
  ProcessState process = parse_process_stat(read_proc(pid, "stat"));
  if (process.state == 't') {
    process.tracer = parse_tracer(read_proc(pid, "status"));
  } else if (process.state == 'D') {
    process.waits_in = printable(read_proc(pid, "wchan"));
  }
  return process;
}

}  // namespace lockstep
