#include "environment/process_name.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <limits>

#include <fmt/format.h>
#include <unistd.h>

#include "base/text.h"

namespace lockstep {

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0' ? printable(name.data()) : "localhost";
}

std::string pid_on_host() { return fmt::format("pid {} on {}", getpid(), host_name()); }

ProcessName this_process() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code unreadable;
  const auto numbers = std::filesystem::read_symlink("/proc/self/ns/pid", unreadable).string();
  return {.pid = getpid(), .machine = fmt::format("{}/{}", boot, numbers), .host = host_name()};
}

std::string to_string(const ProcessName& process) { return fmt::format("pid {}@{}", process.pid, process.host); }

std::string encode(const ProcessName& process) {
  return fmt::format("{} {} {}", process.pid, process.machine, process.host);
}

std::optional<ProcessName> parse_process_name(std::string_view line) {
  const auto words = split(line, ' ');
  const auto pid = parse_int(words.front());
  if (words.size() != 3 || !pid || *pid < 1 || *pid > std::numeric_limits<pid_t>::max()) {
    return std::nullopt;
  }
  return ProcessName{.pid = static_cast<pid_t>(*pid), .machine = printable(words[1]), .host = printable(words[2])};
}

}  // namespace lockstep
