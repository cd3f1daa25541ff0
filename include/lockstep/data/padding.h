// lockstep/data/padding.h
//
// Samples of different lengths in one batch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <lockstep/data/dataset.h>

namespace [[gnu::visibility("default")]] lockstep {

/// How one dimension of one tensor of the samples is padded at its end, to the longest sample of the batch. A tensor
/// may have several, such as one for the height and one for the width of an image.
struct Padding {
  std::string field = "input";   ///< "input", "target", "weight", or a name in Batch::fields
  std::int64_t dimension = 0;    ///< of the sample's tensor; negative: counted from the last one
  double value = 0;              ///< of the added elements; the same in all paddings of a tensor
  std::int64_t multiple_of = 1;  ///< the length is rounded up to a multiple of this number
  std::string mask{};            ///< name of an added field, bool [N, length], true where data is; empty: no such field
};

/// The same samples, stacked with padding. It reads `data` one sample at a time, so the samples may have different
/// sizes along the padded dimensions. `map` and `concat` stack samples too: pad their result. The lengths depend on
/// the samples of the batch, so a loss must not depend on padded elements. Throws: DataError (`data` is null);
/// ConfigError with all invalid paddings. get() throws DataError if a sample has no such field or dimension, or if two
/// paddings are of one dimension.
[[nodiscard]] std::shared_ptr<Dataset> padded(std::shared_ptr<const Dataset> data, std::vector<Padding> paddings);

}  // namespace lockstep
