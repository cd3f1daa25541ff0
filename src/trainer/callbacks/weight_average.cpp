#include <algorithm>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/checkpoint/checkpoint_store.h>
#include <lockstep/trainer/callbacks.h>
#include <lockstep/world/world.h>

#include "base/mapped.h"
#include "base/option_check.h"
#include "tensor/mismatch.h"
#include "tensor/prefixed.h"
#include "tensor/replaced_values.h"
#include "trainer/callbacks/batch_norm_update.h"

namespace lockstep {
namespace {

constexpr const char* kUpdates = ":updates";  // no parameter has a colon in its name

bool is_averaged(const at::Tensor& tensor) { return tensor.is_floating_point() || tensor.is_complex(); }

// Tensor::to() would find that too, but slower.
bool is_alike(const at::Tensor& value, const at::Tensor& average) {
  return value.scalar_type() == average.scalar_type() && value.device() == average.device();
}

/// Writing into a tensor changes its version, giving it other data its memory.
std::vector<std::pair<const void*, std::int64_t>> states_of(std::span<const NamedTensors::value_type> values) {
  return mapped(values, [](const auto& entry) {
    return std::pair<const void*, std::int64_t>(entry.second.const_data_ptr(), entry.second._version());
  });
}

}  // namespace

WeightAverage::WeightAverage(WeightAverageOptions options) : options_(options) {
  OptionCheck("WeightAverage")
      .expect_share("decay", options_.decay)
      .expect("decay", options_.decay, !options_.warmup || options_.decay > 0, "more than 0 with warmup")
      .expect("every_steps", options_.every_steps, options_.every_steps >= 1, "1 or more")
      .expect("first_step", options_.first_step, options_.first_step >= 1, "1 or more")
      .expect("first_epoch", options_.first_epoch, options_.first_epoch >= 1, "1 or more")
      .expect("batch_norm_steps", options_.batch_norm_steps, options_.batch_norm_steps >= 0, "0 or more")
      .expect("batch_norm_steps", options_.batch_norm_steps, options_.batch_norm_steps <= 0 || options_.at_end,
              "0 without at_end")
      .throw_problems();
}

void WeightAverage::on(const StageContext& context) {
  if (context.stage == Stage::fit_start) {
    if (context.state.step == 0) {
      load({});  // another training of this process
    }
    begin(context);
    if (options_.batch_norm_steps > 0 && context.state.step == 0) {
      check_batch_norm_update(context);
    }
  } else if (context.stage == Stage::step_end) {
    const auto step = context.state.step;
    if (step >= options_.first_step && (step - options_.first_step) % options_.every_steps == 0 &&
        epoch_ >= options_.first_epoch) {
      const auto evaluated = context.strategy->evaluation_scope();
      update(step);
    }
    epoch_ = context.state.epoch + 1;
  } else {
    if (options_.at_end) {
      copy_to_module();
    }
    const bool must_end = context.control.agreed() > StopKind::program;  // nobody waits for data any more
    if (average_.empty() && !must_end && context.world.is_main()) {
      log_warning(fmt::format(
          "{}: the training ended at step {} and averaged none (first_step {}, first_epoch {}, every_steps {})",
          options_.name, context.state.step, options_.first_step, options_.first_epoch, options_.every_steps));
    }
    if (options_.batch_norm_steps > 0 && !must_end && !average_.empty()) {
      update_batch_norm(context, options_.batch_norm_steps);
    }
    at_end_ = states_of(std::span(values_).first(parameter_count_));
  }
}

void WeightAverage::begin(const StageContext& context) {
  epoch_ = context.state.epoch + 1;
  at_end_.reset();
  values_.clear();
  std::unordered_set<const c10::TensorImpl*> known;
  const auto add = [&](const auto& items) {
    for (const auto& item : items) {
      if (is_averaged(item.value()) && known.insert(item.value().unsafeGetTensorImpl()).second) {
        values_.emplace_back(item.key(), item.value());
      }
    }
  };
  add(context.module.named_parameters());
  parameter_count_ = values_.size();
  if (options_.buffers) {
    add(context.module.named_buffers());
  }
  restore();
}

// An average of a checkpoint is on the host, in any order, and perhaps of another model.
void WeightAverage::restore() {
  std::unordered_map<std::string, at::Tensor> saved(average_.begin(), average_.end());
  average_.clear();
  Mismatch mismatch;
  for (const auto& [name, value] : values_) {
    if (const auto found = saved.extract(name); !found.empty()) {
      const auto options = options_of(value);
      if (mismatch.compare(name, found.mapped(), at::empty_like(value, options.device(at::kMeta)))) {
        average_.emplace_back(name, at::empty_like(value, options).copy_(found.mapped()));  // in its memory format
      }
    }
  }
  for (const auto& [name, tensor] : saved) {
    mismatch.unexpected.push_back(name);
  }
  if (mismatch.any()) {
    throw CheckpointError("the averaged weights do not match the module: " + mismatch.text(),
                          "resume with the model of the checkpoint, or without WeightAverage");
  }
}

// Sums in half precision would lose most of each update.
at::TensorOptions WeightAverage::options_of(const at::Tensor& value) const {
  const auto dtype = value.scalar_type();
  return value.options()
      .requires_grad(false)
      .dtype(dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype)
      .device(options_.on_cpu ? c10::Device(at::kCPU) : value.device());
}

std::vector<std::pair<at::Tensor, at::Tensor>> WeightAverage::pairs() const {
  std::vector<std::pair<at::Tensor, at::Tensor>> found;
  auto next = average_.begin();
  for (const auto& [name, value] : values_) {
    if (next != average_.end() && next->first == name) {
      found.emplace_back(value, (next++)->second);
    }
  }
  return found;
}

double WeightAverage::decay_at(std::int64_t step) const {
  if (options_.decay == 0) {
    return static_cast<double>(updates_) / static_cast<double>(updates_ + 1);
  }
  const auto t = static_cast<double>(step);
  return options_.warmup ? std::min(options_.decay, (1 + t) / (10 + t)) : options_.decay;
}

// A parameter that was frozen until now enters with its value of this step.
void WeightAverage::update(std::int64_t step) {
  const at::NoGradGuard no_grad;
  const double decay = decay_at(step);
  std::vector<at::Tensor> averages;
  std::vector<at::Tensor> now;
  std::size_t next = 0;  // in average_, which keeps the order of values_
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const auto& [name, value] = values_[i];
    if (next < average_.size() && average_[next].first == name) {
      averages.push_back(average_[next].second);
      now.push_back(is_alike(value, averages.back()) ? value : value.to(averages.back().options()));
    } else if (value.requires_grad() || i >= parameter_count_) {
      average_.insert(average_.begin() + static_cast<std::ptrdiff_t>(next),
                      {name, value.detach().to(options_of(value), /*non_blocking=*/false, /*copy=*/true)});
    } else {
      continue;
    }
    ++next;
  }
  if (!averages.empty()) {
    at::_foreach_lerp_(averages, now, 1 - decay);
  }
  ++updates_;
}

