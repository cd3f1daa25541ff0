#include "cli/launch/run_flags.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/problems.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/launch/run_command.h"
#include "config/command_tokens.h"

namespace lockstep {
namespace {

constexpr int kDefaultPort = 29500;  // torchrun's
constexpr int kMaxRanks = 1 << 16;

constexpr FlagRow kFlags[] = {
    {"nproc-per-node", "N|N,N,...|auto|gpu|cpu",
     "ranks on each machine, or a number for every machine; auto: one per GPU, without GPUs one per core (default: 1)"},
    {"nnodes", "N", "machines (default: 1)"},
    {"node-rank", "N", "number of this machine, from 0 (default: 0)"},
    {"master-addr", "HOST", "machine 0, which serves the rendezvous (default: 127.0.0.1)"},
    {"master-port", "PORT", "port of the rendezvous (default: any free port; with several machines 29500)"},
    {"rdzv-endpoint", "HOST[:PORT]", "same as --master-addr and --master-port"},
    {"rdzv-backend", "static|c10d", "c10d works on one machine only (default: static)"},
    {"rdzv-id", "ID", "name of the launch, the same on all machines (default: random)"},
    {"standalone", "", "one machine, any free port: this is the default"},
    {"max-restarts", "N",
     "restart all ranks after a failure, at most N times without progress; one machine only (default: 0)"},
    {"grace", "SECONDS", "time for the other ranks to end after a failure before they are killed (default: 5)"},
    {"log-dir", "DIR", "keep every rank's output in DIR/<id>/attempt_<n>/rank_<r>.log"},
    {"redirects", "STREAMS",
     "write to the file instead of the terminal: 0 none, 1 output, 2 errors, 3 both, or by local rank: 0:1,1:3", "-r"},
    {"tee", "STREAMS", "also write to the file (default with --log-dir: 3)", "-t"},
    {"local-ranks-filter", "N,N,...", "show only these local ranks on the terminal"},
    {"numa-binding", "none|node",
     "node: each rank runs on the cores near its GPU; CPU ranks divide the cores (default: none)"},
    {"no-python", "", "this is the default: the program is started directly"},
    {"monitor-interval", "SECONDS", "no effect: a failure is detected immediately"},
    {"start-method", "METHOD", "no effect"},
};

/// Flags of torchrun that are impossible here.
constexpr FlagRow kRefused[] = {
    {"module", "", "use: lockstep run -- python3 -m MODULE", "-m"},
    {"run-path", "", "use: lockstep run -- python3 PROGRAM"},
    {"role", "NAME", "lockstep run has no roles; use torchrun"},
    {"rdzv-conf", "K=V", "the rendezvous has no options; the program sets its own timeout"},
    {"local-addr", "HOST", "only machine 0 needs an address, --master-addr"},
    {"virtual-local-rank", "", "every rank sees all GPUs and selects its own; use torchrun"},
};

std::optional<Streams> parse_streams(std::string_view text) {
  const auto number = parse_int(text);
  return number && *number >= 0 && *number <= 3 ? std::optional(static_cast<Streams>(*number)) : std::nullopt;
}

class Parser {
 public:
  Parser(const CommandLine& line, const Variables& variables) : line_(line), problems_(line.problems) {
    read_environment(variables);
  }

  RunFlags run() {
    read_machines();
    read_rendezvous();
    read_ranks();
    read_restarts();
    read_output();
    throw_if_any(std::move(problems_));
    result_.command = line_.arguments;
    return result_;
  }

 private:
  void refuse(std::string what, std::string hint) { problems_.push_back({std::move(what), std::move(hint)}); }

  /// A flag that is not given takes its PET_ variable.
  void read_environment(const Variables& variables) {
    for (const FlagRow& flag : kFlags) {
      const std::string name = variable_name(kFlagVariables, flag.name);
      const auto value = variables.get(name);
      const bool off = flag.value.empty() && value == "0";
      if (value && !off && !line_.has(flag.name)) {
        line_.flags[flag.name] = {&flag, *value, FlagToken{.written = name, .attached = value}.with(*value)};
      }
    }
    for (const FlagRow& flag : kRefused) {
      const std::string name = variable_name(kFlagVariables, flag.name);
      if (const auto value = variables.get(name).value_or("0"); value != "0") {
        refuse(FlagToken{.written = name, .attached = value}.with(value) + ": not possible with lockstep run",
               std::string(flag.help));
      }
    }
  }

  const GivenFlag* given(std::string_view name) const { return line_.find(name); }

  void read_number(std::string_view name, int min, int max, int& out) {
    note_problems(problems_, [&] { out = line_.number(name, min, max, out); });
  }

