#include "report/progress_bar.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/columns.h"
#include "base/mapped.h"
#include "base/text.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kDrawEvery = std::chrono::milliseconds(100);
constexpr std::size_t kWidestBar = 24;
constexpr std::size_t kNarrowestBar = 4;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

/// "850", "1.2k", "3.4M"
std::string compact(double value) {
  if (value < 999.5) {
    return fmt::format("{:.3g}", value);
  }
  return value < 999'500 ? fmt::format("{:.3g}k", value / 1e3) : fmt::format("{:.3g}M", value / 1e6);
}

std::string metric_text(const MetricValue& metric) { return printable(metric.name) + " " + five_digits(metric.value); }

}  // namespace

std::string progress_frame(const Progress& progress, double elapsed_s, double samples_per_s, std::string_view metrics,
                           int width, std::int64_t began_at) {
  std::string clock = human_duration(elapsed_s);
  const std::int64_t done_here = progress.done - began_at;
  if (progress.total && done_here > 0) {
    const auto left = static_cast<double>(std::max<std::int64_t>(0, *progress.total - progress.done));
    clock += "<" + human_duration(elapsed_s / static_cast<double>(done_here) * left);
  }
  const std::string rate = samples_per_s > 0 ? fmt::format(", {} samples/s", compact(samples_per_s)) : "";
  const auto details = [&](std::string_view what) {
    return fmt::format(" [{}{}{}{}]", clock, rate, what.empty() ? "" : ", ", what);
  };
  const auto room = static_cast<std::size_t>(std::max(width, 0));
  if (!progress.total) {
    std::string frame = fmt::format("{}: {}{}", progress.phase, progress.done, details(metrics));
    return fitted(frame, room);
  }
  const double part =
      *progress.total > 0
          ? std::clamp(static_cast<double>(progress.done) / static_cast<double>(*progress.total), 0.0, 1.0)
          : 1;
  const std::string head = fmt::format("{}: {:3.0f}%", progress.phase, std::floor(100 * part));
  const std::string count = fmt::format(" {}/{}", progress.done, *progress.total);
  for (const std::string& tail : {count + details(metrics), count + details({})}) {
    const std::size_t fixed = columns_of(head) + columns_of(tail) + 2;
    if (fixed + kNarrowestBar <= room) {
      const std::size_t bar = std::min(kWidestBar, room - fixed);
      const auto filled = static_cast<std::size_t>(part * static_cast<double>(bar));
      return fmt::format("{}|{}{}|{}", head, std::string(filled, '#'), std::string(bar - filled, ' '), tail);
    }
  }
  return fitted(head + count, room);
}

ProgressBar::ProgressBar(std::shared_ptr<Console> console, bool show_bar)
    : console_(std::move(console)), show_bar_(show_bar && console_->interactive()) {}

ProgressBar::~ProgressBar() { finish_phase(); }

void ProgressBar::update(const Progress& progress) {
  if (!show_bar_ && phase_ == progress.phase) {
    return;
  }
  const auto now = Clock::now();
  enter_phase(progress, now);
  if (show_bar_ && now >= next_draw_) {
    draw(progress, now);
  }
}

void ProgressBar::report(const Progress& progress, std::span<const MetricValue> metrics) {
  const auto now = Clock::now();
  enter_phase(progress, now);
  measure_rate(progress, now);
  const std::string line = line_of(progress, metrics);
  if (!show_bar_) {
    console_->line(line);
    return;
  }
  last_report_ = line;
  metrics_text_ = join(mapped(metrics, metric_text), ", ");
  draw(progress, now);
}

void ProgressBar::keep(const Progress& progress, std::span<const MetricValue> metrics) {
  console_->line(line_of(progress, metrics));
}

void ProgressBar::finish_epoch(const Progress& progress) {
  if (show_bar_) {
    console_->line(last_report_.empty() ? line_of(progress, {}) : last_report_);
    last_report_.clear();
  }
}

std::string ProgressBar::line_of(const Progress& progress, std::span<const MetricValue> metrics) const {
  std::vector<std::string> texts{fmt::format("step {}", progress.step), progress.phase};
  std::ranges::transform(metrics, std::back_inserter(texts), metric_text);
  if (samples_per_s_ > 0 && phase_ == progress.phase) {
    texts.push_back(with_commas(samples_per_s_) + " samples/s");
  }
  return join(texts, " | ");
}

void ProgressBar::finish_phase() {
  if (show_bar_ && phase_) {
    console_->status("");
  }
  phase_.reset();
}

/// Each phase has its own timer, so that a validation between two epochs does not reduce the rate.
void ProgressBar::enter_phase(const Progress& progress, Clock::time_point now) {
  if (phase_ == progress.phase) {
    return;
  }
  phase_ = progress.phase;
  phase_since_ = rate_since_ = now;
  phase_began_at_ = progress.done;
  rate_samples_ = progress.samples;
  samples_per_s_ = 0;
  metrics_text_.clear();
  last_report_.clear();
  next_draw_ = now;
}

void ProgressBar::measure_rate(const Progress& progress, Clock::time_point now) {
  if (progress.samples > rate_samples_ && now > rate_since_) {
    samples_per_s_ = static_cast<double>(progress.samples - rate_samples_) / seconds_between(rate_since_, now);
    rate_samples_ = progress.samples;
    rate_since_ = now;
  }
}

void ProgressBar::draw(const Progress& progress, Clock::time_point now) {
  if (seconds_between(rate_since_, now) >= 1) {
    measure_rate(progress, now);
  }
  console_->status(progress_frame(progress, seconds_between(phase_since_, now), samples_per_s_, metrics_text_,
                                  console_->width(), phase_began_at_));
  next_draw_ = now + kDrawEvery;
}

}  // namespace lockstep
