// lockstep/data/batch.h
#pragma once

#include <any>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>

#include <lockstep/world/named_tensors.h>

namespace [[gnu::visibility("default")]] lockstep {

/// One micro-batch. `input` and `target` are the common pair; anything further is in `fields` (nested structures use
/// dotted names, "meta.mask", as state dicts do); what is not a tensor is in `extra` and never leaves the host.
struct Batch {
  at::Tensor input{};
  at::Tensor target{};
  NamedTensors fields{};
  at::Tensor weight{};  ///< Shape: [N] or undefined; per-sample weights, for the task's loss
  std::any extra{};
  std::vector<std::int64_t> ids{};  ///< data set indices of the samples; empty for iterable data
  std::int64_t samples = 0;         ///< 0: filled in by the loader (ids.size(), else input.size(0))
  std::size_t loader = 0;           ///< which of the loaders of a CombinedLoader it comes from

  /// One of `fields`. Throws: DataError naming those there are.
  const at::Tensor& operator[](std::string_view name) const;
  bool has(std::string_view name) const;
  /// A copy whose tensors are on `device`; those that are there already are shared. Copies to the CPU are waited for.
  Batch to(c10::Device device, bool non_blocking = true) const;
  /// A copy whose tensors are in page-locked memory.
  Batch pinned() const;
};

}  // namespace lockstep
