#include "parallel/bucket_hook.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>
#include <lockstep/world/world.h>

#include "base/about_another_rank.h"
#include "base/exception_text.h"
#include "tensor/stochastic_rounding.h"
#include "world/peer_errors.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

c10::intrusive_ptr<c10::ivalue::Future> sum_of(c10d::Work& work, const at::Tensor& sum) {
  return work.getFuture()->then(
      [sum](c10::ivalue::Future& future) {
        future.value();  // rethrows
        return c10::IValue(sum);
      },
      c10::TensorType::get());
}

}  // namespace

at::Tensor reals_of(const at::Tensor& bucket) { return bucket.is_complex() ? at::view_as_real(bucket) : bucket; }

c10::intrusive_ptr<c10::ivalue::Future> mean_over(c10d::ProcessGroup& group, const at::Tensor& bucket) {
  bucket.div_(group.getSize());
  std::vector<at::Tensor> sent{bucket};
  return sum_of(*group.allreduce(sent), bucket);
}

BucketHook::BucketHook(World& world, std::int64_t count_slot)
    : world_(world), group_(WorldAccess::group(world)), count_slot_(count_slot) {}

void BucketHook::begin_backward(bool expects_counts, std::int64_t step) {
  expects_counts_ = expects_counts;
  step_ = step;
  next_ = 0;
}

// The buckets come in their order, but in the first backward of a static graph the reducer gives all of them index 0.
c10::intrusive_ptr<c10::ivalue::Future> BucketHook::runHook(c10d::GradBucket& bucket) {
  const at::Tensor& full = bucket.getBuffer();
  if (const std::int64_t index = next_++; index > 0) {
    return full.is_sparse() ? mean_over(*group_, full) : reduce(full, index - 1);
  }
  full.div_(group_->getSize());
  std::vector<at::Tensor> sent{full};
  unit_.reset();
  lane_ = full;
  lane_work_ = group_->allreduce(sent);
  return sum_of(*lane_work_, full);
}

at::Tensor BucketHook::unit() {
  if (expects_counts_ && !unit_.defined()) {
    lane_work_->wait();
    const at::Tensor count = lane_.select(0, count_slot_);
    unit_ = at::where(count > 0, count.log2().floor_().exp2_(), 1);
  }
  return unit_;
}

CompressionHook::CompressionHook(World& world, std::int64_t count_slot, GradCompression compression,
                                 const RoundingKey& key)
    : BucketHook(world, count_slot), compression_(compression), key_(key) {}

std::uint64_t CompressionHook::key(std::int64_t bucket, std::uint64_t place) const {
  return rounding_key(key_.seed, {static_cast<std::uint64_t>(step()), std::uint64_t{key_.optimizer},
                                  static_cast<std::uint64_t>(bucket), place});
}

BucketHook::Result CompressionHook::reduce(const at::Tensor& bucket, std::int64_t index) {
  const at::Tensor reals = reals_of(bucket);
  const bool in_half = compression_ == GradCompression::fp16 || compression_ == GradCompression::bf16;
  const at::Tensor mean = in_half ? reals : reals.to(at::kFloat);
  mean.div_(group_->getSize());
  if (unit().defined()) {
    mean.div_(unit());
  }
  at::Tensor sent = mean;
  if (in_half) {
    sent = mean.to(compression_ == GradCompression::fp16 ? at::kHalf : at::kBFloat16);
  } else if (compression_ == GradCompression::bf16_stochastic) {
    sent = stochastically_rounded(mean, key(index, static_cast<std::uint64_t>(world_.rank()) + 1));
  }
  const bool rounds = compression_ == GradCompression::fp32_stochastic && bucket.scalar_type() == at::kBFloat16;
  std::vector<at::Tensor> sents{sent};
  return group_->allreduce(sents)->getFuture()->then(
      // The key has no rank here: all ranks round alike.
      [bucket, reals, sent, unit = unit(), rounds, key = key(index, 0)](c10::ivalue::Future& future) {
        future.value();  // rethrows
        reals.copy_(rounds ? stochastically_rounded(sent, key) : sent);
        if (unit.defined()) {
          reals.mul_(unit);
        }
        return c10::IValue(bucket);
      },
      c10::TensorType::get());
}

ProgramHook::ProgramHook(World& world, std::int64_t count_slot, GradientHook hook, std::size_t optimizer)
    : BucketHook(world, count_slot), hook_(std::move(hook)), optimizer_(optimizer) {}

void ProgramHook::begin_backward(bool expects_counts, std::int64_t step) {
  BucketHook::begin_backward(expects_counts, step);
  buckets_.clear();
}

BucketHook::Result ProgramHook::reduce(const at::Tensor& bucket, std::int64_t index) {
  buckets_.push_back({.gradients = bucket, .index = index, .optimizer = optimizer_, .step = step()});
  // Its consumers wait on the device for what made the bucket.
  std::vector<c10::Device> devices;
  if (!world_.device().is_cpu()) {
    devices.push_back(world_.device());
  }
  auto done = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get(), std::move(devices));
  done->markCompleted(c10::IValue(bucket));
  return done;
}

void ProgramHook::finish() {
  const at::NoGradGuard no_grad;
  for (const GradientBucket& bucket : buckets_) {
    call(bucket);
  }
  buckets_.clear();
}

void ProgramHook::call(const GradientBucket& bucket) {
  const at::Tensor reals = reals_of(bucket.gradients);
  if (unit().defined()) {
    reals.div_(unit());
  }
  const auto failed = [&](const std::string& why, const std::string& hint = {}, ExitCode code = ExitCode::failed) {
    return Error(fmt::format("the gradient hook failed on rank {} in step {}, bucket {}: {}", world_.rank(),
                             bucket.step, bucket.index, why),
                 hint.empty() ? "the other ranks end because they miss this one" : hint, code);
  };
  try {
    hook_(bucket, world_);
  } catch (const AboutAnotherRank&) {
    throw;
  } catch (const CommError&) {
    throw;
  } catch (const Error& error) {
    throw failed(error.what(), error.hint(), error.exit_code());
  } catch (const std::exception& error) {
    if (is_peer_failure(error)) {
      throw;
    }
    throw failed(plain_text(error));
  } catch (...) {
    throw failed(current_exception_text());
  }
  if (unit().defined()) {
    reals.mul_(unit());
  }
}

}  // namespace lockstep
