#include "cli/run_flags.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/text.h"
#include "config/command_tokens.h"

namespace lockstep {
namespace {

constexpr int kDefaultPort = 29500;  // torchrun's
constexpr int kMaxRanks = 1 << 16;

enum class Kind {
  value,    ///< --name VALUE
  toggle,   ///< --name
  ignored,  ///< --name VALUE of torchrun that has no effect here
  no_op,    ///< --name of torchrun that has no effect here
  refused,  ///< a flag of torchrun that is impossible here; `help` says what to do
};

struct Flag {
  std::string_view name;    ///< with '-' between words
  std::string_view letter;  ///< "-r", or ""
  Kind kind;
  std::string_view syntax;
  std::string_view help;
};

constexpr Flag kFlags[] = {
    {"nproc-per-node", "", Kind::value, "N|N,N,...|auto|gpu|cpu",
     "ranks on each machine, or a number for every machine; auto: one per GPU, without GPUs one per core (default: 1)"},
    {"nnodes", "", Kind::value, "N", "machines (default: 1)"},
    {"node-rank", "", Kind::value, "N", "number of this machine, from 0 (default: 0)"},
    {"master-addr", "", Kind::value, "HOST", "machine 0, which serves the rendezvous (default: 127.0.0.1)"},
    {"master-port", "", Kind::value, "PORT",
     "port of the rendezvous (default: any free port; with several machines 29500)"},
    {"rdzv-endpoint", "", Kind::value, "HOST[:PORT]", "same as --master-addr and --master-port"},
    {"rdzv-backend", "", Kind::value, "static|c10d", "c10d works on one machine only (default: static)"},
    {"rdzv-id", "", Kind::value, "ID", "name of the launch, the same on all machines (default: random)"},
    {"standalone", "", Kind::toggle, "", "one machine, any free port: this is the default"},
    {"max-restarts", "", Kind::value, "N",
     "restart all ranks after a failure, at most N times without progress; one machine only (default: 0)"},
    {"grace", "", Kind::value, "SECONDS",
     "time for the other ranks to end after a failure before they are killed (default: 5)"},
    {"log-dir", "", Kind::value, "DIR", "keep every rank's output in DIR/<id>/attempt_<n>/rank_<r>.log"},
    {"redirects", "-r", Kind::value, "STREAMS",
     "write to the file instead of the terminal: 0 none, 1 output, 2 errors, 3 both, or by local rank: 0:1,1:3"},
    {"tee", "-t", Kind::value, "STREAMS", "also write to the file (default with --log-dir: 3)"},
    {"local-ranks-filter", "", Kind::value, "N,N,...", "show only these local ranks on the terminal"},
    {"numa-binding", "", Kind::value, "none|node",
     "node: each rank runs on the cores near its GPU; CPU ranks divide the cores (default: none)"},
    {"no-python", "", Kind::no_op, "", "this is the default: the program is started directly"},
    {"monitor-interval", "", Kind::ignored, "SECONDS", "no effect: a failure is detected immediately"},
    {"start-method", "", Kind::ignored, "METHOD", "no effect"},
    {"module", "-m", Kind::refused, "", "use: lockstep run -- python3 -m MODULE"},
    {"run-path", "", Kind::refused, "", "use: lockstep run -- python3 PROGRAM"},
    {"role", "", Kind::refused, "", "lockstep run has no roles; use torchrun"},
    {"rdzv-conf", "", Kind::refused, "", "the rendezvous has no options; the program sets its own timeout"},
    {"local-addr", "", Kind::refused, "", "only machine 0 needs an address, --master-addr"},
    {"virtual-local-rank", "", Kind::refused, "", "every rank sees all GPUs and selects its own; use torchrun"},
};

struct Given {
  std::string text{};
  std::string label{};  ///< "--nnodes 2", "PET_NNODES=2"
};

const Flag* find_flag(const FlagToken& token) {
  const bool is_long = token.written.starts_with("--");
  const auto found = std::find_if(std::begin(kFlags), std::end(kFlags), [&](const Flag& flag) {
    return is_long ? normal_name(flag.name) == token.name : flag.letter == token.written;
  });
  return found == std::end(kFlags) ? nullptr : found;
}

std::optional<Streams> parse_streams(std::string_view text) {
  const auto number = parse_int(text);
  return number && *number >= 0 && *number <= 3 ? std::optional(static_cast<Streams>(*number)) : std::nullopt;
}

class Parser {
 public:
  explicit Parser(const Variables& variables) : variables_(variables) {}

