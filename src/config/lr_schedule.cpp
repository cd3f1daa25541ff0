#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <lockstep/config/lr_schedule.h>

#include "base/mapped.h"
#include "base/text.h"
#include "config/lr_curves.h"
#include "config/shown_value.h"

namespace lockstep {
namespace {

struct ForeignCurve {
  std::string_view names{};
  std::string_view hint{};
};

constexpr ForeignCurve kForeign[] = {
    {"none constantlr", "use constant"},
    {"constant_with_warmup linear_with_warmup cosine_with_warmup linearwarmup", "use for example warmup:500+cosine"},
    {"linearlr linear_decay", "use linear"},
    {"cosine_annealing cosineannealing cosineannealinglr cosine_decay", "use cosine"},
    {"cosine_with_restarts cosine_with_hard_restarts cosine_with_min_lr cosineannealingwarmrestarts cosine_restarts",
     "use restarts:every=10ep or restarts:cycles=3"},
    {"steplr step_lr step_decay", "use step:every=30ep,factor=0.1"},
    {"multisteplr multi_step multistep_lr", "use multistep:at=30ep/60ep,factor=0.1"},
    {"exponentiallr exp exponential_decay", "use exponential:0.9,every=1ep"},
    {"poly polynomiallr", "use polynomial:power=2"},
    {"cycliclr triangular triangular2", "use cyclic:up=2000,low=0.1"},
    {"onecycle onecyclelr", "use one_cycle"},
    {"wsd warmup_stable_decay", "use warmup:5%+constant:until=80%+linear"},
    {"plateau reduce_on_plateau reducelronplateau reduce_lr_on_plateau",
     "it depends on a metric: use --plateau.metric, for example with val_loss"},
    {"adafactor", "the schedule cannot be part of the optimizer; use inverse_sqrt"},
};

constexpr std::string_view kLengthHint = "lengths are steps (500), epochs (2ep) or a part of the run (10%)";

std::optional<ScheduleLength> parse_length(std::string_view text) {
  using Unit = ScheduleLength::Unit;
  const auto with_suffix = [&](std::string_view suffix, Unit unit, double scale) -> std::optional<ScheduleLength> {
    const auto value = parse_double(text.substr(0, text.size() - suffix.size()));
    return value && *value >= 0 && *value <= 1e15 ? std::optional(ScheduleLength{*value * scale, unit}) : std::nullopt;
  };
  if (text.ends_with('%')) {
    const auto part = with_suffix("%", Unit::part, 0.01);
    return part && part->value <= 1 ? part : std::nullopt;
  }
  for (const std::string_view suffix : {"epochs", "epoch", "ep"}) {
    if (text.ends_with(suffix)) {
      return with_suffix(suffix, Unit::epochs, 1);
    }
  }
  const auto steps = parse_int(text);
  return steps && *steps >= 0 ? std::optional(ScheduleLength{static_cast<double>(*steps), Unit::steps}) : std::nullopt;
}

/// How messages begin: with the phase, unless it is the whole schedule.
std::string phase_prefix(std::string_view phase, std::string_view schedule) {
  return phase == schedule ? std::string() : shown_value(phase) + ": ";
}

/// Parses one phase, "step:30ep,factor=0.1".
class PhaseParser {
 public:
  PhaseParser(std::string_view text, std::string_view schedule, std::vector<Problem>& problems)
      : text_(trim(text)), prefix_(phase_prefix(text_, schedule)), problems_(problems) {}