std::shared_ptr<void> WeightAverage::validation_scope() {
  return options_.in_validation && has_weights_of_fit() ? std::make_shared<ReplacedValues>(pairs()) : nullptr;
}

// The buffers are not compared, because each evaluation writes those of the main rank into them.
bool WeightAverage::has_weights_of_fit() const {
  return !at_end_ || *at_end_ == states_of(std::span(values_).first(parameter_count_));
}

void WeightAverage::copy_to_module() const {
  const at::NoGradGuard no_grad;
  for (auto [value, average] : pairs()) {
    value.copy_(average);
  }
}

NamedTensors WeightAverage::save() const {
  NamedTensors state = average_;
  if (!state.empty()) {
    state.emplace_back(kUpdates, at::scalar_tensor(updates_, at::kLong));
  }
  return state;
}

void WeightAverage::load(const NamedTensors& state) {
  average_.clear();
  updates_ = 0;
  for (const auto& [name, tensor] : state) {
    if (name == kUpdates) {
      updates_ = tensor.item<std::int64_t>();
    } else {
      average_.emplace_back(name, tensor);
    }
  }
}

NamedTensors averaged_model(const CheckpointContents& checkpoint, const std::string& name) {
  std::unordered_map<std::string, at::Tensor> averages;
  if (const auto callbacks = checkpoint.tensors.find("callbacks"); callbacks != checkpoint.tensors.end()) {
    for (const auto& [key, tensor] : under_prefix(callbacks->second, name + ".")) {
      averages.emplace(key, tensor);
    }
  }
  if (averages.empty()) {
    throw CheckpointError(fmt::format("the checkpoint has no average of a callback '{}'", name),
                          "train with WeightAverage, and give the name of its options");
  }
  const auto trained = checkpoint.tensors.find("model");
  if (trained == checkpoint.tensors.end()) {
    throw CheckpointError("the checkpoint has no model.safetensors", "choose another checkpoint");
  }
  NamedTensors model = trained->second;
  for (auto& [key, tensor] : model) {
    if (const auto average = averages.find(key); average != averages.end()) {
      tensor = average->second.to(tensor.scalar_type());
    }
  }
  return model;
}

}  // namespace lockstep
