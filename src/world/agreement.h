// What ranks must have in common, compared once.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/config/train_config.h>
#include <lockstep/world/world.h>

#include "base/about_another_rank.h"

namespace lockstep {

/// The first line on which ranks differ.
struct Disagreement {
  std::size_t line = 0;
  std::size_t rank = 0;    ///< the odd one: not with the majority; without one, not with rank 0
  std::string found{};     ///< its line; "nothing" where its text has ended
  std::string expected{};  ///< the others'
  std::string others{};    ///< who they are: "rank 0 has", "3 of 4 ranks have"
};

/// Throws an error that every rank throws, and that is about rank `rank`: it is the one to be blamed.
template <class AnError>
[[noreturn]] void throw_about_rank(std::size_t rank, const World& world, AnError error) {
  if (rank != static_cast<std::size_t>(world.rank())) {
    throw OfAnotherRank<AnError>(std::move(error));
  }
  throw error;
}

/// `texts`: one of each rank, in order. Pure.
std::optional<Disagreement> find_disagreement(const std::vector<std::string>& texts);

/// Collective. Builds (program, lockstep, LibTorch), settings, and that no two ranks use one GPU (`gpu`: the UUID of
/// this rank's, "" for the CPU; a warning with gloo). Throws: CommError (exit 78) naming the first difference and the
/// odd rank; (exit 2) for a shared GPU.
void agree_at_start(const TrainConfig& config, std::string_view gpu, World& world);

}  // namespace lockstep
