// lockstep/optim/precision.h
//
// Precision of the forward pass.
#pragma once

#include <memory>
#include <optional>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <lockstep/config/train_config.h>

namespace [[gnu::visibility("default")]] lockstep {

/// While it exists, forward code of this thread runs in the given precision. The outermost scope clears the cast cache
/// at its end. Restores the previous settings.
class [[nodiscard]] AutocastScope {
 public:
  AutocastScope(Precision precision, c10::DeviceType device);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  bool active_;
  c10::DeviceType device_;
  bool was_enabled_ = false;
  bool was_cached_ = false;
  int was_dtype_ = 0;
};

/// dtype of parameters and inputs in this precision; nullopt: they keep theirs.
std::optional<c10::ScalarType> parameter_dtype(Precision precision) noexcept;

/// The settings of LibTorch that a configuration asks for: matmul_precision, deterministic, benchmark, detect_anomaly.
/// They apply to the whole process. Scopes in several threads need the same values, and the last one restores the
/// previous settings; in one thread an inner scope may have other values. Throws: ConfigError (a scope in another
/// thread has other values; a matmul_precision after calls of at::Context::setFloat32Precision).
class [[nodiscard]] NumericsScope {
 public:
  explicit NumericsScope(const TrainConfig& config);
  ~NumericsScope();
  NumericsScope(const NumericsScope&) = delete;
  NumericsScope& operator=(const NumericsScope&) = delete;

 private:
  struct Settings;
  std::unique_ptr<Settings> before_;
};

}  // namespace lockstep
