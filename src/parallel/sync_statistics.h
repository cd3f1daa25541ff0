// The collectives of SyncBatchNorm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <lockstep/parallel/sync_batch_norm.h>
#include <lockstep/world/world.h>

namespace lockstep {

// A public header declares them, and so would export them.
struct [[gnu::visibility("hidden")]] ChannelSums;
class [[gnu::visibility("hidden")]] SyncStatistics;

/// Sums over values of each channel; float64, on the device.
struct ChannelSums {
  at::Tensor count{};   ///< values per channel; 0-dim
  at::Tensor first{};   ///< forward: of the values, backward: of dy. Shape: [C]
  at::Tensor second{};  ///< forward: of their squares, backward: of dy x normalised value. Shape: [C]
};

/// Adds up the statistics of the SyncBatchNorm modules of one module over the ranks.
///
/// Note [Ranks without samples]: a rank without samples in a micro-batch knows neither which modules the others call
/// nor how often. So every message says what its rank does, all messages have the same size, and each pass (the
/// forward, then the backward) ends with a message of zeros. A rank without samples sends zeros until a message tells
/// it that the pass has ended. The order of these collectives and of the gradient buckets may differ between ranks, so
/// they have a process group of their own.
class SyncStatistics {
 public:
  enum class Pass : std::uint8_t { forward, backward };

  /// Collective. nullptr if the module has no SyncBatchNorm. Its modules use the result as long as it lives.
  static std::shared_ptr<SyncStatistics> make(const torch::nn::Module& module, World& world);

  /// Collective. Adds up the `mine` of all ranks that call this module. Throws: CommError.
  ChannelSums add_up(Pass pass, std::size_t module, const ChannelSums& mine);
  /// Collective. Ends a pass of a rank that ran it. Throws: CommError.
  void end_pass();
  /// Collective. One pass of a rank that did not run it.
  void take_part();

 private:
  SyncStatistics(std::vector<std::string> names, std::vector<SyncBatchNormImpl*> modules, World world);

  at::Tensor send(at::Tensor message);
  [[noreturn]] void throw_other_order(const std::string& mine) const;

  std::vector<std::string> names_;
  std::vector<SyncBatchNormImpl*> modules_;  // they belong to the strategy's module
  World world_;
  at::Tensor padding_;                 // zeros, as long as a message
  std::vector<at::Tensor> headers_{};  // per module and pass
};

/// Throws: ConfigError naming the modules that are batch norm of torch::nn.
void refuse_plain_batch_norm(const torch::nn::Module& module);

}  // namespace lockstep
