// A pickle of protocol 2 as data: executes nothing and makes no Python objects. Torch-free.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace lockstep {

/// The index of a value.
using PickleRef = std::uint32_t;

struct PickleValue {
  enum class Kind : std::uint8_t { other, integer, text, tuple, list, dictionary, global, storage, object };

  Kind kind = Kind::other;   ///< other: None, a truth value, a fraction, a large integer
  std::int64_t integer = 0;  ///< of an integer
  std::string_view text{};   ///< of a text; of a global (module, line feed, name); of the global that made an object
  std::vector<PickleRef> items{};  ///< of a tuple or a list; key, value, key, value, ...; the arguments of an object
};

/// All values of a pickle. Values refer to others by index, also in circles; nothing here follows them further than a
/// known number of steps.
struct Pickle {
  std::vector<PickleValue> values{};
  PickleRef root = 0;

  const PickleValue& operator[](PickleRef ref) const { return values[ref]; }
};

/// The values refer to `text`. An ordered dictionary is a dictionary; of any other object only its maker and the
/// arguments are known. Takes memory in proportion to the pickle, which may have at most 64 MiB. Throws:
/// CheckpointError, also for opcodes that torch.save does not write.
Pickle parse_pickle(std::string_view text);

}  // namespace lockstep
