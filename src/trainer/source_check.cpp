#include "trainer/source_check.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include <ATen/core/Tensor.h>

#include <lockstep/base/error.h>

#include "tensor/shape_text.h"

namespace lockstep {
namespace {

constexpr const char* kHintForSources =
    "a BatchSource sets Batch::samples of each batch, and StepBatches::local_samples and global_samples";

void check_samples_of(const Batch& batch) {
  if (batch.samples > 0) {
    return;
  }
  const auto refuse = [](std::string_view name, const at::Tensor& tensor) {
    if (tensor.defined() && tensor.numel() > 0) {
      throw DataError(fmt::format("the source gave a batch with {} of shape {} and samples == 0, expected the number "
                                  "of its samples",
                                  name, shape_text(tensor.sizes())),
                      kHintForSources);
    }
  };
  refuse("input", batch.input);
  refuse("target", batch.target);
  for (const auto& [name, tensor] : batch.fields) {
    refuse(name, tensor);
  }
}

}  // namespace

void check_samples(const StepBatches& step) { std::ranges::for_each(step.micro, check_samples_of); }

// A number that is left out is 0.
void check_step(const StepBatches& step) {
  check_samples(step);
  const bool has_samples = std::ranges::any_of(step.micro, [](const Batch& batch) { return batch.samples > 0; });
  if (has_samples && (step.local_samples < 1 || step.global_samples < 1)) {
    throw DataError(fmt::format("the source gave a step with samples and local_samples == {}, global_samples == {}, "
                                "expected the number of samples of this rank and of all ranks",
                                step.local_samples, step.global_samples),
                    kHintForSources);
  }
}

// The plan cannot check this: a CombinedLoader has the micro-batches of several loaders in one step, and a
// ReloadedLoader may have a larger global batch.
void check_micro_batches(const StepBatches& step, const DistConfig& config, int ranks) {
  if (config.static_graph && ranks > 1 && step.micro.size() > 1) {
    throw ConfigError(
        fmt::format("--dist.static_graph: the source gave a step of {} micro-batches, expected one", step.micro.size()),
        "leave out --dist.static_graph; or combine loaders with CombineMode::sequential, and let the batch size grow "
        "with the global batch");
  }
}

}  // namespace lockstep
