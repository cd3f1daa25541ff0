// Names of this machine and of processes. Torch-free.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

namespace lockstep {

/// The name of this machine. Printable; "localhost" if it has none.
std::string host_name();
std::string pid_on_host();  ///< this process in words: "pid 71 on gpu-1"

/// Identifies a process to other processes.
struct ProcessName {
  pid_t pid = 0;
  std::string machine{};  ///< boot id and PID namespace: processes with the same value can find each other by pid
  std::string host{};
  bool operator==(const ProcessName&) const = default;
};

ProcessName this_process();
std::string to_string(const ProcessName& process);  ///< "pid 71@gpu-1"

/// One line for a store; nullopt when parsing: not such a line.
std::string encode(const ProcessName& process);
std::optional<ProcessName> parse_process_name(std::string_view line);

}  // namespace lockstep
