#include "environment/job_end.h"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/text.h"

namespace lockstep {

std::optional<std::chrono::steady_clock::time_point> job_end(const Variables& variables) {
  constexpr const char* kName = "SLURM_JOB_END_TIME";
  const auto text = variables.get(kName);
  if (!text) {
    return std::nullopt;
  }
  constexpr std::int64_t kYear2200 = 7'258'118'400;  // a job without limit may end beyond the range of clocks
  const auto seconds = parse_int(*text);
  if (!seconds || *seconds < 0) {
    throw ConfigError(fmt::format("{}=\"{}\": expected seconds since 1970", kName, printable(*text)),
                      "Slurm sets it; unset it to train without this time limit");
  }
  const auto now = std::chrono::system_clock::now();
  const std::chrono::system_clock::time_point end{std::chrono::seconds(std::min(*seconds, kYear2200))};
  if (end <= now || *seconds > kYear2200) {
    return std::nullopt;  // a job past its end was given more time
  }
  return std::chrono::steady_clock::now() + (end - now);
}

}  // namespace lockstep
