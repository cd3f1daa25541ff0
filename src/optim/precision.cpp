#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <lockstep/optim/precision.h>

#include "world/process_group.h"

namespace lockstep {
namespace {

bool is_mixed(Precision precision) { return precision == Precision::bf16_mixed || precision == Precision::fp16_mixed; }

const char* name_of(at::Float32MatmulPrecision precision) {
  switch (precision) {
    case at::Float32MatmulPrecision::HIGH:
      return "high";
    case at::Float32MatmulPrecision::MEDIUM:
      return "medium";
    case at::Float32MatmulPrecision::HIGHEST:
      break;
  }
  return "highest";
}

}  // namespace

AutocastScope::AutocastScope(Precision precision, c10::DeviceType device)
    : active_(is_mixed(precision)), device_(device) {
  if (!active_) {
    return;
  }
  was_enabled_ = at::autocast::is_autocast_enabled(device_);
  was_cached_ = at::autocast::is_autocast_cache_enabled();
  was_dtype_ = static_cast<int>(at::autocast::get_autocast_dtype(device_));
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::set_autocast_cache_enabled(true);
  at::autocast::set_autocast_dtype(device_, precision == Precision::bf16_mixed ? at::kBFloat16 : at::kHalf);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  if (!active_) {
    return;
  }
  if (at::autocast::decrement_nesting() == 0) {
    at::autocast::clear_cache();
  }
  at::autocast::set_autocast_dtype(device_, static_cast<at::ScalarType>(was_dtype_));
  at::autocast::set_autocast_cache_enabled(was_cached_);
  at::autocast::set_autocast_enabled(device_, was_enabled_);
}

std::optional<c10::ScalarType> parameter_dtype(Precision precision) noexcept {
  switch (precision) {
    case Precision::fp64:
      return at::kDouble;
    case Precision::bf16:
      return at::kBFloat16;
    case Precision::fp16:
      return at::kHalf;
    case Precision::fp32:
    case Precision::bf16_mixed:
    case Precision::fp16_mixed:
      break;
  }
  return std::nullopt;
}

struct NumericsScope::Settings {
  bool deterministic = at::globalContext().deterministicAlgorithms();
  bool only_warns = at::globalContext().deterministicAlgorithmsWarnOnly();
  bool deterministic_cudnn = at::globalContext().deterministicCuDNN();
  bool benchmark = at::globalContext().benchmarkCuDNN();
  at::Float32MatmulPrecision matmul = at::globalContext().float32MatmulPrecision();
  bool detects_anomaly = torch::autograd::AnomalyMode::is_enabled();
  bool checks_nan = torch::autograd::AnomalyMode::should_check_nan();
  std::optional<DeterministicCuda> cuda{};
};

// A default leaves the setting as the program has made it.
NumericsScope::NumericsScope(const TrainConfig& config) {
  if (config.matmul_precision == MatmulPrecision::highest && config.deterministic == Determinism::off &&
      !config.benchmark && !config.detect_anomaly) {
    return;
  }
  before_ = std::make_unique<Settings>();
  at::Context& context = at::globalContext();
  if (config.matmul_precision != MatmulPrecision::highest) {
    context.setFloat32MatmulPrecision(config.matmul_precision == MatmulPrecision::high ? "high" : "medium");
  }
  if (config.deterministic != Determinism::off) {
    before_->cuda.emplace();
    context.setDeterministicAlgorithms(true, /*warn_only=*/config.deterministic == Determinism::warn);
    context.setDeterministicCuDNN(true);
  }
  if (config.benchmark) {
    context.setBenchmarkCuDNN(true);
  }
  if (config.detect_anomaly) {
    torch::autograd::AnomalyMode::set_enabled(true);
  }
}

NumericsScope::~NumericsScope() {
  if (before_ == nullptr) {
    return;
  }
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(before_->deterministic, before_->only_warns);
  context.setDeterministicCuDNN(before_->deterministic_cudnn);
  context.setBenchmarkCuDNN(before_->benchmark);
  if (context.float32MatmulPrecision() != before_->matmul) {
    context.setFloat32MatmulPrecision(name_of(before_->matmul));
  }
  torch::autograd::AnomalyMode::set_enabled(before_->detects_anomaly, before_->checks_nan);
}

}  // namespace lockstep
