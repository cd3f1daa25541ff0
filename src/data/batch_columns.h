// A batch as named tensors, and back.
#pragma once

#include <cstdint>

#include <lockstep/data/batch.h>

namespace lockstep {

/// The tensors of a batch by name: "input", "target" and "weight" if they are defined, and "fields.NAME".
NamedTensors columns_of(const Batch& batch);

/// The batch of such columns.
Batch batch_of(NamedTensors columns);

/// The samples of a batch of a stream: Batch::samples, else the rows of `input`, else the number of ids.
std::int64_t samples_of(const Batch& batch);

}  // namespace lockstep
