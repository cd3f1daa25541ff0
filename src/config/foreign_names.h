// Names that other systems have for our settings, and that we had ourselves. Torch-free.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// Names with blanks between them, and what to write here instead.
struct ForeignName {
  std::string_view names{};
  std::string_view hint{};
};

std::span<const ForeignName> foreign_names();

/// "use --devices N", for a name that is no setting here, in any case and with - or _; nullopt: not known elsewhere
/// either.
std::optional<std::string> foreign_name_hint(std::string_view name);

}  // namespace lockstep