  RunFlags run(std::span<const std::string> args) {
    read_flags(args);
    if (result_.help) {
      return result_;  // ignore all other problems
    }
    read_environment();
    read_machines();
    read_rendezvous();
    read_ranks();
    read_restarts();
    read_output();
    if (result_.command.empty() && !unknown_) {  // an unknown flag may have consumed the program name
      refuse("no program to run", "use: lockstep run [flags] -- program [arguments]; see lockstep run --help");
    }
    if (!problems_.empty()) {
      throw ConfigError(std::move(problems_));
    }
    return result_;
  }

 private:
  void refuse(std::string what, std::string hint) { problems_.push_back({std::move(what), std::move(hint)}); }

  /// Parses flags up to `--` or the first word that is not a flag; the command starts there, as in torchrun.
  void read_flags(std::span<const std::string> args) {
    CommandTokens tokens(args);
    while (const auto flag = tokens.take_flag()) {
      if (flag->is_help()) {
        result_.help = true;
      } else {
        read_flag(*flag, tokens);
      }
    }
    if (!tokens.rest().empty() && tokens.rest().front() == "--") {
      tokens.take();
    }
    result_.command.assign(tokens.rest().begin(), tokens.rest().end());
  }

  void read_flag(const FlagToken& token, CommandTokens& tokens) {
    const Flag* flag = find_flag(token);
    const std::string* next = tokens.value();
    if (flag == nullptr) {
      std::vector<std::string> names;
      std::transform(std::begin(kFlags), std::end(kFlags), std::back_inserter(names),
                     [](const Flag& known) { return std::string(known.name); });
      const auto near = closest(token.name, names);
      refuse(printable(token.written) + ": unknown flag",
             near ? fmt::format("did you mean --{}?", *near)
                  : "see lockstep run --help; the program's own flags come after --");
      unknown_ = true;
      if (!token.attached && next != nullptr) {
        tokens.take();  // probably its value
      }
    } else if (flag->kind == Kind::refused) {
      refuse(fmt::format("--{}: not possible with lockstep run", flag->name), std::string(flag->help));
    } else if (flag->kind == Kind::toggle || flag->kind == Kind::no_op) {
      if (token.attached) {
        refuse(token.with(*token.attached) + ": takes no value", fmt::format("use --{}", flag->name));
      }
      given_[flag->name] = {"1", token.written};
    } else if (token.attached) {
      given_[flag->name] = {*token.attached, token.with(*token.attached)};
    } else if (next != nullptr) {
      given_[flag->name] = {*next, token.with(*next)};
      tokens.take();
    } else {
      refuse(token.written + ": expected a value", fmt::format("use --{} {}", flag->name, flag->syntax));
    }
  }

  void read_environment() {
    for (const Flag& flag : kFlags) {
      const std::string name = variable_name("PET_", flag.name);
      const auto value = variables_.get(name);
      const bool off = flag.kind != Kind::value && value.value_or("0") == "0";
      if (!value || off || given_.contains(flag.name)) {
        continue;
      }
      if (flag.kind == Kind::refused) {
        refuse(fmt::format("{}={}: not possible with lockstep run", name, printable(*value)), std::string(flag.help));
      } else {
        given_[flag.name] = {*value, printable(name + "=" + *value)};
      }
    }
  }

  const Given* given(std::string_view name) const {
    const auto found = given_.find(name);
    return found == given_.end() ? nullptr : &found->second;
  }

