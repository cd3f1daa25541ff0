// Memory of a tensor that several streams of a device use.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

namespace lockstep {

/// Memory belongs to the stream on which it was made. From now on it is used by `stream` too.
inline void keep_for(const c10::Stream& stream, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device() != stream.device()) {
    return;
  }
  if (tensor.is_sparse()) {
    keep_for(stream, tensor._indices());
    keep_for(stream, tensor._values());
  } else {
    tensor.record_stream(stream);
  }
}

}  // namespace lockstep
