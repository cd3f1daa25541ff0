#include "trainer/output_check.h"

#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include <ATen/Dispatch.h>
#include <ATen/core/Tensor.h>

#include <lockstep/base/error.h>

#include "tensor/shape_text.h"

namespace lockstep {
namespace {

[[noreturn]] void throw_shape(std::string_view what, const at::Tensor& found, const char* hint) {
  throw Error(fmt::format("{} has shape {}, expected a scalar", what, shape_text(found.sizes())), hint);
}

[[noreturn]] void throw_complex(std::string_view what) {
  throw Error(fmt::format("{} is complex, expected a real number", what),
              "return its absolute value, or the real part");
}

void check_count(const at::Tensor& count) {
  if (count.dim() != 0) {
    throw_shape("StepOutput::count", count, "return a 0-dim tensor, for example with sum()");
  }
  if (!count.is_cpu()) {
    return;
  }
  // item() would be an operation of LibTorch for each micro-batch, so the value is read directly.
  const double value =
      AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, count.scalar_type(), "StepOutput::count",
                                 [&] { return static_cast<double>(*count.const_data_ptr<scalar_t>()); });
  if (!(value >= 0)) {
    throw DataError(fmt::format("StepOutput::count is {}, expected 0 or more", value),
                    "it is the number by which the loss was divided, for example of the tokens that count");
  }
  if (std::isinf(value)) {
    throw DataError("StepOutput::count is inf, expected a finite number",
                    "a sum in half precision ends at 65504: use sum(torch::kFloat)");
  }
}

}  // namespace

void check_output(const StepOutput& output) {
  if (output.loss.defined() && output.loss.dim() != 0) {
    throw_shape("the loss", output.loss, "reduce it over the batch, for example with mean()");
  }
  if (output.loss.defined() && output.loss.is_complex()) {
    throw_complex("the loss");
  }
  if (output.count.defined()) {
    check_count(output.count);
  }
  for (const auto& [name, value] : output.metrics) {
    if (!value.defined()) {
      throw Error(fmt::format("metric {} is an undefined tensor, expected a scalar", name),
                  "return one number, or leave the metric out of this output");
    }
    if (value.numel() != 1) {
      throw_shape("metric " + name, value, "return one number, for example the mean over the batch");
    }
    if (value.is_complex()) {
      throw_complex("metric " + name);
    }
  }
}

}  // namespace lockstep
