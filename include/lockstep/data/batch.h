// lockstep/data/batch.h
//
// The tensors of some samples: what a data set returns, and what a task gets.
#pragma once

#include <any>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include <c10/core/Device.h>

#include <lockstep/tensor/named_tensors.h>

namespace [[gnu::visibility("default")]] lockstep {

/// One micro-batch. `input` and `target` are the common pair; `fields` holds other tensors (nested structures use
/// dotted names such as "meta.mask", as state dicts do); `extra` holds other values and stays on the host.
struct Batch {
  at::Tensor input{};
  at::Tensor target{};
  NamedTensors fields{};
  at::Tensor weight{};  ///< Shape: [N] or undefined; per-sample weights, for the task's loss
  std::any extra{};
  std::vector<std::int64_t> ids{};  ///< data set indices of the samples; empty for streams
  std::int64_t samples = 0;         ///< 0: a DataLoader sets it (ids.size(), else input.size(0))
  std::size_t loader = 0;           ///< index of its loader in a CombinedLoader
  /// Rows, in growing order, that stand for bad samples; `ids` has those that replace them. See data.max_bad_samples.
  std::vector<std::int64_t> replaced{};
  std::vector<std::int64_t> bad_ids{};  ///< of the bad samples, for each of these rows

  /// One of `fields`. Throws: DataError listing the available fields.
  const at::Tensor& operator[](std::string_view name) const&;
  at::Tensor operator[](std::string_view name) &&;
  bool has(std::string_view name) const;
  /// A copy with all tensors on `device`; tensors that are already there are shared. A copy to the CPU is synchronous.
  [[nodiscard]] Batch to(c10::Device device, bool non_blocking = true) const;
};

}  // namespace lockstep
