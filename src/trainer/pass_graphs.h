// Forward and backward of micro-batches as graphs of the device (cuda_graphs).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <torch/nn/module.h>

#include <lockstep/data/batch.h>
#include <lockstep/trainer/step_output.h>

#include "world/device_clock.h"
#include "world/device_graph.h"

namespace lockstep {

/// Says once per fit why steps run without a graph although the configuration asks for it.
void tell_no_graph(std::string_view reason);

/// A forward and backward that runs often with the same shapes is recorded, and then replayed: the host makes one call
/// instead of hundreds. The result is the same, bit for bit. What cannot be recorded runs as it would without graphs.
///
/// A graph has the addresses of its memory. So a batch is copied to the tensors of the graph, and the backward writes
/// the gradients to tensors of the graph, which become the grad() of the parameters. A step with several micro-batches
/// needs two graphs: the first one writes the gradients, the other one adds to them.
class PassGraphs {
 public:
  /// A forward and a backward, which adds to the gradients of the module or sets them. It depends on nothing but the
  /// tensors of the batch and what is on the device, and changes nothing else.
  using Pass = std::function<StepOutput(const Batch&)>;
  struct MicroBatch {
    const Batch& batch;
    double weight;           ///< of its loss: a constant of the graph
    double loss_factor = 1;  ///< likewise
    bool begins_step;        ///< the first one of a step
  };

  /// `module` and `clock` must live longer.
  PassGraphs(torch::nn::Module& module, c10::Device device, DeviceClock& clock, DeviceGraphFactory make);
  ~PassGraphs();
  PassGraphs(const PassGraphs&) = delete;
  PassGraphs& operator=(const PassGraphs&) = delete;

  /// The output of `pass` for the micro-batch; without an autograd graph if it was replayed.
  StepOutput run(const MicroBatch& micro, const Pass& pass);
  /// Drops the graphs for good and tells why, unless that was done before.
  void stop(std::string_view reason);

 private:
  class Layout;
  struct Recorded {
    std::unique_ptr<DeviceGraph> graph{};
    StepOutput output{};                  // overwritten by each replay
    std::vector<at::Tensor> gradients{};  // where it leaves them
  };

  void look_at(const Batch& batch);
  StepOutput warm_up(const Batch& batch, const Pass& pass);
  Recorded* graph_for_gradients();
  bool record(Recorded& recorded, const Batch& batch, const Pass& pass);
  std::string problem_of(const Recorded& recorded) const;
  StepOutput replay(const Recorded& recorded, const Batch& batch);
  void beside(const std::function<void()>& work);
  void drop_graphs() noexcept;
  void forget() noexcept;

  torch::nn::Module& module_;
  const c10::Device device_;
  DeviceClock& clock_;
  const DeviceGraphFactory make_;
  const c10::Stream side_;            // LibTorch does not record on the default stream
  c10::Event current_done_;           // what the current stream had to do before the work of the side stream
  c10::Event side_done_;              // that work
  std::unique_ptr<Layout> layout_{};  // nullptr: to be looked at
  std::string kind_{};                // of the last micro-batch
  int in_a_row_ = 0;                  // micro-batches of this kind
  std::string recorded_kind_{};
  Batch inputs_{};  // of both graphs
  Recorded first_{};
  Recorded further_{};
  int tries_ = 0;  // without a graph
  std::int64_t recordings_ = 0;
  std::int64_t replays_ = 0;
  bool has_told_ = false;  // that there is a graph
  bool stopped_ = false;
};

}  // namespace lockstep
