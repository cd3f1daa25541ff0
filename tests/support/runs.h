// Reads the results of finished runs for integration tests.
#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <netinet/in.h>
#include <nlohmann/json.hpp>
#include <sys/socket.h>

#include "support/process.h"
#include "support/temp_dir.h"

namespace lockstep {

/// The directory of the newest checkpoint of a run.
inline std::filesystem::path newest_checkpoint(const std::filesystem::path& run) {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(run / "checkpoints")) {
    const auto name = entry.path().filename().string();
    if (name.starts_with("step-") && name.find('.') == std::string::npos) {
      found.push_back(entry.path());
    }
  }
  return found.empty() ? std::filesystem::path() : *std::max_element(found.begin(), found.end());
}

/// Weights, optimizer and generators of a run's newest checkpoint, as bytes.
inline std::map<std::string, std::string> final_state(const std::filesystem::path& run) {
  const auto checkpoint = newest_checkpoint(run);
  std::map<std::string, std::string> state{{"name", checkpoint.filename().string()}};
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint)) {
    const auto name = entry.path().filename().string();
    if (name.ends_with(".safetensors") || name.ends_with(".bin")) {
      state[name] = read_text(entry.path());
    }
  }
  return state;
}

/// step -> value of one metric, from metrics.jsonl.
inline std::map<std::int64_t, double> metric(const std::filesystem::path& run, const std::string& name) {
  std::map<std::int64_t, double> values;
  for (const std::string& line : read_lines(run / "metrics.jsonl")) {
    const auto row = nlohmann::json::parse(line);
    if (row.contains(name)) {
      values[row["step"].get<std::int64_t>()] = row[name].get<double>();
    }
  }
  return values;
}

/// A port that was free just now.
inline std::string free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  bind(fd, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(fd);
  return std::to_string(ntohs(address.sin_port));
}

inline std::vector<std::string> with(std::vector<std::string> all, const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// All programs under test on one machine share its cores.
inline std::vector<std::string> command(const std::string& program, const std::filesystem::path& run,
                                        const std::vector<std::string>& more) {
  return with({program, "--run_dir", run.string(), "--compute_setup", "cpu"}, more);
}

}  // namespace lockstep
