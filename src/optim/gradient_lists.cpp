#include "optim/gradient_lists.h"

#include <algorithm>

#include <fmt/format.h>

#include <ATen/TensorIterator.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>

#include <lockstep/base/error.h>

#include "base/assertion.h"

namespace lockstep {
namespace {

/// The kernels ignore strides and treat memory as one array; dimensions of size 1 do not matter.
bool same_layout(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) {
    return false;
  }
  for (std::int64_t d = 0; d < a.dim(); ++d) {
    if (a.size(d) > 1 && a.stride(d) != b.stride(d)) {
      return false;
    }
  }
  return true;
}

// The fused kernels of the CPU start all threads for each tensor, however small. Starting them costs more than a small
// tensor: 200 tensors of 64 elements took 400 us with two threads and 16 us with one.
bool is_small(const at::Tensor& parameter) {
  return parameter.is_cpu() && parameter.numel() < at::internal::GRAIN_SIZE;
}

at::Tensor laid_out_like(const at::Tensor& parameter, const at::Tensor& gradient) {
  return same_layout(parameter, gradient) && !gradient.is_conj() ? gradient : at::empty_like(parameter).copy_(gradient);
}

}  // namespace

at::Tensor as_real(const at::Tensor& tensor) { return tensor.is_complex() ? at::view_as_real(tensor) : tensor; }

bool GradientLists::take(const torch::optim::Optimizer& optimizer) {
  if (take_gradients(optimizer)) {
    return false;
  }
  rebuild(optimizer);
  const bool taken = take_gradients(optimizer);
  LOCKSTEP_ASSERT(taken, "the lists were just built for this optimizer");
  return true;
}

void GradientLists::forget() noexcept {
  members_.clear();
  lists_.clear();
}

void GradientLists::release() noexcept {
  for (GradientList& list : lists_) {
    list.values.clear();
    list.gradients.clear();
  }
}

bool GradientLists::take_gradients(const torch::optim::Optimizer& optimizer) {
  release();
  auto member = members_.begin();
  const auto& groups = optimizer.param_groups();
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (const at::Tensor& parameter : groups[group].params()) {
      const at::Tensor& gradient = parameter.grad();
      if (member == members_.end() || member->group != group || member->parameter != parameter.unsafeGetTensorImpl() ||
          member->has_gradient != gradient.defined()) {
        return false;
      }
      if (gradient.defined()) {
        if (!state_of(optimizer, parameter).is_same(member->state)) {
          return false;
        }
        if (gradient.layout() != at::kStrided) {
          const auto index = &parameter - groups[group].params().data();
          throw Error(
              fmt::format("parameter {} of group {}: the gradient is sparse, expected a dense one", index, group),
              "use torch::optim::SGD without momentum for this parameter");
        }
        lists_[member->list].values.push_back(as_real(parameter));
        lists_[member->list].gradients.push_back(as_real(laid_out_like(parameter, gradient)));
      }
      ++member;
    }
  }
  return member == members_.end();
}

void GradientLists::rebuild(const torch::optim::Optimizer& optimizer) {
  forget();
  const auto& groups = optimizer.param_groups();
  std::int64_t position = 0;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (const at::Tensor& parameter : groups[group].params()) {
      Member member{.group = group, .parameter = parameter.unsafeGetTensorImpl()};
      member.has_gradient = parameter.grad().defined();
      if (member.has_gradient) {
        if (!parameter.is_non_overlapping_and_dense()) {
          const auto index = &parameter - groups[group].params().data();
          throw Error(fmt::format("parameter {} of group {}: its memory has gaps, expected dense memory", index, group),
                      "make the tensor contiguous, or use torch::optim for this parameter");
        }
        member.state = state_of(optimizer, parameter);
        const auto fits = [&](const GradientList& list) {
          return list.group == group && list.is_new != member.state.defined() && list.is_small == is_small(parameter) &&
                 list.parameters.front().device() == parameter.device() &&
                 as_real(list.parameters.front()).scalar_type() == as_real(parameter).scalar_type();
        };
        auto list = std::find_if(lists_.begin(), lists_.end(), fits);
        if (list == lists_.end()) {
          list = lists_.insert(
              list, GradientList{.group = group, .is_new = !member.state.defined(), .is_small = is_small(parameter)});
        }
        list->parameters.push_back(parameter);
        list->positions.push_back(position);
        member.list = static_cast<std::size_t>(list - lists_.begin());
      }
      position += parameter.numel();
      members_.push_back(std::move(member));
    }
  }
}

at::Tensor GradientLists::state_of(const torch::optim::Optimizer& optimizer, const at::Tensor& parameter) const {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  return found == optimizer.state().end() ? at::Tensor() : state_tensor_(*found->second);
}

}  // namespace lockstep