  void read_machines() {
    if (const GivenFlag* value = given("nnodes"); value != nullptr && value->text.find(':') != std::string::npos) {
      const std::vector<std::string> ends = split(value->text, ':');
      if (ends.size() != 2 || ends[0] != ends[1]) {
        refuse(fmt::format("{}: expected one number", value->label),
               "only torchrun can change the number of machines during a run: torchrun --nnodes MIN:MAX");
        return;
      }
      line_.flags["nnodes"].text = ends[0];
    }
    read_number("nnodes", 1, kMaxRanks, result_.nodes);
    read_number("node-rank", 0, std::numeric_limits<int>::max(), result_.node_rank);
    if (result_.node_rank >= result_.nodes) {
      refuse(fmt::format("--node-rank {} of {}", result_.node_rank, counted(result_.nodes, "machine")),
             fmt::format("use --node-rank 0 to {}", result_.nodes - 1));
    }
    if (const GivenFlag* value = given("standalone"); value != nullptr && result_.nodes > 1) {
      refuse(fmt::format("{}: allows one machine, but --nnodes is {}", value->label, result_.nodes),
             "remove one of the two flags");
    }
  }

  void read_rendezvous() {
    const bool many = result_.nodes > 1;
    if (const GivenFlag* value = given("rdzv-backend"); value != nullptr && value->text != "static") {
      if (value->text != "c10d") {
        refuse(fmt::format("{}: expected static or c10d", value->label), "for other backends use torchrun");
      } else if (many && given("node-rank") == nullptr) {
        refuse(fmt::format("{}: numbers the machines in the order in which they connect", value->label),
               "set --node-rank on each machine, or use torchrun");
      }
    }
    result_.master_port = many ? kDefaultPort : 0;
    if (given("standalone") == nullptr) {
      read_endpoint();
      if (const GivenFlag* value = given("master-addr")) {
        result_.master_addr = value->text;
      }
      read_number("master-port", many ? 1 : 0, 65535, result_.master_port);
    }
    if (many && given("master-addr") == nullptr && given("rdzv-endpoint") == nullptr) {
      refuse(fmt::format("--nnodes {}: the machines need a common address", result_.nodes),
             "add --master-addr with the name or address of machine 0 on every machine");
    }
    if (const GivenFlag* value = given("rdzv-id")) {
      read_run_id(*value);
    } else if (many) {
      result_.run_id = "none";  // torchrun's default, the same on all machines
    }
  }

  /// "host", "host:29400", "[::1]:29400".
  void read_endpoint() {
    const GivenFlag* value = given("rdzv-endpoint");
    if (value == nullptr || value->text.empty()) {
      return;
    }
    const std::string& text = value->text;
    const std::size_t bracket = text.front() == '[' ? text.find(']') : std::string::npos;
    const std::size_t colon = text.rfind(':');
    const bool has_port = colon != std::string::npos && (bracket == std::string::npos || colon > bracket);
    result_.master_addr =
        bracket == std::string::npos ? text.substr(0, has_port ? colon : text.size()) : text.substr(1, bracket - 1);
    const auto port = has_port ? parse_int(std::string_view(text).substr(colon + 1))
                               : std::optional<std::int64_t>(result_.master_port);
    if (result_.master_addr.empty() || !port || *port < 0 || *port > 65535) {
      refuse(fmt::format("{}: expected HOST or HOST:PORT", value->label), value->hint());
      return;
    }
    result_.master_port = static_cast<int>(*port);
  }

  /// The id is used as a directory name and in an environment variable.
  void read_run_id(const GivenFlag& value) {
    constexpr std::string_view kSafe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    constexpr std::size_t kLongest = 100;
    if (value.text.empty() || value.text.size() > kLongest || value.text.front() == '.' ||
        value.text.find_first_not_of(kSafe) != std::string::npos) {
      refuse(fmt::format("{}: expected up to {} letters, digits, '-', '_' and '.'", value.label, kLongest),
             value.hint());
      return;
    }
    result_.run_id = value.text;
  }

  void read_ranks() {
    const GivenFlag* value = given("nproc-per-node");
    if (value == nullptr) {
      result_.ranks_per_node.assign(static_cast<std::size_t>(result_.nodes), 1);
      return;
    }
    const std::map<std::string, RankCount, std::less<>> words = {
        {"auto", RankCount::automatic}, {"gpu", RankCount::gpu}, {"cpu", RankCount::cpu}};
    if (const auto word = words.find(to_lower(value->text)); word != words.end()) {
      result_.rank_count = word->second;
      if (result_.nodes > 1) {
        refuse(fmt::format("{}: the number of the other machines is not known here", value->label),
               "give the number, or one per machine: --nproc-per-node 2,1");
      }
      return;
    }
    std::vector<int> numbers;
    for (const std::string& part : split(value->text, ',')) {
      const auto number = parse_int(part);
      if (!number || *number < 1 || *number > kMaxRanks) {
        refuse(fmt::format("{}: expected a number from 1, one per machine, auto, gpu or cpu", value->label),
               value->hint());
        return;
      }
      numbers.push_back(static_cast<int>(*number));
    }
    if (numbers.size() == 1) {
      numbers.assign(static_cast<std::size_t>(result_.nodes), numbers.front());
    }
    if (numbers.size() != static_cast<std::size_t>(result_.nodes)) {
      refuse(
          fmt::format("{}: found {} numbers for {}", value->label, numbers.size(), counted(result_.nodes, "machine")),
          "give one number, or one for each machine of --nnodes");
      return;
    }
    if (const auto all = std::reduce(numbers.begin(), numbers.end(), std::int64_t{0}); all > kMaxRanks) {
      refuse(fmt::format("{}: found {} ranks, expected {} at most", value->label, all, kMaxRanks), value->hint());
      return;
    }
    result_.ranks_per_node = std::move(numbers);
  }

