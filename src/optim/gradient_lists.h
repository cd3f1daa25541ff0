// The parameters of an optimizer that have gradients, as the lists that fused kernels take.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

namespace lockstep {

/// What one kernel call updates: parameters of one group, device and dtype.
struct GradientList {
  std::size_t group = 0;
  bool is_new = false;  ///< no state before this step
  std::vector<at::Tensor> parameters{};
  std::vector<at::Tensor> values{};     ///< beside the parameters: their memory as real numbers
  std::vector<at::Tensor> gradients{};  ///< beside them, and laid out like them
};

/// A complex tensor as pairs of real numbers, which the kernels take: the same memory. Others as they are.
at::Tensor as_real(const at::Tensor& tensor);

/// Keeps the lists from step to step. Gradients may be new tensors every time; the lists are rebuilt only when the set
/// of parameters with gradients, their groups or their states change.
class GradientLists {
 public:
  /// The tensor by which a state is recognised.
  using StateTensor = const at::Tensor& (*)(const torch::optim::OptimizerParamState&);
  explicit GradientLists(StateTensor state_tensor) : state_tensor_(state_tensor) {}

  /// Takes this step's gradients. Returns true when the lists are new ones.
  /// Throws: Error naming a parameter that is not dense in memory or whose gradient is sparse.
  bool take(const torch::optim::Optimizer& optimizer);
  /// Lets go of the gradients, so that zero_grad() frees their memory.
  void release() noexcept;

  std::span<const GradientList> lists() const noexcept { return lists_; }

 private:
  struct Member {
    std::size_t group = 0;
    const c10::TensorImpl* parameter = nullptr;
    bool has_gradient = false;
    std::size_t list = 0;
    at::Tensor state{};  // held, so that its address cannot become another state's
  };

  bool take_gradients(const torch::optim::Optimizer& optimizer);
  void rebuild(const torch::optim::Optimizer& optimizer);
  at::Tensor state_of(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter) const;

  StateTensor state_tensor_;
  std::vector<Member> members_{};  // every parameter, in the order of the groups
  std::vector<GradientList> lists_{};
};

}  // namespace lockstep
