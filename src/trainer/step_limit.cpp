#include "trainer/step_limit.h"

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/text.h"

namespace lockstep {

std::int64_t StepLimit::of(const BatchSource& data) const {
  if (!steps.is_part()) {
    return steps.number();
  }
  const auto all = data.steps_per_epoch();
  if (!all) {
    throw ConfigError(fmt::format("--{} {}%: the length of this data is not known, expected a number of steps", setting,
                                  steps.percent()),
                      fmt::format("use --{} N", setting));
  }
  return steps.of(*all);
}

void tell_part(std::string_view what, std::int64_t steps, const StepLimit& limit, const TrainConfig& config) {
  log_info(fmt::format("{} used the first {} of the data only (--{})", what, counted(steps, "step"),
                       config.fast_dev_run > 0 ? "fast_dev_run" : limit.setting));
}

}  // namespace lockstep
