#include <lockstep/config/device_spec.h>

#include "fuzz/target.h"

namespace lockstep::fuzz {

LOCKSTEP_FUZZ_TARGET(device_spec) {
  const DeviceSpec spec(input);
  if (spec.problems().empty()) {
    const DeviceSpec again(spec.text());
    promise(again.problems().empty() && again == spec, "a text that means the same when it is read again", input);
  }
}

}  // namespace lockstep::fuzz
