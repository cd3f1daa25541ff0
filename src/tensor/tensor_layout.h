// What a rank needs to know before it gets the values of tensors: names, dtypes and shapes.
#pragma once

#include <c10/core/Device.h>

#include <lockstep/tensor/named_tensors.h>

#include "base/json.h"

namespace lockstep {

/// For ranks of the same program, not for files: a dtype is its number in LibTorch.
Json tensor_layout(const NamedTensors& tensors);

/// Tensors of that layout, without values; on c10::kMeta they need no memory.
NamedTensors empty_tensors(const Json& layout, c10::Device device);

}  // namespace lockstep
