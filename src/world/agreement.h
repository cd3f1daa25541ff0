// Compares once what must be equal on all ranks.
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
#include "world/rank_place.h"

namespace lockstep {

/// The first line in which ranks differ.
struct Disagreement {
  std::size_t line = 0;
  std::size_t rank = 0;    ///< the first rank that differs from the majority; without a majority, from rank 0
  std::string found{};     ///< its line; "nothing" if its text has no more lines
  std::string expected{};  ///< the line of the others
  std::string others{};    ///< the others in words: "rank 0 has", "3 of 4 ranks have"
};

/// Throws the same error on every rank; its cause is rank `rank`.
template <class AnError>
[[noreturn]] void throw_about_rank(std::size_t rank, const World& world, AnError error) {
  if (rank != static_cast<std::size_t>(world.rank())) {
    throw OfAnotherRank<AnError>(std::move(error));
  }
  throw error;
}

/// "rank {rank} {what} {found}, {others} {expected}", thrown on every rank. Throws: CommError (exit 78).
[[noreturn]] void throw_disagreement(const Disagreement& difference, const World& world, std::string_view what,
                                     std::string hint);

/// `texts`: one per rank, in order. Pure.
std::optional<Disagreement> find_disagreement(const std::vector<std::string>& texts);

/// Collective. The same of every rank's text. The texts are gathered only if they differ.
std::optional<Disagreement> find_disagreement(std::string_view mine, World& world);

/// Collective. Compares builds (program, lockstep, LibTorch, NCCL if it is used) and settings, and checks that no two
/// ranks use one GPU (only a warning with gloo). `gpu`: UUID of this rank's GPU, "" for the CPU. Returns the place of
/// each rank. Throws: CommError (exit 78) naming the first difference and its rank; (exit 2) for a shared GPU.
std::vector<RankPlace> agree_at_start(const TrainConfig& config, std::string_view gpu, World& world,
                                      const RankPlace& place = {});

}  // namespace lockstep
