// Finds NaN and infinity in batches.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <lockstep/data/batch.h>

namespace lockstep {

/// NaN or infinity in a batch.
struct NotFinite {
  std::optional<std::int64_t> row{};  ///< its sample; nullopt: the rows of the tensor are not the samples
  /// Of this sample, else of the whole tensor: "input has 3 of 3072 elements that are NaN or infinite, the first is nan
  /// at [0, 3, 5]", "target is inf".
  std::string text{};
};

/// Looks at all tensors of floating-point and complex numbers; nullopt: all of them are finite. Waits for the device of
/// a tensor that is not on the CPU.
std::optional<NotFinite> find_not_finite(const Batch& batch, std::int64_t samples);

}  // namespace lockstep
