#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <lockstep/base/error.h>
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

// LibTorch throws if the program has given the backends different values with setFloat32Precision().
at::Float32MatmulPrecision matmul_precision() {
  try {
    return at::globalContext().float32MatmulPrecision();
  } catch (const c10::Error&) {
    throw ConfigError(
        "matmul_precision is set, and the program has set the precision of fp32 operations per backend with "
        "at::Context::setFloat32Precision(): lockstep could not restore both",
        "use one of the two: leave matmul_precision at highest, or remove the calls");
  }
}

// What a scope changes; a default leaves the setting as the program has made it.
struct Wanted {
  MatmulPrecision matmul = MatmulPrecision::highest;
  Determinism deterministic = Determinism::off;
  bool benchmark = false;
  bool detect_anomaly = false;

  bool operator==(const Wanted&) const = default;
};

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

// The settings of LibTorch before a scope.
struct NumericsScope::Settings {
  struct Scope {
    Wanted wanted;
    std::thread::id thread;
    Settings* before;
  };
  // LibTorch has these settings once per process, so the scopes of all threads know each other.
  struct Scopes {
    std::mutex mutex;
    std::vector<Scope> existing;  // oldest first
  };
  static Scopes& scopes_of_process() {
    static Scopes scopes;
    return scopes;
  }

  bool deterministic = at::globalContext().deterministicAlgorithms();
  bool only_warns = at::globalContext().deterministicAlgorithmsWarnOnly();
  bool deterministic_cudnn = at::globalContext().deterministicCuDNN();
  bool benchmark = at::globalContext().benchmarkCuDNN();
  bool detects_anomaly = torch::autograd::AnomalyMode::is_enabled();
  bool checks_nan = torch::autograd::AnomalyMode::should_check_nan();
  std::optional<at::Float32MatmulPrecision> matmul{};  // only if the scope sets it, see matmul_precision()
  std::unique_ptr<DeterministicCuda> cuda{};
};

NumericsScope::NumericsScope(const TrainConfig& config) {
  const Wanted wanted{.matmul = config.matmul_precision,
                      .deterministic = config.deterministic,
                      .benchmark = config.benchmark,
                      .detect_anomaly = config.detect_anomaly};
  if (wanted == Wanted{}) {
    return;
  }
  Settings::Scopes& scopes = Settings::scopes_of_process();
  const std::scoped_lock lock(scopes.mutex);
  const std::thread::id thread = std::this_thread::get_id();
  for (const Settings::Scope& other : scopes.existing) {
    if (other.wanted != wanted && other.thread != thread) {
      throw ConfigError(
          "a training in another thread of this process has other values of matmul_precision, deterministic, benchmark "
          "or detect_anomaly",
          "LibTorch has these settings once per process: give trainings that run at the same time the same values, or "
          "run them one after the other");
    }
  }
  auto before = std::make_unique<Settings>();
  if (wanted.matmul != MatmulPrecision::highest) {
    before->matmul = matmul_precision();
  }
  if (wanted.deterministic != Determinism::off) {
    before->cuda = std::make_unique<DeterministicCuda>();
  }
  scopes.existing.push_back({.wanted = wanted, .thread = thread, .before = before.get()});
  before_ = std::move(before);
  at::Context& context = at::globalContext();
  if (wanted.matmul != MatmulPrecision::highest) {
    context.setFloat32MatmulPrecision(wanted.matmul == MatmulPrecision::high ? "high" : "medium");
  }
  if (wanted.deterministic != Determinism::off) {
    context.setDeterministicAlgorithms(true, /*warn_only=*/wanted.deterministic == Determinism::warn);
    context.setDeterministicCuDNN(true);
  }
  if (wanted.benchmark) {
    context.setBenchmarkCuDNN(true);
  }
  if (wanted.detect_anomaly) {
    torch::autograd::AnomalyMode::set_enabled(true);
  }
}

// Calls no getter of LibTorch that throws.
NumericsScope::~NumericsScope() {
  if (before_ == nullptr) {
    return;
  }
  Settings::Scopes& scopes = Settings::scopes_of_process();
  const std::scoped_lock lock(scopes.mutex);
  const auto mine = std::ranges::find(scopes.existing, before_.get(), &Settings::Scope::before);
  const auto next = scopes.existing.erase(mine);
  if (next != scopes.existing.end()) {  // it goes on with the settings, and restores what was before both
    Settings& others = *next->before;
    if (!before_->matmul) {
      before_->matmul = others.matmul;
    }
    if (before_->cuda == nullptr) {
      before_->cuda = std::move(others.cuda);
    }
    others = std::move(*before_);
    return;
  }
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(before_->deterministic, before_->only_warns);
  context.setDeterministicCuDNN(before_->deterministic_cudnn);
  context.setBenchmarkCuDNN(before_->benchmark);
  if (before_->matmul) {
    context.setFloat32MatmulPrecision(name_of(*before_->matmul));
  }
  torch::autograd::AnomalyMode::set_enabled(before_->detects_anomaly, before_->checks_nan);
}

}  // namespace lockstep
