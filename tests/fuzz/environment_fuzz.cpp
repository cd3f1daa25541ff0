#include <map>

#include <lockstep/base/error.h>

#include "base/text.h"
#include "environment/launchers/launch_variables.h"
#include "fuzz/target.h"

namespace lockstep::fuzz {

/// NAME=value lines; the same text answers for every file.
LOCKSTEP_FUZZ_TARGET(environment) {
  std::map<std::string, std::string, std::less<>> values;
  for (const std::string& line : split(input, '\n')) {
    if (const auto equals = line.find('='); equals != std::string::npos) {
      values[line.substr(0, equals)] = line.substr(equals + 1);
    }
  }
  const auto file = [&](const std::string&) { return std::optional(std::string(input)); };
  try {
    const auto identity = detect_identity(Variables(values), file);
    if (!identity) {
      return;
    }
    promise(identity->rank >= 0 && identity->rank < identity->world_size, "a rank below the world size", input);
    promise(identity->local_rank >= 0 && identity->local_rank < identity->local_world_size,
            "a local rank below the local size", input);
    promise(identity->local_world_size <= identity->world_size || identity->world_size == 1,
            "no more ranks on a node than there are", input);
    promise(identity->node >= 0 && identity->nodes > 0, "a node", input);
    promise(identity->world_size == 1 || (identity->master_port > 0 && is_host(identity->master_addr)),
            "a common address", input);
  } catch (const ConfigError& error) {
    promise(!error.problems().empty(), "a reason", input);
  }
}

}  // namespace lockstep::fuzz
