#include "fuzz/array_layout.h"

namespace lockstep::fuzz {

LOCKSTEP_FUZZ_TARGET(idx) { check_layout(parse_idx, input); }

}  // namespace lockstep::fuzz
