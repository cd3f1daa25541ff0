// The curves of a learning-rate schedule: their settings and formulas. Torch-free.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/config/lr_schedule.h>

namespace lockstep {

/// "500", "2ep", "10%".
struct ScheduleLength {
  enum class Unit { steps, epochs, part };
  double value = 0;
  Unit unit = Unit::steps;
};

/// Whole steps for epochs and parts.
double in_steps(const ScheduleLength& length, const ScheduleStep& run);

/// One step as its phase sees it.
struct CurvePoint {
  double done = 0;       ///< steps of the phase before this one
  double length = 0;     ///< of the phase
  double increment = 1;  ///< steps between two changes: with per=epoch those of an epoch
  bool ended = false;
  const ScheduleStep& run;

  double part() const { return ended || length <= 0 ? 1 : done / length; }
};

using Curve = std::function<double(const CurvePoint&)>;

struct CurveSetting {
  enum class Type { number, length, places };
  std::string_view name{};
  Type type = Type::number;
  std::optional<double> preset{};  ///< nullopt: the setting is required, except `optional` ones
  double minimum = 0;
  double maximum = 1e9;
  bool above_minimum = false;  ///< the minimum itself is refused
  bool optional = false;
};

/// The settings of one phase: those that are written, and the presets of the others.
class CurveValues {
 public:
  void set(std::string_view name, std::vector<ScheduleLength> lengths) {
    values_.emplace_back(name, std::move(lengths));
  }
  bool has(std::string_view name) const { return find(name) != nullptr; }
  double number(std::string_view name) const { return length(name).value; }
  ScheduleLength length(std::string_view name) const { return places(name).front(); }
  const std::vector<ScheduleLength>& places(std::string_view name) const { return *find(name); }
  std::vector<ScheduleLength> all() const {
    std::vector<ScheduleLength> all;
    for (const auto& [name, lengths] : values_) {
      all.insert(all.end(), lengths.begin(), lengths.end());
    }
    return all;
  }

 private:
  const std::vector<ScheduleLength>* find(std::string_view name) const {
    for (const auto& [known, lengths] : values_) {
      if (known == name) {
        return &lengths;
      }
    }
    return nullptr;
  }

  std::vector<std::pair<std::string_view, std::vector<ScheduleLength>>> values_{};
};

struct CurveKind {
  std::string_view name{};
  Curve (*make)(const CurveValues&) = nullptr;
  std::span<const CurveSetting> settings{};
  std::string_view main{};  ///< the setting of a value without a name
  bool fills = false;       ///< its values depend on the length of the phase
};

/// All of them.
std::span<const CurveKind> curve_kinds();

// A public header declares it, and so would export it.
struct [[gnu::visibility("hidden")]] LrPhase;

struct LrPhase {
  std::string text{};
  Curve curve{};
  bool fills = false;
  bool per_epoch = false;
  std::optional<ScheduleLength> length{};  ///< for=
  std::optional<ScheduleLength> until{};
  std::vector<ScheduleLength> lengths{};   ///< of all its settings
  std::vector<ScheduleLength> divisors{};  ///< must be one step or more

  bool has_end() const { return length || until; }
  double end(double start, const ScheduleStep& run) const {
    if (length) {
      return start + in_steps(*length, run);
    }
    return std::max(start, until ? in_steps(*until, run) : static_cast<double>(run.total_steps));
  }
};

}  // namespace lockstep
