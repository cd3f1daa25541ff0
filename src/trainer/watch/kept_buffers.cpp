#include "trainer/watch/kept_buffers.h"

#include <algorithm>

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
  const auto found = buffers();
  const auto is_of = [](const Group& group, const auto& of_dtype) {
    const auto& [dtype, tensors] = of_dtype;
    return std::ranges::equal(group.buffers, tensors,
                              [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); }) &&
           group.before.all.scalar_type() == dtype && have_same_sizes(tensors, group.before.parts);
  };
  if (!std::ranges::equal(groups_, found, is_of)) {
    groups_.clear();
    for (const auto& [dtype, tensors] : found) {
      groups_.push_back({.buffers = tensors, .before = Copies(tensors), .now = Copies(tensors)});
    }
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
std::map<at::ScalarType, std::vector<at::Tensor>> KeptBuffers::buffers() const {
  std::map<at::ScalarType, std::vector<at::Tensor>> found;
  for_each_module(module_, [&](const torch::nn::Module& part, const auto&) {
    for (const at::Tensor& buffer : part.buffers(/*recurse=*/false)) {
      if (buffer.layout() == at::kStrided && buffer.device() == device_ && buffer.numel() > 0 &&
          at::has_internal_overlap(buffer) != at::MemOverlap::Yes) {
        found[buffer.scalar_type()].push_back(buffer);
      }
    }
  });
  return found;
}

}  // namespace lockstep
