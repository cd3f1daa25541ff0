#include <utility>

#include <fmt/format.h>

#include <torch/nn/module.h>

#include <lockstep/plan/plan.h>
#include <lockstep/trainer/monitors.h>

#include "base/option_check.h"

namespace lockstep {

HistogramMonitor::HistogramMonitor(HistogramMonitorOptions options) : options_(std::move(options)) {
  OptionCheck("HistogramMonitor")
      .expect("every_reports", options_.every_reports, options_.every_reports >= 1, "1 or more")
      .throw_problems();
}

void HistogramMonitor::on(const StageContext& context) {
  if (context.stage == Stage::fit_start) {
    reports_ = 0;
    return;
  }
  const std::int64_t window = context.plan.config.report.every_steps;
  const bool is_due = window > 0 ? context.state.step % (window * options_.every_reports) == 0
                                 : ++reports_ % options_.every_reports == 0;
  if (!is_due) {
    return;
  }
  for (const auto& item : context.module.named_parameters()) {
    const at::Tensor& parameter = item.value();
    if (!parameter.requires_grad() || parameter.numel() == 0) {
      continue;
    }
    if (options_.parameters) {
      context.log_histogram(fmt::format("parameters/{}", item.key()), parameter);
    }
    if (const at::Tensor& gradient = parameter.grad(); options_.gradients && gradient.defined()) {
      context.log_histogram(fmt::format("gradients/{}", item.key()),
                            gradient.is_sparse() ? gradient.to_dense() : gradient);
    }
  }
}

}  // namespace lockstep
