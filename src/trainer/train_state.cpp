#include <algorithm>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/trainer/train_state.h>

#include "base/mapped.h"
#include "base/text.h"
#include "trainer/output/metric_names.h"

namespace lockstep {

double metric_of(const Metrics& metrics, std::string_view name) {
  const auto found = std::ranges::find(metrics, name, &Metrics::value_type::first);
  if (found != metrics.end()) {
    return found->second;
  }
  throw Error(fmt::format("found no metric '{}'", printable(name)),
              hint_for_metric(name, mapped(metrics, &Metrics::value_type::first)));
}

}  // namespace lockstep