  void read_number(std::string_view name, int min, int max, int& out) {
    if (const Given* value = given(name)) {
      const auto number = parse_int(value->text);
      if (!number || *number < min || *number > max) {
        refuse(fmt::format("{}: expected a whole number from {} to {}", value->label, min, max), hint_of(name));
        return;
      }
      out = static_cast<int>(*number);
    }
  }

  static std::string hint_of(std::string_view name) {
    const auto flag = std::find_if(std::begin(kFlags), std::end(kFlags), [&](const Flag& f) { return f.name == name; });
    return fmt::format("--{} {}: {}", flag->name, flag->syntax, flag->help);
  }

  void read_machines() {
    if (const Given* value = given("nnodes"); value != nullptr && value->text.find(':') != std::string::npos) {
      const std::vector<std::string> ends = split(value->text, ':');
      if (ends.size() != 2 || ends[0] != ends[1]) {
        refuse(fmt::format("{}: expected one number", value->label),
               "only torchrun can change the number of machines during a run: torchrun --nnodes MIN:MAX");
        return;
      }
      given_["nnodes"].text = ends[0];
    }
    read_number("nnodes", 1, kMaxRanks, result_.nodes);
    read_number("node-rank", 0, std::numeric_limits<int>::max(), result_.node_rank);
    if (result_.node_rank >= result_.nodes) {
      refuse(fmt::format("--node-rank {} of {}", result_.node_rank, counted(result_.nodes, "machine")),
             fmt::format("use --node-rank 0 to {}", result_.nodes - 1));
    }
    if (const Given* value = given("standalone"); value != nullptr && result_.nodes > 1) {
      refuse(fmt::format("{}: allows one machine, but --nnodes is {}", value->label, result_.nodes),
             "remove one of the two flags");
    }
  }

  void read_rendezvous() {
    const bool many = result_.nodes > 1;
    if (const Given* value = given("rdzv-backend"); value != nullptr && value->text != "static") {
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
      if (const Given* value = given("master-addr")) {
        result_.master_addr = value->text;
      }
      read_number("master-port", many ? 1 : 0, 65535, result_.master_port);
    }
    if (many && given("master-addr") == nullptr && given("rdzv-endpoint") == nullptr) {
      refuse(fmt::format("--nnodes {}: the machines need a common address", result_.nodes),
             "add --master-addr with the name or address of machine 0 on every machine");
    }
    if (const Given* value = given("rdzv-id")) {
      read_run_id(*value);
    } else if (many) {
      result_.run_id = "none";  // torchrun's default, the same on all machines
    }
  }

  /// "host", "host:29400", "[::1]:29400".
  void read_endpoint() {
    const Given* value = given("rdzv-endpoint");
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
      refuse(fmt::format("{}: expected HOST or HOST:PORT", value->label), hint_of("rdzv-endpoint"));
      return;
    }
    result_.master_port = static_cast<int>(*port);
  }

  /// The id is used as a directory name and in an environment variable.
  void read_run_id(const Given& value) {
    constexpr std::string_view kSafe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    constexpr std::size_t kLongest = 100;
    if (value.text.empty() || value.text.size() > kLongest || value.text.front() == '.' ||
        value.text.find_first_not_of(kSafe) != std::string::npos) {
      refuse(fmt::format("{}: expected up to {} letters, digits, '-', '_' and '.'", value.label, kLongest),
             hint_of("rdzv-id"));
      return;
    }
    result_.run_id = value.text;
  }

  void read_ranks() {
    const Given* value = given("nproc-per-node");
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
               hint_of("nproc-per-node"));
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
    result_.ranks_per_node = std::move(numbers);
  }

