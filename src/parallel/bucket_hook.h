// How the buckets of a reducer are reduced if not by the reducer itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <lockstep/config/train_config.h>
#include <lockstep/parallel/gradient_hook.h>

namespace lockstep {

/// A complex tensor as real numbers in the same memory; other tensors unchanged.
at::Tensor reals_of(const at::Tensor& bucket);

/// Replaces the values of `bucket` by their mean over the ranks of the group.
c10::intrusive_ptr<c10::ivalue::Future> mean_over(c10d::ProcessGroup& group, const at::Tensor& bucket);

/// With a hook, the reducer does not divide by the world size, so the hook does.
///
/// Note [Counts and compression]: gradients that are weighted by counts are sums over a step's tokens and would
/// overflow in fp16. The lane, which has the counts, is a separate bucket that is sent first and unchanged. The other
/// buckets wait for it on the device and are divided by the power of two below the mean count while they are reduced.
class BucketHook : public c10d::CommHookInterface {
 public:
  BucketHook(World& world, std::int64_t count_slot);

  /// Call it before each backward. `expects_counts`: this rank expects counts in the lane.
  virtual void begin_backward(bool expects_counts, std::int64_t step);
  /// Call it after each backward: then the buckets have the means.
  virtual void finish() {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) final;
  at::Tensor parseHookResult(const c10::IValue& result) final { return result.toTensor(); }

 protected:
  using Result = c10::intrusive_ptr<c10::ivalue::Future>;
  /// Replaces the values of `bucket`, this rank's gradients, by their mean, at the latest in finish(). `index`: without
  /// the lane's bucket.
  virtual Result reduce(const at::Tensor& bucket, std::int64_t index) = 0;

  /// 0-dim on the device, the same on every rank; undefined: the rank expects no counts.
  at::Tensor unit();
  std::int64_t step() const { return step_; }

  World& world_;
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;

 private:
  const std::int64_t count_slot_;
  bool expects_counts_ = false;
  std::int64_t step_ = 0;
  std::int64_t next_ = 0;  // bucket of this backward; not GradBucket::getIndex(), see runHook()
  c10::intrusive_ptr<c10d::Work> lane_work_{};
  at::Tensor lane_{};  // lane of this backward
  at::Tensor unit_{};
};

/// Keys of the random rounding: the seed of the run and the position of the optimizer.
struct RoundingKey {
  std::uint64_t seed = 0;
  std::size_t optimizer = 0;
};

/// dist.compression.
class CompressionHook final : public BucketHook {
 public:
  CompressionHook(World& world, std::int64_t count_slot, GradCompression compression, const RoundingKey& key);

 private:
  Result reduce(const at::Tensor& bucket, std::int64_t index) override;
  std::uint64_t key(std::int64_t bucket, std::uint64_t place) const;

  const GradCompression compression_;
  const RoundingKey key_;
};

/// The hook of the program. The backward only collects the buckets, and finish() calls the hook for each: in the
/// backward it would wait for ranks that wait for this one's SyncBatchNorm.
class ProgramHook final : public BucketHook {
 public:
  ProgramHook(World& world, std::int64_t count_slot, GradientHook hook, std::size_t optimizer);

  void begin_backward(bool expects_counts, std::int64_t step) override;
  void finish() override;

 private:
  Result reduce(const at::Tensor& bucket, std::int64_t index) override;
  void call(const GradientBucket& bucket);

  const GradientHook hook_;
  const std::size_t optimizer_;
  std::vector<GradientBucket> buckets_{};  // of this backward
};

}  // namespace lockstep
