// One optimizer of Ddp: the reducer of its gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include <ATen/record_function.h>

#include "parallel/ddp.h"
#include "parallel/optimizer_shards.h"

namespace c10d {
class Logger;
class Reducer;
}  // namespace c10d

namespace lockstep {

class BucketHook;
class SharedMemoryHook;

/// The only class that uses the reducer.
class DdpOptimizer final : public SingleDeviceOptimizer {
 public:
  DdpOptimizer(const OptimizerSpec& spec, Ddp& ddp);
  ~DdpOptimizer() override;
  DdpOptimizer(const DdpOptimizer&) = delete;
  DdpOptimizer& operator=(const DdpOptimizer&) = delete;

  void zero_grad() override;
  void begin_forward(Gradients gradients) override;
  void backward(const at::Tensor& loss, const at::Tensor& weight) override;
  void backward_nothing() override;
  at::Tensor mean_count() override;
  at::Tensor mean_loss() override;
  at::Tensor mean_inputs() override;
  void finish() override;
  void step() override;
  NamedTensors state() const override;
  NamedTensors evaluation_values() const override;
  void build_again() override;

  /// Collective. `sparse`: parameters of the module with sparse gradients.
  void make_reducer(std::unordered_set<const c10::TensorImpl*> sparse);
  void remove_reducer();

 private:
  void run_backward(std::vector<at::Tensor> roots, std::vector<at::Tensor> gradients);
  void check_all_used() const;
  bool is_sparse(const at::Tensor& parameter) const { return sparse_.contains(parameter.unsafeGetTensorImpl()); }
  NamedTensors all_parameters() const;
  /// Ends the forward or the backward of a micro-batch for SyncBatchNorm.
  void end_pass();
  /// This rank's own work is done: it waits for the others from now on.
  void begin_reduction();
  std::vector<std::string> sparse_names() const;
  struct ReducerLists;
  ReducerLists lists_for_reducer() const;
  /// nullptr: the reducer reduces without one.
  std::unique_ptr<BucketHook> make_hook() const;

  Ddp& ddp_;
  at::Tensor lane_{};  // the reducer's parameter 0
  std::shared_ptr<c10d::Reducer> reducer_{};
  std::shared_ptr<c10d::Logger> logger_{};  // the reducer uses it without a null check
  BucketHook* hook_ = nullptr;              // owned by the reducer, as the next one; null: it reduces without
  SharedMemoryHook* shared_ = nullptr;
  std::unordered_set<const c10::TensorImpl*> sparse_{};
  std::vector<bool> used_{};  // dist.static_graph: by the first backward of this rank; same order as parameters_
  bool reduce_ = true;
  bool first_backward_ = true;
  bool counts_again_ = false;  // dist.static_graph: a rank had no samples in the first backward
  bool is_reducing_ = false;
  std::optional<at::RecordFunction> waiting_{};  // a range of Profiler's trace
  std::int64_t bytes_ = 0;                       // of all gradients
  bool idle_ = true;                             // no samples yet in this step
  bool has_loss_ = true;                         // of the current backward
  std::optional<OptimizerShards> shards_{};      // with dist.shard_optimizer
};

}  // namespace lockstep
