#include "config/lr_curves.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lockstep {
namespace {

/// 1 at 0, 0 at 1.
double half_cosine(double part) { return 0.5 * (1 + std::cos(std::numbers::pi * part)); }

/// From `from` to `to` along `shape`, which falls from 1 to 0.
template <class Shape>
Curve between(const CurveValues& values, Shape shape) {
  return [from = values.number("from"), to = values.number("to"), shape](const CurvePoint& now) {
    return to + (from - to) * shape(now.part());
  };
}

Curve constant(const CurveValues& values) {
  return [factor = values.number("factor")](const CurvePoint&) { return factor; };
}

Curve warmup(const CurveValues& values) {
  return [from = values.number("from")](const CurvePoint& now) {
    const double done = now.done + now.increment;
    return now.ended || done >= now.length ? 1 : from + (1 - from) * (done / now.length);
  };
}

Curve linear(const CurveValues& values) {
  return between(values, [](double part) { return 1 - part; });
}

Curve cosine(const CurveValues& values) { return between(values, half_cosine); }

Curve polynomial(const CurveValues& values) {
  return between(values, [power = values.number("power")](double part) { return std::pow(1 - part, power); });
}

Curve rex(const CurveValues& values) {
  return between(
      values, [d = values.number("d")](double part) { return part < 1 ? (1 - part) / (1 - d + d * (1 - part)) : 0; });
}

Curve exponential(const CurveValues& values) {
  const auto every = values.has("every") ? std::optional(values.length("every")) : std::nullopt;
  return [factor = values.number("factor"), every](const CurvePoint& now) {
    return std::pow(factor, now.done / (every ? in_steps(*every, now.run) : now.increment));
  };
}

Curve step(const CurveValues& values) {
  return [factor = values.number("factor"), every = values.length("every")](const CurvePoint& now) {
    return std::pow(factor, std::floor(now.done / in_steps(every, now.run)));
  };
}

Curve multistep(const CurveValues& values) {
  return [factor = values.number("factor"), places = values.places("at")](const CurvePoint& now) {
    const auto reached = std::ranges::count_if(
        places, [&](const ScheduleLength& place) { return now.done >= in_steps(place, now.run); });
    return std::pow(factor, reached);
  };
}

Curve inverse_sqrt(const CurveValues& values) {
  return [timescale = values.length("timescale")](const CurvePoint& now) {
    return 1 / std::sqrt(1 + now.done / in_steps(timescale, now.run));
  };
}

Curve restarts(const CurveValues& values) {
  const auto every = values.has("every") ? std::optional(values.length("every")) : std::nullopt;
  return [every, cycles = values.number("cycles"), grow = values.number("grow"), decay = values.number("decay"),
          from = values.number("from"), to = values.number("to")](const CurvePoint& now) {
    if (now.ended) {
      return to;
    }
    const double firsts = grow == 1 ? cycles : (std::pow(grow, cycles) - 1) / (grow - 1);  // that all cycles take
    const double first = every ? in_steps(*every, now.run) : now.length / firsts;
    // The cycles before number n have first (grow^n - 1) / (grow - 1) steps. A place that falls on a restart belongs to
    // the new cycle, whatever the rounding of the logarithm.
    const auto begin = [&](double n) { return grow == 1 ? n * first : first * (std::pow(grow, n) - 1) / (grow - 1); };
    double cycle = grow == 1 ? std::floor(now.done / first)
                             : std::floor(std::log1p(now.done * (grow - 1) / first) / std::log(grow));
    cycle += begin(cycle + 1) <= now.done ? 1 : 0;
    cycle -= begin(cycle) > now.done ? 1 : 0;
    const double length = first * std::pow(grow, cycle);
    const double done = now.done - begin(cycle);
    return to + (from * std::pow(decay, cycle) - to) * half_cosine(done / length);
  };
}

Curve cyclic(const CurveValues& values) {
  const ScheduleLength up = values.length("up");
  return [up, down = values.has("down") ? values.length("down") : up, low = values.number("low"),
          cycle_factor = values.number("cycle_factor"),
          step_factor = values.number("step_factor")](const CurvePoint& now) {
    const double rise = in_steps(up, now.run);
    const double fall = in_steps(down, now.run);
    const double cycle = std::floor(now.done / (rise + fall));
    const double done = now.done - cycle * (rise + fall);
    const double height = done <= rise ? done / rise : 1 - (done - rise) / fall;
    return low + (1 - low) * height * std::pow(cycle_factor, cycle) * std::pow(step_factor, now.done / now.increment);
  };
}

// The first and the last update are at the two ends, as in torch.optim.lr_scheduler.OneCycleLR.
Curve one_cycle(const CurveValues& values) {
  return [rise = values.number("rise"), start = 1 / values.number("div"),
          end = 1 / (values.number("div") * values.number("final_div"))](const CurvePoint& now) {
    const double top = rise * now.length - now.increment;
    if (now.done <= top) {
      return 1 + (start - 1) * half_cosine(top > 0 ? now.done / top : 1);
    }
    const double last = now.length - now.increment;
    return end + (1 - end) * half_cosine(now.done < last ? (now.done - top) / (last - top) : 1);
  };
}

constexpr CurveSetting number(std::string_view name, std::optional<double> preset, double minimum = 0,
                              double maximum = 1e9) {
  return {.name = name, .preset = preset, .minimum = minimum, .maximum = maximum};
}

constexpr CurveSetting length(std::string_view name, std::optional<double> preset = {}) {
  return {.name = name, .type = CurveSetting::Type::length, .preset = preset};
}

constexpr CurveSetting optional_length(std::string_view name) {
  return {.name = name, .type = CurveSetting::Type::length, .optional = true};
}

constexpr CurveSetting positive(std::string_view name, std::optional<double> preset) {
  return {.name = name, .preset = preset, .above_minimum = true};
}

constexpr CurveSetting kFrom = number("from", 1);
constexpr CurveSetting kTo = number("to", 0);

constexpr CurveSetting kAt = {.name = "at", .type = CurveSetting::Type::places};
constexpr CurveSetting kConstant[] = {number("factor", 1)};
constexpr CurveSetting kWarmup[] = {number("from", 0)};
constexpr CurveSetting kFromTo[] = {kFrom, kTo};
constexpr CurveSetting kPolynomial[] = {positive("power", 1), kFrom, kTo};
constexpr CurveSetting kRex[] = {number("d", 0.5, 0, 1), kFrom, kTo};
constexpr CurveSetting kExponential[] = {positive("factor", {}), optional_length("every")};
constexpr CurveSetting kStep[] = {length("every"), positive("factor", 0.1)};
constexpr CurveSetting kMultistep[] = {kAt, positive("factor", 0.1)};
constexpr CurveSetting kInverseSqrt[] = {length("timescale", 10'000)};
constexpr CurveSetting kRestarts[] = {
    optional_length("every"), number("cycles", 1, 1), number("grow", 1, 1), positive("decay", 1), kFrom, kTo};
constexpr CurveSetting kCyclic[] = {length("up"), optional_length("down"), number("low", 0.1),
                                    positive("cycle_factor", 1), positive("step_factor", 1)};
constexpr CurveSetting kOneCycle[] = {number("rise", 0.3, 0, 1), positive("div", 25), positive("final_div", 10'000)};

constexpr CurveKind kCurves[] = {
    {.name = "constant", .make = constant, .settings = kConstant},
    {.name = "warmup", .make = warmup, .settings = kWarmup, .main = "for", .fills = true},
    {.name = "linear", .make = linear, .settings = kFromTo, .fills = true},
    {.name = "cosine", .make = cosine, .settings = kFromTo, .fills = true},
    {.name = "polynomial", .make = polynomial, .settings = kPolynomial, .fills = true},
    {.name = "rex", .make = rex, .settings = kRex, .fills = true},
    {.name = "exponential", .make = exponential, .settings = kExponential, .main = "factor"},
    {.name = "step", .make = step, .settings = kStep, .main = "every"},
    {.name = "multistep", .make = multistep, .settings = kMultistep, .main = "at"},
    {.name = "inverse_sqrt", .make = inverse_sqrt, .settings = kInverseSqrt},
    {.name = "restarts", .make = restarts, .settings = kRestarts, .main = "every", .fills = true},
    {.name = "cyclic", .make = cyclic, .settings = kCyclic, .main = "up"},
    {.name = "one_cycle", .make = one_cycle, .settings = kOneCycle, .fills = true},
};

}  // namespace

double in_steps(const ScheduleLength& length, const ScheduleStep& run) {
  switch (length.unit) {
    case ScheduleLength::Unit::steps:
      break;
    case ScheduleLength::Unit::epochs:
      return std::round(length.value * static_cast<double>(run.steps_per_epoch));
    case ScheduleLength::Unit::part:
      return std::round(length.value * static_cast<double>(run.total_steps));
  }
  return length.value;
}

std::span<const CurveKind> curve_kinds() { return kCurves; }

}  // namespace lockstep
