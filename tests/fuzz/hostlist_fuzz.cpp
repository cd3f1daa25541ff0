#include <algorithm>

#include "environment/launchers/hostlist.h"
#include "fuzz/target.h"

namespace lockstep::fuzz {

LOCKSTEP_FUZZ_TARGET(hostlist) {
  const Hostlist list = parse_hostlist(input);
  promise(list.hosts.empty() != list.problem.empty(), "hosts or a problem", input);
  promise(list.hosts.size() <= kMaxHosts, "a bounded list", input);
  const auto is_plain = [](const std::string& host) {
    return !host.empty() && host.find_first_of("[], \n") == std::string::npos;
  };
  promise(std::all_of(list.hosts.begin(), list.hosts.end(), is_plain), "plain names", input);
}

}  // namespace lockstep::fuzz
