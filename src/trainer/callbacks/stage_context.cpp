// What a callback can add to the reports.
#include <cstdint>
#include <string>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <lockstep/base/error.h>
#include <lockstep/report/metric_sink.h>
#include <lockstep/trainer/callback.h>

#include "tensor/shape_text.h"
#include "trainer/callbacks/callback_list.h"
#include "trainer/output/metric_names.h"

namespace lockstep {
namespace {

constexpr std::int64_t kBuckets = 64;

Histogram histogram_of(const at::Tensor& values) {
  const at::Tensor real = values.is_complex() ? at::view_as_real(values) : values;
  const at::Tensor all = real.detach().to(at::kDouble).flatten();
  const at::Tensor finite = all.masked_select(all.isfinite()).cpu();
  Histogram histogram{.count = static_cast<double>(finite.numel())};
  if (finite.numel() == 0) {
    return histogram;
  }
  histogram.min = finite.min().item<double>();
  histogram.max = finite.max().item<double>();
  histogram.sum = finite.sum().item<double>();
  histogram.sum_of_squares = finite.square().sum().item<double>();
  if (histogram.min == histogram.max) {
    histogram.limits = {histogram.max};
    histogram.counts = {histogram.count};
    return histogram;
  }
  const at::Tensor counts = at::histc(finite, kBuckets, histogram.min, histogram.max);
  histogram.counts.assign(counts.const_data_ptr<double>(), counts.const_data_ptr<double>() + kBuckets);
  const double width = (histogram.max - histogram.min) / static_cast<double>(kBuckets);
  for (std::int64_t i = 1; i <= kBuckets; ++i) {
    histogram.limits.push_back(i == kBuckets ? histogram.max : histogram.min + width * static_cast<double>(i));
  }
  return histogram;
}

Image image_of(std::string_view name, const at::Tensor& image) {
  const at::Tensor planes = image.dim() == 2 ? image.unsqueeze(0) : image;
  if (planes.dim() != 3 || (planes.size(0) != 1 && planes.size(0) != 3) || planes.numel() == 0) {
    throw Error(fmt::format("image {}: found the shape {}, expected [height, width] or [1 or 3, height, width]", name,
                            shape_text(image.sizes())),
                "log one image at a time, with the channels first");
  }
  at::Tensor pixels = planes.detach().permute({1, 2, 0});
  if (pixels.scalar_type() != at::kByte) {
    pixels = pixels.to(at::kDouble).nan_to_num(0).clamp(0, 1).mul(255).round().to(at::kByte);
  }
  pixels = pixels.cpu().contiguous();
  Image made{.width = static_cast<int>(planes.size(2)),
             .height = static_cast<int>(planes.size(1)),
             .channels = static_cast<int>(planes.size(0))};
  made.pixels.assign(reinterpret_cast<const char*>(pixels.const_data_ptr<std::uint8_t>()), pixels.nbytes());
  return made;
}

}  // namespace

void StageContext::log(std::string_view name, double value) const {
  if (log_to == nullptr) {
    throw Error(fmt::format("metric {}: nothing can be logged at {}", name, to_string(stage)), "log at another stage");
  }
  check_metric_name(name);
  const std::string_view prefix = stage == Stage::validation_end ? kValidationPrefix
                                  : stage == Stage::test_end     ? kTestPrefix
                                  : stage == Stage::epoch_report ? kEpochPrefix
                                                                 : std::string_view();
  const std::string full = fmt::format("{}{}", name.starts_with(prefix) ? std::string_view() : prefix, name);
  if (metrics != nullptr && find_metric(*log_to, full) != nullptr) {
    throw Error(fmt::format("metric {} is logged, but this report has one of that name", name), "use another name");
  }
  set_metric(*log_to, full, value);
}

void StageContext::log_text(std::string_view name, std::string_view text) const {
  if (media != nullptr) {
    media->write_text(state.step, name, text);
  }
}

void StageContext::log_image(std::string_view name, const at::Tensor& image) const {
  if (media != nullptr) {
    const c10::NoGradGuard no_grad;
    media->write_image(state.step, name, image_of(name, image));
  }
}

void StageContext::log_histogram(std::string_view name, const at::Tensor& values) const {
  if (media != nullptr) {
    const c10::NoGradGuard no_grad;
    media->write_histogram(state.step, name, histogram_of(values));
  }
}

}  // namespace lockstep
