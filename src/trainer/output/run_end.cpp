#include "trainer/output/run_end.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/log.h>
#include <lockstep/world/world.h>

#include "base/mapped.h"
#include "base/run_pattern.h"
#include "base/text.h"
#include "report/console_names.h"

namespace lockstep {
namespace {

/// Another start has another directory.
bool had_pattern(const Plan& plan) { return plan.asked && parse_run_pattern(run_directory(*plan.asked)); }

}  // namespace

std::string change_of_command(const Plan& plan, const std::string& directory, bool saved) {
  const TrainConfig& config = plan.config;
  if (!saved) {
    return {};
  }
  if (config.fresh && !config.dist.requeue) {  // a requeued job is the same launch, which does not start over again
    return " without --fresh";
  }
  std::vector<std::string> flags;
  if (had_pattern(plan) && !config.dist.requeue) {
    flags.push_back(fmt::format("--run_dir {}", directory));
  }
  if (config.resume != "auto" && config.resume != "last") {
    flags.emplace_back("--resume auto");
  }
  return flags.empty() ? std::string() : fmt::format(" with {}", join(flags, " "));
}

std::string describe_saved(const Plan& plan, const std::string& directory, std::optional<std::int64_t> step) {
  if (!step) {
    return fmt::format("nothing is saved in {} yet; the same command trains all steps again", directory);
  }
  if (plan.config.checkpoint.weights_only) {
    return fmt::format("step {} is saved in {} (only the weights)", *step, directory);
  }
  return fmt::format("step {} is saved in {}; without the cause of this failure the same command{} resumes from it",
                     *step, directory, change_of_command(plan, directory, /*saved=*/true));
}

namespace {

std::string how_to_continue(const RunEnd& end) {
  const TrainConfig& config = end.plan.config;
  if (config.checkpoint.weights_only) {
    return " (only the weights: the run cannot be continued)";
  }
  if (!config.checkpoint.enabled) {
    return "; nothing is saved";
  }
  const std::string change = change_of_command(end.plan, run_directory(config), end.saved);
  return fmt::format("; run the same command{} to continue", change.empty() ? " again" : change);
}

void tell_times(const RunTimes& times, const TrainConfig& config, World& world, Console& console) {
  if (const std::string text = times.host.text(); !text.empty()) {
    console.line(fmt::format("time{}: {}", world.device().is_cpu() ? "" : " of the host", text));
  }
  if (times.gpu) {
    console.line(fmt::format("time of the GPU in a step: {}", times.gpu->text()));
  }
  if (!world.is_main()) {
    return;
  }
  // A GPU may have work while its host waits for data.
  const TimeShares& of_steps = times.gpu ? *times.gpu : times.host;
  const auto on_data = of_steps.advice_on_data(config.data.workers, times.one_reader);
  const auto on_calls = on_data ? std::nullopt : advice_on_calls(times.waits_for_calls);
  for (const auto& advice : {on_data, of_steps.advice_on_copies(config.data), on_calls, times.host.advice_on_saves()}) {
    if (advice) {
      log_info(*advice);
    }
  }
}

}  // namespace

std::optional<std::string> advice_on_calls(double share) {
  if (share <= 0.5) {
    return std::nullopt;
  }
  return fmt::format(
      "the GPU waited for the calls of the host in {:.0f} % of the steps: with --cuda_graphs true a "
      "forward and backward is one call",
      100 * share);
}

std::string describe_end(const RunEnd& end) {
  const std::string where = fmt::format("step {}, epoch {}", end.step, end.epoch);
  const std::string saved = end.saved ? fmt::format(", saved in {}", run_directory(end.plan.config)) : std::string();
  if (end.stop.kind == StopKind::program) {
    return fmt::format("stopped at {}: {}{}", where, end.stop.text, saved);
  }
  if (end.stop.kind != StopKind::none) {
    return fmt::format("stopped at {}: {}{}{}", where, end.stop.text, saved, how_to_continue(end));
  }
  if (end.was_finished) {
    const std::string changed =
        end.changed.empty() ? std::string()
                            : fmt::format("; {}: use another --run_name to train with this", join(end.changed, ", "));
    const TrainConfig& config = end.plan.config;
    const std::string_view longer = config.checkpoint.weights_only
                                        ? ""  // such a run cannot be continued
                                        : "continue with a larger --max_epochs or --max_steps, or ";
    const std::string_view anew = !had_pattern(end.plan)    ? "start over with --fresh"
                                  : config.resume == "auto" ? "start a new launch for a new run"  // found by its launch
                                                            : "leave out --resume for a new run";
    return fmt::format("nothing to do: this run is finished ({}){}{}; {}{}", where, saved, changed, longer, anew);
  }
  const std::string limit = end.limit.empty() ? std::string() : fmt::format(" ({})", end.limit);
  return fmt::format("finished at {}{}{}", where, limit, saved);
}

std::string summary(const FitResult& result, const std::string& monitor) {
  std::vector<std::string> metrics;
  const auto for_console = names_for_console(mapped(result.metrics, &Metrics::value_type::first));
  for (const auto& [name, value] : result.metrics) {
    if (for_console.contains(name)) {
      metrics.push_back(printable(name) + " " + five_digits(value));
    }
  }
  std::vector<std::string> parts{join(metrics, ", ")};
  if (result.best) {
    parts.push_back(fmt::format("best {} {:.5g} at step {} in {}", monitor, result.best->value, result.best->step,
                                result.best->path));
  }
  parts.push_back("time " + human_duration(result.duration_s));
  std::erase(parts, "");
  return join(parts, " | ");
}

void tell_end(const FitResult& result, std::int64_t epoch, const RunTimes& times, const TrainConfig& config,
              World& world, Console& console, RunFiles& files) {
  EventFields fields{
      {"step", result.state.step}, {"epoch", epoch}, {"why", result.why}, {"stopped", result.stop > StopKind::program}};
  std::ranges::move(times.host.fields(), std::back_inserter(fields));
  if (times.gpu) {
    std::ranges::move(times.gpu->fields("gpu_"), std::back_inserter(fields));
  }
  files.event("end", fields);
  constexpr double kLong = 10;  // seconds; a shorter fit says little
  if (times.host.total() >= kLong) {
    tell_times(times, config, world, console);
  }
  files.write_end(mapped(result.metrics,
                         [](const auto& metric) { return MetricValue{.name = metric.first, .value = metric.second}; }));
  console.line(result.why);
  console.line(summary(result, config.checkpoint.monitor));
}

}  // namespace lockstep
