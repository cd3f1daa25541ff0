#include "fuzz/array_layout.h"

namespace lockstep::fuzz {

LOCKSTEP_FUZZ_TARGET(npy) { check_layout(parse_npy, input); }

}  // namespace lockstep::fuzz