  void read_restarts() {
    read_number("max-restarts", 0, std::numeric_limits<int>::max(), result_.max_restarts);
    if (result_.max_restarts > 0 && result_.nodes > 1) {
      refuse(fmt::format("--max-restarts {}: not possible with several machines", result_.max_restarts),
             "use torchrun, or let the scheduler restart the job: the run resumes automatically");
    }
    if (const GivenFlag* value = given("grace")) {
      const auto seconds = parse_seconds(value->text);
      if (!seconds || *seconds < 0 || *seconds > 1e7) {
        refuse(fmt::format("{}: expected seconds from 0 to 1e7, or a time such as 2min", value->label), value->hint());
      } else {
        result_.grace_s = *seconds;
      }
    }
    if (const GivenFlag* value = given("numa-binding")) {
      result_.bind_numa = value->text == "node";
      if (value->text != "node" && value->text != "none") {
        refuse(fmt::format("{}: expected none or node", value->label), value->hint());
      }
    }
  }

  void read_output() {
    if (const GivenFlag* value = given("log-dir"); value != nullptr && !value->text.empty()) {
      result_.log_dir = value->text;
      result_.tee.all = Streams::both;
    }
    read_streams("redirects", result_.redirects);
    read_streams("tee", result_.tee);
    if (const GivenFlag* value = given("local-ranks-filter"); value != nullptr && !value->text.empty()) {
      std::set<int> ranks;
      for (const std::string& part : split(value->text, ',')) {
        const auto rank = parse_int(part);
        if (!rank || *rank < 0 || *rank >= kMaxRanks) {
          refuse(fmt::format("{}: expected local ranks", value->label), value->hint());
          return;
        }
        ranks.insert(static_cast<int>(*rank));
      }
      result_.shown_local_ranks = std::move(ranks);
    }
  }

  /// "3", or "0:1,1:3".
  void read_streams(std::string_view name, StreamsPerRank& out) {
    const GivenFlag* value = given(name);
    if (value == nullptr) {
      return;
    }
    StreamsPerRank read;
    bool right = true;
    if (const auto all = parse_streams(value->text)) {
      read.all = *all;
    } else {
      for (const std::string& part : split(value->text, ',')) {
        const auto colon = part.find(':');
        const auto rank = parse_int(std::string_view(part).substr(0, colon));
        const auto streams =
            colon == std::string::npos ? std::nullopt : parse_streams(std::string_view(part).substr(colon + 1));
        right = right && rank && *rank >= 0 && *rank < kMaxRanks && streams;
        if (right) {
          read.by_local_rank[static_cast<int>(*rank)] = *streams;
        }
      }
    }
    if (!right) {
      refuse(fmt::format("{}: expected 0 to 3, or LOCAL_RANK:STREAMS,...", value->label), value->hint());
      return;
    }
    const bool any = read.all != Streams::none || !read.by_local_rank.empty();
    if (any && result_.log_dir.empty()) {
      refuse(fmt::format("{}: there is no directory for the files", value->label), "add --log-dir DIR");
    }
    out = std::move(read);
  }

  CommandLine line_;  // with the values of the environment
  std::vector<Problem> problems_;
  RunFlags result_{};
};

}  // namespace

Streams StreamsPerRank::of(int local_rank) const {
  const auto found = by_local_rank.find(local_rank);
  return found == by_local_rank.end() ? all : found->second;
}

RunFlags parse_run_flags(const CommandLine& line, const Variables& variables) { return Parser(line, variables).run(); }

const Command kRunCommand{
    .name = "run",
    .arguments = "PROGRAM [ARGUMENT...]",
    .summary = "start and watch one process per rank",
    .description =
        "Starts the program once per rank, watches the ranks, and ends all of them when one fails. The flags are "
        "torchrun's; each takes the variable PET_<FLAG> as its default.",
    .exit_codes = "that of the ranks: 0, or that of the rank that failed; 2 usage",
    .flags = kFlags,
    .refused = kRefused,
    .form = WordForm::program,
    .run = run_command};

}  // namespace lockstep
