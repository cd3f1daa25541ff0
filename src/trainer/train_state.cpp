#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/trainer/train_state.h>

#include "base/mapped.h"
#include "base/text.h"
#include "trainer/output/metric_names.h"

namespace lockstep {

double metric_of(const Metrics& metrics, std::string_view name) {
  if (const double* value = find_metric(metrics, name)) {
    return *value;
  }
  throw Error(fmt::format("found no metric '{}'", printable(name)),
              hint_for_metric(name, mapped(metrics, &Metrics::value_type::first)));
}

}  // namespace lockstep
