// lockstep/parallel/sync_batch_norm.h
//
// Batch norm over the batches of all ranks.
#pragma once

#include <cstddef>
#include <memory>
#include <ostream>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

namespace [[gnu::visibility("default")]] lockstep {

class SyncStatistics;
struct ChannelSums;

/// Replaces torch::nn::BatchNorm1d, 2d and 3d, with their options and the names of their parameters and buffers. While
/// a Strategy of several ranks is prepared for its module, training normalises with mean and variance over the batches
/// of all ranks, as if they were one batch: forward and backward add up two numbers per channel over the ranks. A rank
/// without samples takes part. Otherwise it is plain batch norm.
///
/// Every rank with samples must call these modules in the same order, and run one backward per forward. Errors:
/// CommError (exit 78) naming the modules if the order differs; detected on a CPU only.
class SyncBatchNormImpl : public torch::nn::BatchNormImplBase<1, SyncBatchNormImpl> {
 public:
  using BatchNormImplBase<1, SyncBatchNormImpl>::BatchNormImplBase;

  /// Shape: [N, C, ...], and so the result. Throws: Error if the input has another number of channels; Error on the CPU
  /// if the inputs of all ranks are empty. On a GPU the running statistics become NaN then, because a check would wait
  /// for the device in every layer.
  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

 private:
  friend class SyncStatistics;

  void _check_input_dim(const at::Tensor& input) override;  // of torch::nn
  void track(const ChannelSums& sums);

  std::weak_ptr<SyncStatistics> statistics_{};  // of the strategy, if it has several ranks
  std::size_t index_ = 0;                       // among its modules
};
TORCH_MODULE(SyncBatchNorm);

}  // namespace lockstep
