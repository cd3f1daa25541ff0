#include <string>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/config/config_io.h>

#include "base/text.h"
#include "fuzz/target.h"

namespace lockstep::fuzz {

/// One argument per line.
LOCKSTEP_FUZZ_TARGET(flags) {
  if (to_lower(input).find("config") != std::string::npos) {
    return;  // opens files; their formats are other targets' matter
  }
  const std::vector<std::string> args = split(input, '\n');
  try {
    const Invocation invocation = parse_invocation({}, args, Variables{});
    promise(check_config(invocation.config).empty(), "a configuration without problems", input);
  } catch (const ConfigError& error) {
    promise(!error.problems().empty(), "a reason", input);
  }
}

}  // namespace lockstep::fuzz
