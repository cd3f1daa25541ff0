#include <array>
#include <cstdint>
#include <numeric>

#include <fmt/format.h>

#include "base/text.h"
#include "environment/launchers/hostlist.h"
#include "environment/launchers/launch_variables.h"

namespace lockstep {
namespace {

constexpr const char* kStepId = "SLURM_STEP_ID";
constexpr const char* kTasks = "SLURM_STEP_NUM_TASKS";
constexpr const char* kNodes = "SLURM_STEP_NUM_NODES";
constexpr const char* kTasksPerNode = "SLURM_STEP_TASKS_PER_NODE";
constexpr const char* kNodeList = "SLURM_STEP_NODELIST";

/// A shell that `srun --pty` opened. srun inside that shell inherits its SLURM_PTY_PORT; then there are several tasks.
bool is_interactive(const VariableReader& reader) {
  return reader.has("SLURM_PTY_PORT") && reader.peek(kTasks).value_or("1") == "1";
}

/// "3,1(x2)" -> 3, 1, 1; empty: malformed, or more than `nodes`.
std::vector<int> parse_tasks_per_node(std::string_view text, int nodes) {
  std::vector<int> tasks;
  for (const std::string& part : split(text, ',')) {
    const std::string_view entry = part;
    const std::size_t open = entry.find("(x");
    const bool repeated = open != std::string_view::npos && entry.ends_with(')');
    const std::int64_t count = parse_int(entry.substr(0, open)).value_or(0);
    const std::int64_t times = open == std::string_view::npos ? 1
                               : repeated ? parse_int(entry.substr(open + 2, entry.size() - open - 3)).value_or(0)
                                          : 0;
    const auto room = static_cast<std::int64_t>(nodes) - static_cast<std::int64_t>(tasks.size());
    if (count < 1 || count > VariableReader::kMaxInt || times < 1 || times > room) {
      return {};
    }
    tasks.insert(tasks.end(), static_cast<std::size_t>(times), static_cast<int>(count));
  }
  return tasks;
}

/// The number of tasks differs between nodes: `srun -N2 -n4` starts 3 + 1.
void read_local_size(VariableReader& reader, Identity& identity) {
  const std::string text = reader.required_text(kTasksPerNode, "the number of tasks on each node");
  if (text.empty()) {
    return;
  }
  const std::vector<int> tasks = parse_tasks_per_node(text, identity.nodes);
  if (static_cast<int>(tasks.size()) != identity.nodes) {
    reader.problem(fmt::format("{}=\"{}\" and {}={}: expected a number of tasks for each node, e.g. 2(x{})",
                               kTasksPerNode, printable(text), kNodes, identity.nodes, identity.nodes));
    return;
  }
  const auto sum = std::accumulate(tasks.begin(), tasks.end(), std::int64_t{0});
  if (sum != identity.world_size) {
    reader.problem(fmt::format("{}=\"{}\" and {}={}: found {} tasks, expected {}", kTasksPerNode, printable(text),
                               kTasks, identity.world_size, sum, identity.world_size));
    return;
  }
  identity.local_world_size = tasks[static_cast<std::size_t>(identity.node)];
  reader.check_below("SLURM_LOCALID", identity.local_rank, kTasksPerNode, identity.local_world_size);
}

/// The nodes of the step, not of the job: a step may use only some of them.
void read_first_node(VariableReader& reader, Identity& identity) {
  const std::string text = reader.required_text(kNodeList, "the nodes of the step", "or set MASTER_ADDR");
  if (text.empty()) {
    return;
  }
  const auto [hosts, problem] = parse_hostlist(text);
  if (!problem.empty()) {
    reader.problem(fmt::format("{}=\"{}\": {}", kNodeList, printable(text), problem));
  } else if (static_cast<int>(hosts.size()) != identity.nodes) {
    reader.problem(fmt::format("{}=\"{}\" and {}={}: found {} nodes, expected {}", kNodeList, printable(text), kNodes,
                               identity.nodes, hosts.size(), identity.nodes));
  } else {
    identity.master_addr = hosts.front();
    identity.master_source = kNodeList;
  }
}

/// The number of a job or step. A task of an array may be called 12_3; its number is then the sum.
std::optional<std::int64_t> parse_id(std::string_view text) {
  constexpr std::size_t kMostDigits = 15;
  const auto parts = split(text, '_');
  std::int64_t sum = 0;
  for (const std::string& part : parts) {
    const bool digits = part.size() <= kMostDigits && part.find_first_not_of("0123456789") == std::string::npos;
    const auto number = digits ? parse_int(part) : std::nullopt;
    if (!number || parts.size() > 2) {
      return std::nullopt;
    }
    sum += *number;
  }
  return sum;
}

std::optional<std::int64_t> read_id(VariableReader& reader, const char* name) {
  const std::string text = reader.required_text(name, "its number");
  const auto id = parse_id(text);
  if (!id && !text.empty()) {
    reader.problem(fmt::format("{}=\"{}\": expected a number", name, printable(text)));
  }
  return id;
}

/// Steps of one job may run in parallel, so the port depends on both numbers.
void read_run_and_port(VariableReader& reader, Identity& identity) {
  const auto job = read_id(reader, "SLURM_JOB_ID");
  const auto step = read_id(reader, kStepId);
  if (job && step) {
    identity.run_id = fmt::format("slurm-{}-{}", *reader.peek("SLURM_JOB_ID"), *step);
    identity.master_port = static_cast<int>(20000 + (*job * 7 + *step) % 10000);
  }
  identity.master_port = reader.number("MASTER_PORT", 1, 65535).value_or(identity.master_port);
  if (const auto address = reader.host("MASTER_ADDR")) {
    identity.master_addr = *address;
  } else if (!reader.has("MASTER_ADDR") && identity.nodes > 1) {
    read_first_node(reader, identity);
  }
}

}  // namespace

std::optional<Identity> read_slurm_step(VariableReader& reader) {
  if (!reader.has(kStepId) || is_interactive(reader)) {
    return std::nullopt;
  }
  Identity identity{.launcher = "Slurm", .ranks_flag = "srun --ntasks-per-node"};
  identity.rank = reader.required_number("SLURM_PROCID", 0, "this task's number in the step");
  identity.world_size = reader.required_number(kTasks, 1, "the number of tasks in the step");
  identity.local_rank = reader.required_number("SLURM_LOCALID", 0, "this task's number on its node");
  identity.node = reader.required_number("SLURM_NODEID", 0, "this node's number in the step");
  identity.nodes = reader.required_number(kNodes, 1, "the number of nodes in the step");
  if (!reader.problems().empty()) {
    return identity;
  }
  reader.check_below("SLURM_PROCID", identity.rank, kTasks, identity.world_size);
  reader.check_below("SLURM_NODEID", identity.node, kNodes, identity.nodes);
  if (identity.nodes > identity.world_size) {
    reader.problem(fmt::format("{}={} and {}={}: expected a task on every node", kNodes, identity.nodes, kTasks,
                               identity.world_size));
  }
  if (reader.problems().empty()) {
    read_local_size(reader, identity);
  }
  read_run_and_port(reader, identity);
  identity.restart = reader.number("SLURM_RESTART_COUNT", 0).value_or(0);
  identity.starts_ranks = identity.world_size == identity.nodes;  // one task per node
  return identity;
}

std::optional<Identity> read_slurm_allocation(VariableReader& reader) {
  const auto several = [&](const char* name) {
    return parse_int(reader.peek(name).value_or("")).value_or(1) > 1 ? fmt::format("{}={}", name, *reader.peek(name))
                                                                     : std::string();
  };
  const std::array<std::string, 2> found{several("SLURM_JOB_NUM_NODES"), several("SLURM_NTASKS")};
  const bool forgotten = reader.has("SLURM_JOB_ID") && !(found[0].empty() && found[1].empty());
  if (!forgotten) {
    return std::nullopt;
  }
  Identity identity{.starts_ranks = true};
  identity.hints.push_back(
      fmt::format("{}{}{}, but this process is not in a step of the job: it trains on this node alone; start it with: "
                  "srun <program>",
                  found[0], found[0].empty() || found[1].empty() ? "" : " and ", found[1]));
  return identity;
}

}  // namespace lockstep