  std::optional<LrPhase> parse() {
    const auto colon = text_.find(':');
    const std::string_view name = trim(text_.substr(0, colon));
    kind_ = find_kind(name);
    if (kind_ == nullptr) {
      return std::nullopt;
    }
    const std::size_t before = problems_.size();
    if (colon != std::string_view::npos) {
      for (const std::string& setting : split(text_.substr(colon + 1), ',')) {
        read(trim(setting));
      }
    }
    fill_in();
    if (problems_.size() > before) {
      return std::nullopt;
    }
    LrPhase phase{.text = std::string(text_),
                  .curve = kind_->make(values_),
                  .fills = kind_->fills && !values_.has("every"),
                  .per_epoch = per_epoch_,
                  .length = length_,
                  .until = until_,
                  .lengths = values_.all()};
    for (const std::string_view divisor : kDivisors) {
      if (values_.has(divisor)) {
        phase.divisors.push_back(values_.length(divisor));
      }
    }
    for (const auto& end : {length_, until_}) {
      if (end) {
        phase.lengths.push_back(*end);
      }
    }
    return phase;
  }

 private:
  static constexpr std::string_view kDivisors[] = {"every", "up", "down", "timescale"};

  void refuse(std::string_view what, std::string hint) {
    problems_.push_back({prefix_ + printable(what), std::move(hint)});
  }

  const CurveKind* find_kind(std::string_view name) {
    std::vector<std::string> names;
    for (const CurveKind& kind : curve_kinds()) {
      if (kind.name == name) {
        return &kind;
      }
      names.emplace_back(kind.name);
    }
    for (const ForeignCurve& foreign : kForeign) {
      const auto spellings = split(foreign.names, ' ');
      if (std::ranges::find(spellings, name) != spellings.end()) {
        refuse("unknown curve", std::string(foreign.hint));
        return nullptr;
      }
    }
    refuse(name.empty() ? "the name of the curve is missing" : "unknown curve",
           did_you_mean(name, names, "", fmt::format("use one of {}", join(names, ", "))));
    return nullptr;
  }

  void read(std::string_view written) {
    const auto equals = written.find('=');
    std::string_view name = kind_->main;
    std::string_view value = written;
    if (equals != std::string_view::npos) {
      name = trim(written.substr(0, equals));
      value = trim(written.substr(equals + 1));
    } else if (name.empty() || value.empty()) {
      refuse(fmt::format("found \"{}\", expected setting=value", shown_value(written)),
             fmt::format("the settings are {}", names()));
      return;
    }
    if (std::ranges::find(seen_, name) != seen_.end()) {
      refuse(fmt::format("{} is set twice", name), "remove one of them");
      return;
    }
    seen_.emplace_back(name);
    if (name == "for" || name == "until") {
      (name == "for" ? length_ : until_) = read_length(name, value);
    } else if (name == "per") {
      per_epoch_ = value == "epoch";
      if (value != "epoch" && value != "step") {
        refuse(fmt::format("per={}, expected step or epoch", shown_value(value)), {});
      }
    } else {
      read_own(name, value);
    }
  }

  void read_own(std::string_view name, std::string_view value) {
    const auto setting = std::find_if(kind_->settings.begin(), kind_->settings.end(),
                                      [&](const CurveSetting& known) { return known.name == name; });
    if (setting == kind_->settings.end()) {
      refuse(fmt::format("unknown setting {}", shown_value(name)),
             fmt::format("the settings of {} are {}", kind_->name, names()));
      return;
    }
    std::vector<ScheduleLength> lengths;
    switch (setting->type) {
      case CurveSetting::Type::number: {
        const auto number = parse_double(value);
        if (!number || !in_range(*setting, *number)) {
          refuse(fmt::format("{}={}, expected a number {}", name, shown_value(value), range(*setting)), {});
          return;
        }
        lengths.push_back({*number, ScheduleLength::Unit::steps});
        break;
      }
      case CurveSetting::Type::length:
        lengths.push_back(read_length(name, value).value_or(ScheduleLength{}));
        break;
      case CurveSetting::Type::places:
        for (const std::string& place : split(value, '/')) {
          lengths.push_back(read_length(name, trim(place)).value_or(ScheduleLength{}));
        }
        break;
    }
    values_.set(setting->name, std::move(lengths));
  }

