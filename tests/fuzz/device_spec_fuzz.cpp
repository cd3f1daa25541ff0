#include <lockstep/config/device_spec.h>

#include "fuzz/targets.h"

namespace lockstep::fuzz {

void device_spec(std::string_view input) {
  const DeviceSpec spec(input);
  if (spec.problems().empty()) {
    const DeviceSpec again(spec.text());
    promise(again.problems().empty() && again == spec, "a text that means the same when it is read again", input);
  }
}

}  // namespace lockstep::fuzz
