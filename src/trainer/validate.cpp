#include "trainer/validate.h"

#include <fmt/format.h>

#include <torch/csrc/autograd/grad_mode.h>

#include <lockstep/base/error.h>
#include <lockstep/world/world.h>

#include "base/text.h"
#include "data/epoch_begin.h"
#include "metrics/metric_set.h"
#include "parallel/parameter_sync.h"
#include "trainer/agreed_stop.h"
#include "trainer/evaluation_scope.h"
#include "trainer/in_precision.h"
#include "trainer/meter.h"
#include "trainer/output/metric_names.h"
#include "trainer/output_check.h"
#include "trainer/source_check.h"
#include "world/world_access.h"

namespace lockstep {

BatchFunction batch_callbacks(CallbackList& callbacks, const StageContext& context) {
  if (!callbacks.has(context.stage)) {
    return {};
  }
  StageContext of_batch = context;
  of_batch.log_to = nullptr;  // ranks have other batches, and other numbers of them
  return [&callbacks, at = of_batch](const Batch& batch, const StepOutput* output) mutable {
    at.batch = &batch;
    at.output = output;
    ++at.batch_number;
    callbacks.call(at);
  };
}

Evaluation evaluate(Task& task, BatchSource& data, World& world, const TrainConfig& config, const TrainControl& control,
                    const EvaluationOptions& options) {
  ProgressRecord& record = WorldAccess::progress(world);
  const PhaseScope phase(record, options.phase);
  if (config.dist.broadcast_buffers) {
    broadcast_buffers(task.module(), world);
  }
  const EvaluationScope scope(task.module(), world.device());
  const at::NoGradGuard no_grad;
  const std::vector<metrics::NamedMetric> metered = task.metrics();
  metrics::MetricSet metrics(metered, world);
  const metrics::FreshStates of_evaluation(metered);
  const LoaderPosition start = seek_epoch_begin(data);
  Meter meter;
  AgreedStop stop(world, control, options.least_stop);
  Evaluation result;
  std::int64_t done = 0;
  bool has_samples = false;
  const auto asked_to_stop = [&stop] { return stop.is_asked(); };
  while (true) {
    const StepBatches* step = data.next_unless(asked_to_stop);
    if (step == nullptr) {  // the source has ended, or a stop was requested while a rank waited for data
      if (stop.look_now()) {
        data.seek(start);
        return result;
      }
      break;
    }
    check_samples(*step);
    for (const Batch& batch : step->micro) {
      if (batch.samples > 0) {
        if (options.on_batch_start) {
          options.on_batch_start(batch, nullptr);
        }
        const StepOutput output =
            in_precision(config, world.device().type(), batch, [&](const Batch& b) { return (task.*options.step)(b); });
        check_output(output);
        has_samples = true;
        meter.add(output, batch.samples);
        if (options.on_batch_end) {
          options.on_batch_end(batch, &output);
        }
      }
    }
    options.on_step(++done);
    if (step->ends_epoch || done == options.max_batches) {
      result.is_part = !step->ends_epoch;
      break;
    }
    record.set_phase(options.phase);  // progress, also if nobody looks for a stop
    if (stop.look()) {
      data.seek(start);
      return result;
    }
  }
  data.seek(start);  // every validation has the same random numbers, also in a resumed run
  result.means = meter.take(world);
  if (result.means.empty() && !world.any(has_samples)) {  // the means are the same on all ranks
    throw DataError("the validation data gave no samples", "give it at least one, or pass no validation data");
  }
  for (auto& metric : metrics.values(world)) {
    if (find_metric(result.means, metric.first) != nullptr) {
      throw Error(fmt::format("two metrics of an evaluation are called '{}'", printable(metric.first)),
                  "give those of Task::metrics other names than loss and those of the step");
    }
    result.means.push_back(std::move(metric));
  }
  result.complete = true;
  return result;
}

}  // namespace lockstep
