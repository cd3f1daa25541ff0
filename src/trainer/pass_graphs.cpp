#include "trainer/pass_graphs.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <lockstep/base/log.h>
#include <lockstep/checkpoint/rng_state.h>

#include "base/mapped.h"
#include "base/text.h"
#include "data/for_each_tensor.h"
#include "parallel/for_each_module.h"
#include "tensor/stream_memory.h"

namespace lockstep {
namespace {

constexpr int kMostTries = 100;  // micro-batches without a graph until the log says so
constexpr int kWarmUps = 3;      // as PyTorch: libraries choose their algorithms and take their memory
// If more graphs than this were replayed less often on average, recording takes more time than replays save.
constexpr std::int64_t kManyGraphs = 10;
constexpr std::int64_t kFewReplays = 20;

std::string describe(const at::Tensor& tensor) {
  return tensor.defined() ? fmt::format("{} {} {} {}", c10::toString(tensor.scalar_type()), tensor.device().str(),
                                        fmt::join(tensor.sizes(), ","), fmt::join(tensor.strides(), ","))
                          : std::string("none");
}

/// Micro-batches of one kind can share a graph.
std::string kind_of(const PassGraphs::MicroBatch& micro) {
  const Batch& batch = micro.batch;
  std::string kind = fmt::format("{} of loader {} weigh {} x {}, {} replaced; {}; {}; {}", batch.samples, batch.loader,
                                 micro.weight, micro.loss_factor, fmt::join(batch.replaced, ","), describe(batch.input),
                                 describe(batch.target), describe(batch.weight));
  for (const auto& [name, tensor] : batch.fields) {
    kind += fmt::format("; {} {}", name, describe(tensor));
  }
  return kind;
}

std::vector<at::Tensor> tensors_of(const Batch& batch) {
  std::vector<at::Tensor> tensors;
  for_each_tensor(batch, [&](const at::Tensor& tensor) { tensors.push_back(tensor); });
  return tensors;
}

/// Why a graph cannot have the tensor: "is sparse"; "": it can.
std::string why_unfit(const at::Tensor& tensor, c10::Device device) {
  if (tensor.is_nested()) {
    return "is nested";
  }
  if (tensor.layout() != at::kStrided) {
    return "is sparse";
  }
  return tensor.device() == device ? "" : fmt::format("is on {}", tensor.device().str());
}

/// The same memory in new tensors: what a pass does to their gradients and shapes is not seen.
Batch with_new_tensors(Batch batch) {
  for_each_tensor(batch, [](at::Tensor& tensor) { tensor = tensor.detach(); });
  return batch;
}

/// Calls visit(at::Tensor&) for the loss, the count and the metrics.
template <class Visit>
void for_each_output_tensor(StepOutput& output, const Visit& visit) {
  for (at::Tensor* tensor : {&output.loss, &output.count}) {
    if (tensor->defined()) {
      visit(*tensor);
    }
  }
  for (auto& [name, value] : output.metrics) {
    visit(value);
  }
}

}  // namespace

void tell_no_graph(std::string_view reason) {
  log_warning(fmt::format("--cuda_graphs: steps run without a CUDA graph, with the same results: {}", reason));
}

/// What a graph takes for granted: which tensors and parts the module has, where these tensors are, which of them
/// require gradients, and which parts are in training mode.
class PassGraphs::Layout {
 public:
  explicit Layout(const torch::nn::Module& module) : module_(module), places_(places_of(module)) {
    for (const Place& place : places_) {
      if (place.tensor.requires_grad()) {
        trained_.push_back(place.tensor);
      }
    }
  }

  bool is_current() const { return places_of(module_) == places_; }

  std::vector<at::Tensor> gradients() const {
    return mapped(trained_, [](const at::Tensor& parameter) { return parameter.grad(); });
  }
  bool has_no_gradients() const {
    return std::ranges::none_of(trained_, [](const at::Tensor& parameter) { return parameter.grad().defined(); });
  }
  bool has_gradients(const std::vector<at::Tensor>& gradients) const {
    return std::ranges::equal(trained_, gradients, [](const at::Tensor& parameter, const at::Tensor& gradient) {
      return parameter.grad().is_same(gradient);
    });
  }
  void set_gradients(const std::vector<at::Tensor>& gradients) const {
    for (std::size_t i = 0; i < trained_.size(); ++i) {
      trained_[i].mutable_grad() = gradients[i];
    }
  }

