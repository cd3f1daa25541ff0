// Names such as "epoch{epoch}-{val_loss:.3f}". Torch-free.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// The problem of a template for file names; nullopt: none. An empty template is valid.
std::optional<std::string> find_name_fault(std::string_view text);

/// {step} and {epoch} are whole numbers, others are {:.4g}, or have the digits of {name:.3f}. nullopt: `value` does not
/// know one of the names. `text` must be valid.
std::optional<std::string> fill_name(std::string_view text,
                                     const std::function<std::optional<double>(std::string_view name)>& value);

}  // namespace lockstep
