#include "cli/launch/run_command.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>

#include "base/duration.h"
#include "base/terminal.h"
#include "base/text.h"
#include "environment/cpu_topology.h"
#include "launch/core_binding.h"

namespace lockstep {
namespace {

bool has(Streams streams, Streams one) { return (static_cast<int>(streams) & static_cast<int>(one)) != 0; }

std::vector<int> ranks_per_node(const RunFlags& flags, const Hardware& hardware) {
  const auto gpus = static_cast<int>(hardware.gpus.size());
  switch (flags.rank_count) {
    case RankCount::numbers:
      return flags.ranks_per_node;
    case RankCount::cpu:
      return {hardware.cores};
    case RankCount::automatic:
      return {gpus > 0 ? gpus : hardware.cores};
    case RankCount::gpu:
      if (gpus == 0) {
        throw ConfigError(fmt::format("--nproc-per-node gpu: no GPU is visible ({})", hardware.gpu_note),
                          "use --nproc-per-node cpu, or a number");
      }
      return {gpus};
  }
  return {};
}

std::vector<OutputRoute> routes(const RunFlags& flags, int ranks) {
  std::vector<OutputRoute> all;
  for (int rank = 0; rank < ranks; ++rank) {
    const bool shown = !flags.shown_local_ranks || flags.shown_local_ranks->contains(rank);
    const Streams redirected = flags.redirects.of(rank);
    const Streams copied = flags.tee.of(rank);
    const auto in_file = [&](Streams stream) { return has(redirected, stream) || has(copied, stream); };
    all.push_back({.out_on_terminal = shown && !has(redirected, Streams::out),
                   .err_on_terminal = shown && !has(redirected, Streams::err),
                   .out_in_file = in_file(Streams::out),
                   .err_in_file = in_file(Streams::err)});
  }
  return all;
}

/// Machines may have different numbers of ranks, and get the same flags.
void check_shown_ranks(const RunFlags& flags, const std::vector<int>& ranks_per_node) {
  const int most = *std::ranges::max_element(ranks_per_node);
  if (flags.shown_local_ranks && *flags.shown_local_ranks->rbegin() >= most) {
    throw ConfigError(fmt::format("--local-ranks-filter: found local rank {} of {}", *flags.shown_local_ranks->rbegin(),
                                  counted(most, "rank")),
                      fmt::format("the local ranks are {}", most == 1 ? "0" : fmt::format("0 to {}", most - 1)));
  }
}

bool is_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

}  // namespace

std::string find_program(const std::string& program, const Variables& variables) {
  std::vector<std::filesystem::path> candidates{program};
  if (program.find('/') == std::string::npos) {
    candidates.clear();
    for (const std::string& folder : split(variables.get("PATH").value_or("/usr/local/bin:/usr/bin:/bin"), ':')) {
      candidates.push_back(std::filesystem::path(folder.empty() ? "." : folder) / program);
    }
  }
  std::string found;
  for (const std::filesystem::path& path : candidates) {
    if (is_file(path)) {
      if (access(path.c_str(), X_OK) == 0) {
        return path.string();
      }
      found = path.string();
    }
  }
  if (!found.empty()) {
    throw LaunchError(fmt::format("cannot run {}: it is not executable", found),
                      program.ends_with(".py") ? fmt::format("use: lockstep run -- python3 {}", program)
                                               : fmt::format("chmod +x {}", found));
  }
  std::error_code ignored;
  if (program.find('/') != std::string::npos && std::filesystem::exists(program, ignored)) {
    throw LaunchError(fmt::format("cannot run {}: it is {}", program,
                                  std::filesystem::is_directory(program, ignored) ? "a directory" : "no regular file"),
                      "give the path of a program");
  }
  throw LaunchError(fmt::format("cannot find {}", program),
                    is_file(program) ? fmt::format("it is in this directory: use ./{}", program)
                                     : "check the path; a name without a slash is searched in PATH",
                    ExitCode::not_found);
}

LaunchRequest make_launch_request(const RunFlags& flags, const Hardware& hardware, const Variables& variables) {
  LaunchRequest request;
  request.argv = flags.command;
  request.any_program = true;
  request.ranks_per_node = ranks_per_node(flags, hardware);
  check_shown_ranks(flags, request.ranks_per_node);
  request.node = flags.node_rank;
  request.master_addr = flags.master_addr;
  request.master_port = flags.master_port;
  request.run_id = flags.run_id;
  const int ranks = request.ranks_per_node[static_cast<std::size_t>(flags.node_rank)];
  request.threads_per_rank = std::max(1, hardware.cores / ranks);
  request.max_restarts = flags.max_restarts;
  request.grace = to_milliseconds(flags.grace_s);
  request.environment = variables;
  request.log_dir = flags.log_dir;
  request.routes = routes(flags, ranks);
  if (!flags.log_dir.empty()) {
    request.event_directory = [directory = flags.log_dir](const std::string&) { return directory; };
  }
  if (flags.bind_numa) {
    request.cores = cores_of_ranks(ranks, hardware);
  }
  return request;
}

int run_command(const CommandLine& line, const Variables& variables) {
  const RunFlags flags = parse_run_flags(line, variables);
  // The driver answers slowly: query the GPUs only if needed.
  const bool wants_gpus =
      flags.bind_numa || flags.rank_count == RankCount::automatic || flags.rank_count == RankCount::gpu;
  const Hardware hardware = wants_gpus ? probe_hardware(variables) : Hardware{.cores = probe_cpu_topology().cores};
  LaunchRequest request = make_launch_request(flags, hardware, variables);
  request.program = find_program(flags.command.front(), variables);
  request.terminal_status = probe_terminal(STDERR_FILENO, variables).interactive;
  if (!flags.log_dir.empty()) {
    real_file_system().create_directories(flags.log_dir);
  }
  return launch_workers(request).exit_code;
}

}  // namespace lockstep
