#include <algorithm>
#include <exception>

#include <fmt/format.h>

#include "base/json.h"
#include "base/text.h"
#include "environment/launchers/launch_variables.h"

namespace lockstep {
namespace {

constexpr const char* kHosts = "SM_HOSTS";
constexpr const char* kCurrentHost = "SM_CURRENT_HOST";

/// ["algo-2","algo-1"]; nullopt: something else.
std::optional<std::vector<std::string>> parse_hosts(const std::string& text) {
  try {
    auto hosts = parse_json(text, 2).get<std::vector<std::string>>();
    if (!hosts.empty() && std::ranges::all_of(hosts, is_host)) {
      return hosts;
    }
  } catch (const std::exception&) {
    // not JSON, or not a list of texts
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> read_sagemaker_hosts(VariableReader& reader) {
  const auto text = reader.text(kHosts);
  if (!text) {
    return {};
  }
  auto hosts = parse_hosts(*text);
  if (!hosts) {
    reader.problem(fmt::format("{}=\"{}\": expected a JSON list of host names", kHosts, printable(*text)));
    return {};
  }
  std::sort(hosts->begin(), hosts->end());
  return *hosts;
}

/// SageMaker runs the program once on each host, unless it is configured to use MPI or torchrun.
std::optional<Identity> read_sagemaker(VariableReader& reader) {
  if (!reader.has(kHosts) && !reader.has(kCurrentHost)) {
    return std::nullopt;
  }
  constexpr int kPort = 29500;  // torchrun's default; the hosts belong to this job alone
  Identity identity{.starts_ranks = true, .launcher = "SageMaker"};
  if (!reader.has(kHosts)) {
    reader.missing(kHosts, "the hosts of the job");
  }
  const auto hosts = read_sagemaker_hosts(reader);
  const std::string here = reader.required_text(kCurrentHost, "the name of this host");
  if (!reader.problems().empty()) {
    return identity;
  }
  const auto found = std::ranges::find(hosts, here);
  if (found == hosts.end()) {
    reader.problem(fmt::format("{}=\"{}\" and {}={}: expected one of them", kCurrentHost, printable(here), kHosts,
                               printable(reader.peek(kHosts).value_or(""))));
    return identity;
  }
  identity.node = identity.rank = static_cast<int>(found - hosts.begin());
  identity.nodes = identity.world_size = static_cast<int>(hosts.size());
  identity.master_addr = hosts.front();
  identity.master_source = kHosts;
  identity.master_port = reader.number("MASTER_PORT", 1, 65535).value_or(kPort);
  identity.run_id = reader.text("TRAINING_JOB_NAME").value_or("sagemaker");
  return identity;
}

}  // namespace lockstep
