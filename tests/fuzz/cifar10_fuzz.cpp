#include <cstdint>
#include <span>

#include <lockstep/base/error.h>

#include "formats/cifar10.h"
#include "fuzz/target.h"

namespace lockstep::fuzz {

LOCKSTEP_FUZZ_TARGET(cifar10) {
  try {
    const std::int64_t records = count_cifar10(std::as_bytes(std::span(input)));
    promise(records * static_cast<std::int64_t>(kCifar10Record) == static_cast<std::int64_t>(input.size()),
            "whole records", input);
  } catch (const DataError&) {
  }
}

}  // namespace lockstep::fuzz
