// Names that other systems, or earlier versions of lockstep, use for its settings. Torch-free.
#pragma once

#include <span>
#include <string_view>

namespace lockstep {

/// Names separated by blanks, and the hint for them.
struct ForeignName {
  std::string_view names{};
  std::string_view hint{};
  std::string_view field{};  ///< the setting that takes the same value; "": none
};

std::span<const ForeignName> foreign_names();

/// For a name that is not a setting of lockstep, in any case and with - or _: the row with the whole name
/// ("memory.keep"), else with its last part ("gpus" for "trainer.gpus"); null: not known.
const ForeignName* find_foreign_name(std::string_view name);

}  // namespace lockstep
