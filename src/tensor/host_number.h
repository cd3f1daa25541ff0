// Numbers of tensors in memory of the host.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// An fp32 number on the CPU, which is read at once: an operation on tensors takes a hundred times as long. nullopt:
/// the tensor is something else.
inline std::optional<float> number_on_host(const at::Tensor& value) {
  const bool is_plain = value.defined() && value.is_cpu() && value.scalar_type() == at::kFloat && value.numel() == 1 &&
                        value.layout() == at::kStrided && !value.is_neg() && !value._is_zerotensor();
  return is_plain ? std::optional(*value.const_data_ptr<float>()) : std::nullopt;
}

}  // namespace lockstep
