// Work that rank 0 does for all, with one outcome everywhere.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <lockstep/world/world.h>

namespace lockstep {

/// Collective. Rank 0 runs `work`, however long it takes; every rank returns what it returned, or throws what it threw
/// (the same type, message, hint and exit code where it is an Error of this library).
std::string run_on_main(World& world, std::string_view what, const std::function<std::string()>& work);

}  // namespace lockstep
