// Names that other systems, or earlier versions of lockstep, use for its settings. Torch-free.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// Names separated by blanks, and the hint for them.
struct ForeignName {
  std::string_view names{};
  std::string_view hint{};
};

std::span<const ForeignName> foreign_names();

/// The hint, e.g. "use --devices N", for a name that is not a setting of lockstep, in any case and with - or _;
/// nullopt: not known.
std::optional<std::string> foreign_name_hint(std::string_view name);

}  // namespace lockstep