  static bool in_range(const CurveSetting& setting, double value) {
    return (setting.above_minimum ? value > setting.minimum : value >= setting.minimum) && value <= setting.maximum;
  }

  static std::string range(const CurveSetting& setting) {
    if (setting.maximum <= 1) {
      return fmt::format("from {} to {}", setting.minimum, setting.maximum);
    }
    return setting.above_minimum ? fmt::format("above {}", setting.minimum)
                                 : fmt::format("of {} or more", setting.minimum);
  }

  std::optional<ScheduleLength> read_length(std::string_view name, std::string_view value) {
    auto length = parse_length(value);
    if (!length) {
      refuse(fmt::format("{}={}, expected a length", name, shown_value(value)), std::string(kLengthHint));
    }
    return length;
  }

  void fill_in() {
    for (const CurveSetting& setting : kind_->settings) {
      if (values_.has(setting.name)) {
        continue;
      }
      if (setting.preset) {
        values_.set(setting.name, {{*setting.preset, ScheduleLength::Unit::steps}});
      } else if (!setting.optional && std::ranges::find(seen_, setting.name) == seen_.end()) {
        refuse(fmt::format("the setting {} is missing", setting.name),
               setting.type == CurveSetting::Type::number ? std::string() : std::string(kLengthHint));
      }
    }
    for (const std::string_view divisor : kDivisors) {
      if (values_.has(divisor) && values_.length(divisor).unit == ScheduleLength::Unit::steps &&
          values_.length(divisor).value < 1) {
        refuse(fmt::format("{} is shorter than one step", divisor), "make it longer");
      }
    }
    const auto is_written = [&](std::string_view name) { return std::ranges::find(seen_, name) != seen_.end(); };
    if (is_written("for") && is_written("until")) {
      refuse("found for and until, expected one of them", "for is the length of the phase, until its end in the run");
    }
    if (kind_->name == "warmup" && !is_written("for") && !is_written("until")) {
      refuse("its length is missing", "use for example warmup:500, warmup:2ep or warmup:5%");
    }
    if (kind_->name == "restarts" && is_written("every") == is_written("cycles")) {
      refuse(is_written("every") ? "found every and cycles, expected one of them" : "expected every or cycles",
             "use restarts:every=10ep or restarts:cycles=3");
    }
    if (kind_->name == "restarts" && !std::isfinite(std::pow(values_.number("grow"), values_.number("cycles")))) {
      refuse("its first cycle would have no length", "use fewer cycles, or a smaller grow");
    }
  }

  std::string names() const {
    auto names = mapped<std::string>(kind_->settings, &CurveSetting::name);
    names.insert(names.end(), {"for", "until", "per"});
    return join(names, ", ");
  }

