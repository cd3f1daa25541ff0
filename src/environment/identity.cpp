#include <fmt/format.h>

#include <lockstep/environment/identity.h>

#include "base/text.h"
#include "environment/launch_variables.h"

namespace lockstep {
namespace {

/// In the order of precedence; the first that finds its variables answers.
constexpr std::optional<Identity> (*kReaders[])(VariableReader&) = {
    read_torchrun,
};

/// What each number alone cannot show. 0 stands for a number that was refused before.
void check_consistency(const Identity& identity, VariableReader& reader) {
  const auto below = [&](const char* name, int value, const char* limit_name, int limit) {
    if (limit > 0 && value >= limit) {
      reader.problem(fmt::format("{}={} and {}={}: expected 0 to {}", name, value, limit_name, limit, limit - 1));
    }
  };
  below("RANK", identity.rank, "WORLD_SIZE", identity.world_size);
  below("LOCAL_RANK", identity.local_rank, "LOCAL_WORLD_SIZE", identity.local_world_size);
  below("GROUP_RANK", identity.node, "GROUP_WORLD_SIZE", identity.nodes);
  const bool may_differ = identity.launcher == "lockstep";  // which knows the number of each node
  if (!may_differ && identity.world_size > 0 && identity.local_world_size > 0 && identity.nodes > 0 &&
      static_cast<std::int64_t>(identity.nodes) * identity.local_world_size != identity.world_size) {
    reader.problem(
        fmt::format("WORLD_SIZE={} and LOCAL_WORLD_SIZE={} on {} nodes: found {} ranks, expected {}",
                    identity.world_size, identity.local_world_size, identity.nodes,
                    static_cast<std::int64_t>(identity.nodes) * identity.local_world_size, identity.world_size),
        "every node runs the same number of ranks");
  }
}

}  // namespace

std::optional<int> VariableReader::number(const char* name, std::int64_t min, std::int64_t max) {
  const auto value = variables_.get(name);
  if (!value) {
    return std::nullopt;
  }
  names_.emplace_back(name);
  const auto number = parse_int(*value);
  if (!number || *number < min || *number > max) {
    problem(fmt::format("{}=\"{}\": expected a whole number from {} to {}", name, printable(*value), min, max));
    return std::nullopt;
  }
  return static_cast<int>(*number);
}

std::optional<std::string> VariableReader::text(const char* name) {
  auto value = variables_.get(name);
  if (!value) {
    return std::nullopt;
  }
  names_.emplace_back(name);
  if (trim(*value).empty()) {
    problem(fmt::format("{}=\"{}\": expected a text", name, printable(*value)));
    return std::nullopt;
  }
  return value;
}

void VariableReader::missing(const char* name, std::string_view meaning) {
  problem(fmt::format("{} is not set, expected {}", name, meaning));
}

std::optional<Identity> detect_identity(const Variables& variables) {
  for (const auto read : kReaders) {
    VariableReader reader(variables);
    std::optional<Identity> identity = read(reader);
    if (!identity) {
      continue;
    }
    check_consistency(*identity, reader);
    if (!reader.problems().empty()) {
      throw ConfigError(reader.problems());
    }
    identity->variables = reader.names();
    return identity;
  }
  return std::nullopt;
}

}  // namespace lockstep
