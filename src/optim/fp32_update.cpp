#include "optim/fp32_update.h"

#include <algorithm>
#include <cstddef>

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>

#include "base/splitmix.h"
#include "tensor/stochastic_rounding.h"

namespace lockstep {
namespace {

constexpr std::size_t kValues = 0;
constexpr std::size_t kGradients = 1;

// Elements of one call: the caches of a CPU hold them; a GPU is busy with them.
std::int64_t elements_of_a_part(const at::Tensor& value) { return value.is_cpu() ? 1 << 17 : 1 << 22; }

bool is_rounded(const at::Tensor& tensor) { return tensor.defined() && tensor.scalar_type() == at::kBFloat16; }

/// The memory of a tensor without gaps, in its order.
at::Tensor flat(const at::Tensor& tensor) { return tensor.as_strided({tensor.numel()}, {1}); }

/// fp32 copies of the bfloat16 tensors of a list, one behind the other in memory.
class Fp32Copies {
 public:
  /// Puts the copies into `list`.
  Fp32Copies(std::vector<at::Tensor>& list, std::span<const std::int64_t> positions) {
    std::int64_t size = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (is_rounded(list[i])) {
        originals_.push_back(list[i]);
        positions_.push_back(positions[i]);
        size += list[i].numel();
      }
    }
    if (originals_.empty()) {
      return;
    }
    memory_ = at::empty({size}, originals_.front().options().dtype(at::kFloat).requires_grad(false));
    const std::vector<at::Tensor> copies = views_of(memory_);
    at::_foreach_copy_(copies, originals_);
    auto next = copies.begin();
    for (at::Tensor& tensor : list) {
      if (is_rounded(tensor)) {
        tensor = *next++;
      }
    }
  }

  void round_into_originals(std::uint64_t key) const {
    if (originals_.empty()) {
      return;
    }
    const at::Tensor rounded = at::empty(memory_.sizes(), memory_.options().dtype(at::kBFloat16));
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < originals_.size();) {
      // One call for all that follow each other in the order of the optimizer.
      const std::int64_t position = positions_[i];
      std::int64_t size = 0;
      do {
        size += originals_[i].numel();
        ++i;
      } while (i < originals_.size() && positions_[i] == position + size);
      round_into(rounded.narrow(0, begin, size), memory_.narrow(0, begin, size), key_from(key, position));
      begin += size;
    }
    at::_foreach_copy_(originals_, views_of(rounded));
  }

 private:
  /// With the shapes and strides of the originals.
  std::vector<at::Tensor> views_of(const at::Tensor& memory) const {
    std::vector<at::Tensor> views;
    std::int64_t begin = 0;
    for (const at::Tensor& original : originals_) {
      views.push_back(memory.as_strided(original.sizes(), original.strides(), begin));
      begin += original.numel();
    }
    return views;
  }

  std::vector<at::Tensor> originals_{};
  std::vector<std::int64_t> positions_{};
  at::Tensor memory_{};
};

void update_part(UpdateLists part, std::span<const std::int64_t> positions, std::uint64_t key,
                 const std::function<void(UpdateLists& part)>& update) {
  std::vector<Fp32Copies> copies;
  copies.reserve(part.size());
  for (std::vector<at::Tensor>& list : part) {
    copies.emplace_back(list, positions);
  }
  update(part);
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (i != kGradients) {
      copies[i].round_into_originals(splitmix(key ^ i));
    }
  }
}

/// Elements [begin, end) of one parameter. Tensors that are not rounded, such as counters, stay whole.
UpdateLists elements_of(const UpdateLists& lists, std::size_t member, std::int64_t begin, std::int64_t end) {
  UpdateLists part(lists.size());
  for (std::size_t i = 0; i < lists.size(); ++i) {
    if (!lists[i].empty()) {
      const at::Tensor& tensor = lists[i][member];
      part[i].push_back(is_rounded(tensor) ? flat(tensor).slice(0, begin, end) : tensor);
    }
  }
  return part;
}

UpdateLists members_of(const UpdateLists& lists, std::size_t begin, std::size_t end) {
  UpdateLists part(lists.size());
  for (std::size_t i = 0; i < lists.size(); ++i) {
    if (!lists[i].empty()) {
      const auto first = lists[i].begin();
      part[i].assign(first + static_cast<std::ptrdiff_t>(begin), first + static_cast<std::ptrdiff_t>(end));
    }
  }
  return part;
}

}  // namespace

void update_in_fp32(const UpdateLists& lists, UpdateUnit unit, const UpdateRounding& rounding,
                    const std::function<void(UpdateLists& part)>& update) {
  const std::vector<at::Tensor>& values = lists[kValues];
  for (std::size_t begin = 0; begin < values.size();) {
    const std::int64_t limit = elements_of_a_part(values[begin]);
    if (unit == UpdateUnit::elements && values[begin].numel() > limit) {
      for (std::int64_t first = 0; first < values[begin].numel(); first += limit) {
        const std::int64_t position = rounding.positions[begin] + first;
        update_part(elements_of(lists, begin, first, std::min(first + limit, values[begin].numel())), {&position, 1},
                    rounding.key, update);
      }
      ++begin;
      continue;
    }
    std::size_t end = begin;
    for (std::int64_t size = 0; end < values.size() && (end == begin || size + values[end].numel() <= limit); ++end) {
      size += values[end].numel();
    }
    update_part(members_of(lists, begin, end), rounding.positions.subspan(begin, end - begin), rounding.key, update);
    begin = end;
  }
}

}  // namespace lockstep
