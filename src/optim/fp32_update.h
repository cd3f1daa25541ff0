// Updates of bfloat16 parameters that are calculated in fp32 and rounded at random.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// The tensors of an update: values, gradients, then states. A list has one tensor for each parameter, in the same
/// order, or none. A tensor may be undefined.
using UpdateLists = std::vector<std::vector<at::Tensor>>;

/// What one call of an update may take.
enum class UpdateUnit {
  parameters,  ///< whole parameters
  elements,    ///< parts of parameters too, because the update treats each element by itself
};

/// How an update is rounded.
struct UpdateRounding {
  std::uint64_t key = 0;                      ///< of the step and the optimizer
  std::span<const std::int64_t> positions{};  ///< per parameter, see GradientList: which parameters are updated
                                              ///< together then changes no result
};

/// Calls `update` for some of the parameters after the others, so that little memory is needed: with fp32 copies of
/// their bfloat16 tensors, and with the other tensors themselves. Then rounds the copies at random into `lists`, except
/// those of gradients. A number that bfloat16 can hold, such as one that the update left alone, keeps its bits.
void update_in_fp32(const UpdateLists& lists, UpdateUnit unit, const UpdateRounding& rounding,
                    const std::function<void(UpdateLists& part)>& update);

}  // namespace lockstep
