#include <string>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/trainer/callbacks.h>

namespace lockstep {

FreezeUntil::FreezeUntil(std::string pattern, std::int64_t epoch)
    : pattern_(std::move(pattern)), epoch_(epoch), name_(fmt::format("freeze_until:{}", pattern_)) {
  if (epoch_ < 2) {
    throw ConfigError(fmt::format("FreezeUntil: epoch is {}, expected 2 or more", epoch_),
                      "epochs count from 1; without this callback the parameters are trained from the start");
  }
}

// At fit_start the epoch of a resumed run is known.
void FreezeUntil::on(const StageContext& context) {
  const std::int64_t next = context.state.epoch + 1;
  if (context.stage == Stage::fit_start && next < epoch_) {
    freeze(context.module, pattern_);
  } else if (next == epoch_ || context.stage == Stage::fit_start) {
    const std::size_t count = unfreeze(context.module, pattern_);
    if (context.stage == Stage::epoch_end) {
      log_info(fmt::format("epoch {} begins to train {} parameters ({})", epoch_, count, pattern_));
    }
  }
}

}  // namespace lockstep