  void read_restarts() {
    read_number("max-restarts", 0, std::numeric_limits<int>::max(), result_.max_restarts);
    if (result_.max_restarts > 0 && result_.nodes > 1) {
      refuse(fmt::format("--max-restarts {}: not possible with several machines", result_.max_restarts),
             "use torchrun, or let the scheduler restart the job: the run resumes automatically");
    }
    if (const Given* value = given("grace")) {
      const auto seconds = parse_double(value->text);
      if (!seconds || *seconds < 0 || *seconds > 1e7) {
        refuse(fmt::format("{}: expected seconds from 0 to 1e7", value->label), hint_of("grace"));
      } else {
        result_.grace_s = *seconds;
      }
    }
    if (const Given* value = given("numa-binding")) {
      result_.bind_numa = value->text == "node";
      if (value->text != "node" && value->text != "none") {
        refuse(fmt::format("{}: expected none or node", value->label), hint_of("numa-binding"));
      }
    }
  }

  void read_output() {
    if (const Given* value = given("log-dir")) {
      result_.log_dir = value->text;
      result_.tee.all = Streams::both;
    }
    read_streams("redirects", result_.redirects);
    read_streams("tee", result_.tee);
    if (const Given* value = given("local-ranks-filter"); value != nullptr && !value->text.empty()) {
      std::set<int> ranks;
      for (const std::string& part : split(value->text, ',')) {
        const auto rank = parse_int(part);
        if (!rank || *rank < 0 || *rank >= kMaxRanks) {
          refuse(fmt::format("{}: expected local ranks", value->label), hint_of("local-ranks-filter"));
          return;
        }
        ranks.insert(static_cast<int>(*rank));
      }
      result_.shown_local_ranks = std::move(ranks);
    }
  }

  /// "3", or "0:1,1:3".
  void read_streams(std::string_view name, StreamsPerRank& out) {
    const Given* value = given(name);
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
      refuse(fmt::format("{}: expected 0 to 3, or LOCAL_RANK:STREAMS,...", value->label), hint_of(name));
      return;
    }
    const bool any = read.all != Streams::none || !read.by_local_rank.empty();
    if (any && given("log-dir") == nullptr) {
      refuse(fmt::format("{}: there is no directory for the files", value->label), "add --log-dir DIR");
    }
    out = std::move(read);
  }

  const Variables& variables_;
  std::map<std::string_view, Given> given_{};
  RunFlags result_{};
  std::vector<Problem> problems_{};
  bool unknown_ = false;  // an unknown flag was found
};

}  // namespace

Streams StreamsPerRank::of(int local_rank) const {
  const auto found = by_local_rank.find(local_rank);
  return found == by_local_rank.end() ? all : found->second;
}

RunFlags parse_run_flags(std::span<const std::string> args, const Variables& variables) {
  return Parser(variables).run(args);
}

std::string run_help(int width) {
  const auto columns = static_cast<std::size_t>(std::clamp(width, 40, 120));
  std::string text =
      "usage: lockstep run [flags] [--] program [arguments]\n\n" +
      wrap(
          "Starts the program once per rank, watches the ranks, and ends all of them when one fails. The flags are "
          "torchrun's; each takes the variable PET_<FLAG> as its default.",
          0, columns) +
      "\n\n";
  for (const Flag& flag : kFlags) {
    if (flag.kind == Kind::refused) {
      continue;
    }
    const std::string letter = flag.letter.empty() ? "" : fmt::format("{}, ", flag.letter);
    text += fmt::format("  {}--{}{}{}\n        {}\n", letter, flag.name, flag.syntax.empty() ? "" : " ", flag.syntax,
                        wrap(flag.help, 8, columns));
  }
  return text + "  -h, --help\n        this text\n";
}

std::vector<FlagText> run_flag_texts() {
  std::vector<FlagText> texts;
  for (const Flag& flag : kFlags) {
    if (flag.kind != Kind::refused) {
      texts.push_back({fmt::format("--{}", flag.name), std::string(flag.syntax), std::string(flag.help)});
    }
  }
  texts.push_back({"--help", "", "print all flags and exit"});
  return texts;
}

}  // namespace lockstep
