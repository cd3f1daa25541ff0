// Work that some ranks do for all, with one outcome everywhere.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/world/world.h>

namespace lockstep {

/// Collective. The ranks with `mine` run `work`, however long it takes: rank 0 first, then the others at once, also
/// when it failed: each of them has a save of its own to end. Every rank returns what each of them returned ("" of the
/// others), or throws what the first of them threw; see World::main_first.
std::vector<std::string> run_on(World& world, std::string_view what, bool mine,
                                const std::function<std::string()>& work);

/// Collective. Rank 0 runs `work`, however long it takes; every rank returns what it returned, or throws what it threw.
std::string run_on_main(World& world, std::string_view what, const std::function<std::string()>& work);

}  // namespace lockstep