  std::string_view text_;
  std::string prefix_;
  std::vector<Problem>& problems_;
  const CurveKind* kind_ = nullptr;
  CurveValues values_{};
  std::vector<std::string> seen_{};
  std::optional<ScheduleLength> length_{};
  std::optional<ScheduleLength> until_{};
  bool per_epoch_ = false;
};

bool uses(const std::vector<ScheduleLength>& lengths, ScheduleLength::Unit unit) {
  return std::ranges::any_of(lengths, [&](const ScheduleLength& length) { return length.unit == unit; });
}

bool counts_epochs(const LrPhase& phase) {
  return phase.per_epoch || uses(phase.lengths, ScheduleLength::Unit::epochs);
}

}  // namespace

LrSchedule::LrSchedule(std::string_view text) : text_(to_lower(trim(text))) {
  if (text_.empty()) {
    return;
  }
  std::vector<LrPhase> phases;
  for (const std::string& part : split(text_, '+')) {
    if (auto phase = PhaseParser(part, text_, problems_).parse()) {
      phases.push_back(*std::move(phase));
    }
  }
  for (std::size_t i = 0; problems_.empty() && i + 1 < phases.size(); ++i) {
    if (!phases[i].has_end()) {
      problems_.push_back(
          {fmt::format("{}: it has no end, so the next phase never begins", shown_value(phases[i].text)),
           "give it a length (for=10ep) or an end (until=80%)"});
    }
  }
  phases_ = std::make_shared<const std::vector<LrPhase>>(std::move(phases));
}

LrSchedule::LrSchedule(std::string name, Function factor) : text_(std::move(name)), function_(std::move(factor)) {
  if (text_.empty() || !function_) {
    problems_.push_back({"a schedule of your own has no name or no function", "give it both"});
  }
  if (text_.empty()) {
    text_ = "without a name";  // else it would not be set, and nobody would report its problem
  }
}

double LrSchedule::factor(const ScheduleStep& at) const {
  if (function_) {
    return function_(at);
  }
  if (!phases_) {
    return 1;
  }
  ScheduleStep run = at;
  double start = 0;
  for (const LrPhase& phase : *phases_) {
    if (run.epochs_from != 0 && counts_epochs(phase)) {
      const std::int64_t from = std::exchange(run.epochs_from, 0);  // from here on in steps of the present epoch
      run.step -= from;
      run.total_steps -= run.total_steps > 0 ? from : 0;
      start = std::max(0.0, start - static_cast<double>(from));
    }
    const auto step = static_cast<double>(run.step);
    const bool is_last = &phase == &phases_->back();
    const double end = phase.end(start, run);
    if (step < end || is_last) {
      const double increment = phase.per_epoch ? static_cast<double>(run.steps_per_epoch) : 1;
      const double done = std::max(0.0, std::floor(step / increment) * increment - start);
      const bool ended = step >= end && (phase.has_end() || run.total_steps > 0);
      return phase.curve({.done = ended ? end - start : done,
                          .length = end - start,
                          .increment = increment,
                          .ended = ended,
                          .run = run});
    }
    start = end;
  }
  return 1;
}

std::vector<Problem> LrSchedule::problems_in(const ScheduleStep& run) const {
  std::vector<Problem> problems;
  if (!phases_) {
    return problems;
  }
  double start = 0;
  bool start_is_fixed = true;  // the same for any length of the run
  for (const LrPhase& phase : *phases_) {
    const auto refuse = [&](std::string_view what, std::string_view hint) {
      problems.push_back({phase_prefix(phase.text, text_) + std::string(what), std::string(hint)});
    };
    start_is_fixed = start_is_fixed && !uses(phase.lengths, ScheduleLength::Unit::part);
    const bool ends_with_run = &phase == &phases_->back() && phase.fills && !phase.has_end();
    if (run.total_steps == 0 && (ends_with_run || uses(phase.lengths, ScheduleLength::Unit::part))) {
      refuse("the length of the run is not known", "set --max_steps, or give the phase a length in steps (for=10000)");
    } else if (run.steps_per_epoch == 0 && (phase.per_epoch || uses(phase.lengths, ScheduleLength::Unit::epochs))) {
      refuse("the number of steps per epoch is not known", "use steps instead of epochs");
    } else if (std::ranges::any_of(phase.divisors,
                                   [&](const ScheduleLength& divisor) { return in_steps(divisor, run) < 1; })) {
      refuse("one of its lengths is shorter than one step", "make it longer");
    } else if (start_is_fixed && phase.until && in_steps(*phase.until, run) <= start) {
      refuse("it would end before it begins",
             "until counts from the beginning of the run; for is the length of a phase");
    }
    start = phase.end(start, run);
  }
  return problems;
}

bool LrSchedule::depends_on_total_steps() const noexcept {
  return phases_ && std::any_of(phases_->begin(), phases_->end(), [&](const LrPhase& phase) {
           return uses(phase.lengths, ScheduleLength::Unit::part) ||
                  (&phase == &phases_->back() && phase.fills && !phase.has_end());
         });
}

}  // namespace lockstep
