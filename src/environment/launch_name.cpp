#include <limits>

#include <fmt/format.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/environment/launch_name.h>

#include "base/text.h"
#include "environment/own_variables.h"
#include "environment/process_name.h"
#include "environment/text_file.h"

namespace lockstep {
namespace {

/// A pid may be reused, but not with the same start time.
std::string parent_process() {
  const pid_t parent = getppid();
  const std::string stat = read_text_file(fmt::format("/proc/{}/stat", parent)).value_or("");
  constexpr std::size_t kStartTime = 19;
  const auto fields = stat_fields(stat);
  return fmt::format("{} {} {}", this_process().machine, parent, fields.size() > kStartTime ? fields[kStartTime] : "");
}

}  // namespace

LaunchName launch_name(const Variables& variables, const std::optional<Identity>& identity) {
  LaunchName name;
  if (identity && identity->launcher == "lockstep") {
    const std::string mark = variables.get(own_variables::kLaunchMark).value_or("");  // outer/inner
    name.id = mark.substr(mark.rfind('/') + 1);
  } else if (identity && identity->launcher == "torchrun") {
    name.id = parent_process();  // the agent
  }
  if (name.id.empty()) {
    name.id = random_id();
  }
  if (const auto job = variables.get("SLURM_JOB_ID")) {
    name.job = fmt::format("{}/{}/{}", variables.get("SLURM_CLUSTER_NAME").value_or(""), *job,
                           variables.get("SLURM_STEP_ID").value_or(""));
    const std::string count = variables.get("SLURM_RESTART_COUNT").value_or("0");
    const auto requeues = parse_int(count);
    if (!requeues || *requeues < 0 || *requeues > std::numeric_limits<int>::max()) {
      throw ConfigError(fmt::format("SLURM_RESTART_COUNT=\"{}\": expected a whole number", printable(count)),
                        "Slurm sets it; unset it outside of a job");
    }
    name.requeues = static_cast<int>(*requeues);
  }
  return name;
}

bool same_launch(const LaunchName& before, const LaunchName& now) {
  return (!now.id.empty() && before.id == now.id) ||
         (!now.job.empty() && before.job == now.job && before.requeues < now.requeues);
}

}  // namespace lockstep
