#include "tensor/vector_math.h"

#include <ATen/ATen.h>

namespace lockstep {

void settle_vector_math() {
  // The functions that ATen/cpu/vml.h gives to oneMKL.
  static const bool settled = [] {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      const at::Tensor x = at::full({1}, 0.5, type);
      for (const auto function : {at::acos, at::asin, at::atan, at::cos, at::erf, at::erfc, at::erfinv, at::exp,
                                  at::log, at::log10, at::log2, at::sin, at::sqrt, at::tan, at::tanh, at::trunc}) {
        function(x);
      }
    }
    return true;
  }();
  static_cast<void>(settled);
}

}  // namespace lockstep
