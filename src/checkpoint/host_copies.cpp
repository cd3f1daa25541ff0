#include "checkpoint/host_copies.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/mapped.h"

namespace lockstep {
namespace {

constexpr std::int64_t kAlignment = 64;

std::int64_t aligned(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::int64_t power_of_two(std::int64_t bytes) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(bytes)));
}

std::int64_t total(const std::vector<std::int64_t>& blocks) {
  return std::accumulate(blocks.begin(), blocks.end(), std::int64_t{0});
}

/// Puts each tensor, the largest first, into the first block of `block_size` that has room.
PinnedLayout pack_into(std::int64_t block_size, std::span<const std::int64_t> sizes,
                       std::span<const std::size_t> largest_first) {
  PinnedLayout layout;
  layout.places.resize(sizes.size());
  for (const std::size_t i : largest_first) {
    const std::int64_t bytes = aligned(sizes[i]);
    auto block = std::find_if(layout.blocks.begin(), layout.blocks.end(),
                              [&](std::int64_t used) { return used + bytes <= block_size; });
    if (block == layout.blocks.end()) {
      block = layout.blocks.insert(block, 0);
    }
    layout.places[i] = {.block = static_cast<std::size_t>(block - layout.blocks.begin()), .offset = *block};
    *block += bytes;
  }
  std::transform(layout.blocks.begin(), layout.blocks.end(), layout.blocks.begin(), power_of_two);
  return layout;
}

bool has_room_for(const at::Tensor& copy, const at::Tensor& tensor) {
  return copy.defined() && copy.scalar_type() == tensor.scalar_type() && copy.sizes() == tensor.sizes() &&
         (tensor.is_cpu() || tensor.numel() == 0 || copy.is_pinned());
}

bool have_room_for(const NamedTensors& copies, const NamedTensors& tensors) {
  return std::equal(copies.begin(), copies.end(), tensors.begin(), tensors.end(),
                    [](const auto& copy, const auto& tensor) { return has_room_for(copy.second, tensor.second); });
}

}  // namespace

PinnedLayout pack_pinned(std::span<const std::int64_t> sizes) {
  std::vector<std::size_t> largest_first(sizes.size());
  std::iota(largest_first.begin(), largest_first.end(), std::size_t{0});
  std::stable_sort(largest_first.begin(), largest_first.end(),
                   [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
  if (sizes.empty()) {
    return {};
  }
  const std::int64_t all = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0},
                                           [](auto sum, auto size) { return sum + aligned(size); });
  PinnedLayout best;
  for (std::int64_t size = power_of_two(aligned(sizes[largest_first.front()])); size < 2 * all; size *= 2) {
    PinnedLayout layout = pack_into(size, sizes, largest_first);
    if (best.blocks.empty() || total(layout.blocks) < total(best.blocks)) {
      best = std::move(layout);
    }
  }
  return best;
}

const CheckpointContents& HostCopies::take(const CheckpointContents& live) {
  make_room(live);
  copies_.values = live.values;
  copies_.tied_names = live.tied_names;
  std::optional<c10::Device> device;
  for (const auto& [file, tensors] : live.tensors) {
    NamedTensors& copies = copies_.tensors[file];
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto& [name, tensor] = tensors[i];
      copies[i].first = name;
      copies[i].second.copy_(tensor.detach(), /*non_blocking=*/!tensor.is_cpu());
      if (!tensor.is_cpu()) {
        device = tensor.device();
      }
    }
  }
  if (device) {  // one wait for all
    c10::Event copied(device->type());
    copied.record(c10::impl::VirtualGuardImpl(device->type()).getStream(*device));
    copied.synchronize();
  }
  return copies_;
}

void HostCopies::make_room(const CheckpointContents& live) {
  if (std::equal(copies_.tensors.begin(), copies_.tensors.end(), live.tensors.begin(), live.tensors.end(),
                 [](const auto& copies, const auto& tensors) {
                   return copies.first == tensors.first && have_room_for(copies.second, tensors.second);
                 })) {
    return;
  }
  copies_ = {};
  std::vector<std::int64_t> sizes;
  for (const auto& [file, tensors] : live.tensors) {
    for (const auto& [name, tensor] : tensors) {
      if (!tensor.is_cpu() && tensor.numel() > 0) {
        sizes.push_back(static_cast<std::int64_t>(tensor.nbytes()));
      }
    }
  }
  const PinnedLayout layout = pack_pinned(sizes);
  const auto blocks = mapped(layout.blocks, [](std::int64_t bytes) {
    return at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(true));
  });
  auto place = layout.places.begin();
  for (const auto& [file, tensors] : live.tensors) {
    for (const auto& [name, tensor] : tensors) {
      at::Tensor copy;
      if (tensor.is_cpu() || tensor.numel() == 0) {
        copy = at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()));
      } else {
        copy = blocks[place->block]
                   .narrow(0, place->offset, static_cast<std::int64_t>(tensor.nbytes()))
                   .view(tensor.scalar_type())
                   .view(tensor.sizes());
        ++place;
      }
      copies_.tensors[file].emplace_back(name, std::move(copy));
    }
  }
}

}  // namespace lockstep
