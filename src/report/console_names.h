// Which metrics of a row the console and `lockstep top` show. Torch-free.
#pragma once

#include <set>
#include <span>
#include <string>

namespace lockstep {

/// Without those of which there can be hundreds: names with a slash such as "grad_norm/encoder", and more than 8 that
/// differ only in the numbers at their end, such as the values of a confusion matrix.
std::set<std::string> names_for_console(std::span<const std::string> names);

}  // namespace lockstep