 private:
  /// A part of the module or a tensor, which is kept so that no other one gets its address. Neither: the module itself.
  struct Place {
    std::shared_ptr<torch::nn::Module> part{};
    at::Tensor tensor{};
    const void* memory = nullptr;
    bool is_on = false;  // training mode of a part, requires_grad of a tensor

    bool operator==(const Place& other) const {
      return part == other.part && tensor.is_same(other.tensor) && memory == other.memory && is_on == other.is_on;
    }
  };

  static std::vector<Place> places_of(const torch::nn::Module& module) {
    std::vector<Place> places;
    for_each_module(module, [&](const torch::nn::Module& part, const std::shared_ptr<torch::nn::Module>& pointer) {
      places.push_back({.part = pointer, .is_on = part.is_training()});
      for (const auto& tensors : {part.parameters(/*recurse=*/false), part.buffers(/*recurse=*/false)}) {
        for (const at::Tensor& tensor : tensors) {
          places.push_back({.tensor = tensor,
                            .memory = tensor.has_storage() ? tensor.const_data_ptr() : nullptr,
                            .is_on = tensor.requires_grad()});
        }
      }
    });
    return places;
  }

  const torch::nn::Module& module_;
  const std::vector<Place> places_;
  std::vector<at::Tensor> trained_{};
};

PassGraphs::PassGraphs(torch::nn::Module& module, c10::Device device, DeviceClock& clock, DeviceGraphFactory make)
    : module_(module),
      device_(device),
      clock_(clock),
      make_(std::move(make)),
      side_(c10::impl::VirtualGuardImpl(device.type()).getNewStream(device)),
      current_done_(device.type()),
      side_done_(device.type()) {}

PassGraphs::~PassGraphs() = default;

StepOutput PassGraphs::run(const MicroBatch& micro, const Pass& pass) {
  const Batch& batch = micro.batch;
  if (!stopped_) {
    look_at(batch);
  }
  if (stopped_) {
    return pass(batch);
  }
  if (layout_ == nullptr || !layout_->is_current()) {
    forget();
    layout_ = std::make_unique<Layout>(module_);
  }
  std::string kind = kind_of(micro);
  in_a_row_ = kind == kind_ ? in_a_row_ + 1 : 1;
  kind_ = std::move(kind);
  if (kind_ != recorded_kind_ && in_a_row_ <= kWarmUps) {
    if (!has_told_ && ++tries_ == kMostTries) {
      tell_no_graph(fmt::format("of {} micro-batches, no {} in a row had the same shapes and an unchanged module",
                                kMostTries, kWarmUps + 1));
    }
    return warm_up(batch, pass);
  }
  Recorded* const recorded = graph_for_gradients();
  if (recorded == nullptr && micro.begins_step) {
    stop("a parameter has a gradient before the first backward of a step");
  }
  if (recorded == nullptr || (recorded->graph == nullptr && !record(*recorded, batch, pass))) {
    return pass(batch);
  }
  return replay(*recorded, batch);
}

void PassGraphs::look_at(const Batch& batch) {
  if (batch.extra.has_value()) {
    stop("the batch has a value on the host, Batch::extra");
  }
  for (const at::Tensor& tensor : tensors_of(batch)) {
    if (const std::string problem = why_unfit(tensor, device_); !problem.empty()) {
      stop(fmt::format("a tensor of the batch {}", problem));
    }
  }
}

StepOutput PassGraphs::warm_up(const Batch& batch, const Pass& pass) {
  StepOutput output;
  beside([&] { output = pass(batch); });
  const c10::Stream current = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  for_each_output_tensor(output, [&](const at::Tensor& tensor) { keep_for(current, tensor); });
  for (const at::Tensor& gradient : layout_->gradients()) {
    keep_for(current, gradient);
  }
  return output;
}

/// nullptr: the gradients are not those of a graph, for example after a micro-batch of another kind.
PassGraphs::Recorded* PassGraphs::graph_for_gradients() {
  const bool is_known = kind_ == recorded_kind_;
  if (!layout_->has_no_gradients()) {
    return is_known && layout_->has_gradients(first_.gradients) ? &further_ : nullptr;
  }
  if (!is_known) {
    drop_graphs();
    recorded_kind_ = kind_;
  }
  return &first_;
}

// Nothing that is recorded runs. So if it fails, what there is to undo is on the host: the gradients that the
// parameters have got, and the random numbers that the pass has drawn.
bool PassGraphs::record(Recorded& recorded, const Batch& batch, const Pass& pass) {
  if (&recorded == &first_ && ++recordings_ > kManyGraphs && replays_ < kFewReplays * recordings_) {
    stop(fmt::format("{} graphs were recorded and replayed only {} times in all: shapes or the module change too often",
                     recordings_ - 1, replays_));
    return false;
  }
  const std::vector<at::Tensor> gradients = layout_->gradients();
  const at::Tensor random = rng_state(c10::kCPU);
  const auto no_events = clock_.pause();
  std::string problem;
  try {
    if (&recorded == &first_) {
      inputs_ = with_new_tensors(batch);
      for_each_tensor(inputs_, [](at::Tensor& tensor) { tensor = tensor.clone(); });
    }
    recorded.graph = make_(first_.graph.get());
    beside([&] {
      recorded.graph->record([&] {
        recorded.output = pass(with_new_tensors(inputs_));
        for_each_output_tensor(recorded.output, [](at::Tensor& tensor) { tensor = tensor.detach(); });
      });
    });
    recorded.gradients = layout_->gradients();
    problem = at::equal(rng_state(c10::kCPU), random) ? problem_of(recorded)
                                                      : "training_step draws random numbers on the host";
  } catch (const std::exception& error) {
    problem = fmt::format("training_step cannot be recorded: {}", first_line(without_frames(error.what())));
  }
  if (!problem.empty()) {
    layout_->set_gradients(gradients);
    set_rng_state(random, c10::kCPU);
    stop(problem);
    return false;
  }
  if (!std::exchange(has_told_, true)) {
    log_info(fmt::format("forward and backward of a micro-batch are replayed as a CUDA graph, which keeps {} of memory",
                         human_bytes(recorded.graph->bytes())));
  }
  return true;
}

std::string PassGraphs::problem_of(const Recorded& recorded) const {
  if (!recorded.output.loss.defined()) {
    return "training_step returns no loss";
  }
  std::string problem;
  const auto look = [&](const std::string& what, const at::Tensor& tensor) {
    if (const std::string found = tensor.defined() ? why_unfit(tensor, device_) : ""; !found.empty()) {
      problem = fmt::format("{} {}", what, found);
    }
  };
  look("the loss", recorded.output.loss);
  look("the count", recorded.output.count);
  for (const auto& [name, value] : recorded.output.metrics) {
    look(fmt::format("the metric {}", name), value);
  }
  for (const at::Tensor& gradient : recorded.gradients) {
    look("a gradient", gradient);
  }
  if (&recorded == &further_ && !layout_->has_gradients(first_.gradients)) {
    problem = "a gradient is not added to in its memory";
  }
  return problem;
}

StepOutput PassGraphs::replay(const Recorded& recorded, const Batch& batch) {
  RECORD_USER_SCOPE("graph");
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> values = tensors_of(batch);
  auto value = values.begin();
  for_each_tensor(inputs_, [&](at::Tensor& input) { input.copy_(*value++, /*non_blocking=*/true); });
  recorded.graph->replay();
  ++replays_;
  layout_->set_gradients(recorded.gradients);
  StepOutput output = recorded.output;
  for_each_output_tensor(output, [](at::Tensor& tensor) { tensor = tensor.clone(); });
  return output;
}

/// Runs `work` on the side stream, between the work of the current one before and after it.
void PassGraphs::beside(const std::function<void()>& work) {
  const c10::Stream current = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  const auto return_to_current = [&] {
    side_done_.record(side_);
    side_done_.block(current);
  };
  current_done_.record(current);
  current_done_.block(side_);
  try {
    const c10::StreamGuard on_side(side_);
    work();
  } catch (...) {
    return_to_current();
    throw;
  }
  return_to_current();
}

void PassGraphs::drop_graphs() noexcept {
  further_ = {};
  first_ = {};
  inputs_ = {};
  recorded_kind_.clear();
}

void PassGraphs::forget() noexcept {
  drop_graphs();
  layout_.reset();
  in_a_row_ = 0;
}

void PassGraphs::stop(std::string_view reason) {
  if (!std::exchange(stopped_, true)) {
    drop_graphs();
    tell_no_graph(reason);
  }
}

}  // namespace lockstep
