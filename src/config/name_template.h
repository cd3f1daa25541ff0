// Names such as "epoch{epoch}-{val_loss:.3f}". Torch-free.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// What is wrong with a template of file names; nullopt: nothing. The empty one is fine.
std::optional<std::string> find_name_fault(std::string_view text);

/// {step} and {epoch} are whole numbers, others as {:.4g}, or with as many digits as {name:.3f} says. nullopt: `value`
/// does not know one of the names. `text` has no fault.
std::optional<std::string> fill_name(std::string_view text,
                                     const std::function<std::optional<double>(std::string_view name)>& value);

}  // namespace lockstep
