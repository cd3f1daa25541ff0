// Errors that every rank throws. Torch-free.
#pragma once

#include <utility>

namespace lockstep {

/// An exception with this base is thrown by every rank, but another rank is the cause. The report of that rank counts.
struct AboutAnotherRank {
  virtual ~AboutAnotherRank() = default;
};

template <class AnError>
struct OfAnotherRank final : AnError, AboutAnotherRank {
  explicit OfAnotherRank(AnError error) : AnError(std::move(error)) {}
};

}  // namespace lockstep
