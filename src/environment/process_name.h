// A process as other processes know it. Torch-free.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

namespace lockstep {

struct ProcessName {
  pid_t pid = 0;
  std::string machine{};  ///< boot and process-number space: processes of the same one can find each other by number
  std::string host{};
  bool operator==(const ProcessName&) const = default;
};

ProcessName this_process();
std::string to_string(const ProcessName& process);  ///< "pid 71@gpu-1"

/// One line for a store, and back; nullopt: that is none.
std::string encode(const ProcessName& process);
std::optional<ProcessName> parse_process_name(std::string_view line);

}  // namespace lockstep
