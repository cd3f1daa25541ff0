// Work that one or several ranks do for all, with the same outcome on every rank.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <lockstep/world/world.h>

namespace lockstep {

/// Collective. The ranks with `mine` run `work`, without a time limit: rank 0 first, then the others at the same time,
/// also if it failed, because each of them has its own save to end. Every rank returns the results of all ranks ("" for
/// ranks without `mine`), or throws the exception of the first rank that failed; see World::main_first.
std::vector<std::string> run_on(World& world, std::string_view what, bool mine,
                                const std::function<std::string()>& work);

/// The same for work without a result.
template <class Work>
requires std::is_void_v<std::invoke_result_t<const Work&>>
void run_on(World& world, std::string_view what, bool mine, const Work& work) {
  run_on(world, what, mine, [&] {
    work();
    return std::string();
  });
}

/// Collective. Rank 0 runs `work`, without a time limit; every rank returns its result or throws its exception.
std::string run_on_main(World& world, std::string_view what, const std::function<std::string()>& work);

}  // namespace lockstep
