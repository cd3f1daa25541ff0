// The parameters of an optimizer that have gradients, as lists for the fused kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace lockstep {

/// The parameters of one kernel call: same group, device and dtype.
struct GradientList {
  std::size_t group = 0;
  bool is_new = false;    ///< no state before this step
  bool is_small = false;  ///< parameters on the CPU, none of which is worth a second thread
  std::vector<at::Tensor> parameters{};
  std::vector<std::int64_t> positions{};  ///< per parameter: elements of all parameters of the optimizer before it
  std::vector<at::Tensor> values{};       ///< in the order of the parameters: their memory as real numbers
  std::vector<at::Tensor> gradients{};    ///< in the order of the parameters, with the same layout
};

/// A complex tensor as pairs of real numbers in the same memory, which the kernels can process; other tensors
/// unchanged.
at::Tensor as_real(const at::Tensor& tensor);

/// Keeps the lists between steps. The gradients may be new tensors in each step; the lists are rebuilt only if the set
/// of parameters with gradients, their groups or their states change.
class GradientLists {
 public:
  /// The tensor that identifies a state.
  using StateTensor = const at::Tensor& (*)(const torch::optim::OptimizerParamState&);
  explicit GradientLists(StateTensor state_tensor) : state_tensor_(state_tensor) {}

  /// Collects the gradients of this step. Returns true if the lists were rebuilt.
  /// Throws: Error naming a parameter whose memory has gaps or whose gradient is sparse.
  bool take(const torch::optim::Optimizer& optimizer);
  /// The next take() builds new lists.
  void forget() noexcept;
  /// Releases the gradients, so that zero_grad() frees their memory.
  void release() noexcept;

  std::span<const GradientList> lists() const noexcept { return lists_; }

 private:
  struct Member {
    std::size_t group = 0;
    const c10::TensorImpl* parameter = nullptr;
    bool has_gradient = false;
    std::size_t list = 0;
    at::Tensor state{};  // keeps the tensor alive, so that no other state gets its address
  };

  bool take_gradients(const torch::optim::Optimizer& optimizer);
  void rebuild(const torch::optim::Optimizer& optimizer);
  at::Tensor state_of(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter) const;

  StateTensor state_tensor_;
  std::vector<Member> members_{};  // every parameter, in the order of the groups
  std::vector<GradientList> lists_{};
};

}  // namespace lockstep
