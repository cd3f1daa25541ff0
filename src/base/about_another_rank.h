// Errors that every rank throws. Torch-free.
#pragma once

#include <utility>

namespace lockstep {

/// An exception with this base is thrown by every rank and is about another rank than this one, whose word counts.
struct AboutAnotherRank {
  virtual ~AboutAnotherRank() = default;
};

template <class AnError>
struct OfAnotherRank final : AnError, AboutAnotherRank {
  explicit OfAnotherRank(AnError error) : AnError(std::move(error)) {}
};

}  // namespace lockstep
