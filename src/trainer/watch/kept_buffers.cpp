#include "trainer/watch/kept_buffers.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>

#include "parallel/for_each_module.h"
#include "tensor/host_number.h"

namespace lockstep {
namespace {

bool have_same_sizes(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::ranges::equal(a, b, [](const at::Tensor& x, const at::Tensor& y) { return x.sizes() == y.sizes(); });
}

}  // namespace

KeptBuffers::Copies::Copies(const std::vector<at::Tensor>& of) {
  std::int64_t count = 0;
  for (const at::Tensor& tensor : of) {
    count += tensor.numel();
  }
  all = at::empty({count}, of.front().options().requires_grad(false));
  parts = at::unflatten_dense_tensors(all, of);
}

void KeptBuffers::take() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> found = buffers();
  const auto fits = [](const Group& group) { return have_same_sizes(group.buffers, group.before.parts); };
  if (!std::ranges::equal(found, known_, [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); }) ||
      !std::ranges::all_of(groups_, fits)) {
    std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
    for (const at::Tensor& buffer : found) {
      by_dtype[buffer.scalar_type()].push_back(buffer);
    }
    groups_.clear();
    for (const auto& [dtype, tensors] : by_dtype) {
      groups_.push_back({.buffers = tensors, .before = Copies(tensors), .now = Copies(tensors)});
    }
    known_ = std::move(found);
  }
  for (const Group& group : groups_) {
    at::_foreach_copy_(group.before.parts, group.buffers);
  }
}

void KeptBuffers::put_back_if(const at::Tensor& left_out) {
  const auto on_host = number_on_host(left_out);
  if (!left_out.defined() || on_host == 0) {
    return;
  }
  const at::NoGradGuard no_grad;
  const at::Tensor is_left_out = left_out > 0;
  for (Group& group : groups_) {
    if (!have_same_sizes(group.buffers, group.before.parts)) {
      continue;  // the forward gave one of them another shape, so the old values do not fit
    }
    if (on_host) {
      at::_foreach_copy_(group.buffers, group.before.parts);
      continue;
    }
    at::_foreach_copy_(group.now.parts, group.buffers);
    at::where_out(group.now.all, is_left_out, group.before.all, group.now.all);
    at::_foreach_copy_(group.buffers, group.now.parts);
  }
}

// Nobody can write an expanded tensor. A sparse one has no fixed size.
std::vector<at::Tensor> KeptBuffers::buffers() const {
  std::vector<at::Tensor> found;
  for_each_module(module_, [&](const torch::nn::Module& part, const auto&) {
    const auto is_kept = [&](const at::Tensor& buffer) {
      return buffer.layout() == at::kStrided && buffer.device() == device_ && buffer.numel() > 0 &&
             at::has_internal_overlap(buffer) != at::MemOverlap::Yes;
    };
    std::ranges::copy_if(part.buffers(/*recurse=*/false), std::back_inserter(found), is_kept);
  });
  return found;
}

}  // namespace lockstep
