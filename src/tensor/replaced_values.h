// Other values for tensors, for a while.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

namespace lockstep {

/// While it exists, each first tensor has the values of the second one, in its own dtype and on its own device. The
/// memory of the first one is not written.
class ReplacedValues {
 public:
  explicit ReplacedValues(const std::vector<std::pair<at::Tensor, at::Tensor>>& values) {
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> others;  // all of them before the first change: a device may have no memory for one
    for (const auto& [tensor, other] : values) {
      others.push_back(other.to(tensor.options()));
      before_.emplace_back(tensor, tensor.tensor_data());
    }
    for (std::size_t i = 0; i < others.size(); ++i) {
      before_[i].first.set_data(others[i]);
    }
  }
  ~ReplacedValues() {
    for (auto& [tensor, data] : before_) {
      tensor.set_data(data);
    }
  }
  ReplacedValues(const ReplacedValues&) = delete;
  ReplacedValues& operator=(const ReplacedValues&) = delete;

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> before_{};
};

}  // namespace lockstep
