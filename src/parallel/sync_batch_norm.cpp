#include <numeric>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <lockstep/base/error.h>
#include <lockstep/parallel/sync_batch_norm.h>

#include "parallel/sync_statistics.h"
#include "tensor/shape_text.h"

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// What a backward needs besides tensors.
struct NormContext : torch::CustomClassHolder {
  NormContext(std::shared_ptr<SyncStatistics> of_strategy, std::size_t module, double epsilon)
      : statistics(std::move(of_strategy)), index(module), eps(epsilon) {}
  std::shared_ptr<SyncStatistics> statistics;
  std::size_t index;
  double eps;
};

/// The gradients of the input, the weight and the bias, without the part that goes through the statistics.
std::tuple<at::Tensor, at::Tensor, at::Tensor> gradients_of(const at::Tensor& gradient, const at::Tensor& input,
                                                            const at::Tensor& weight, const at::Tensor& mean,
                                                            const at::Tensor& variance, double eps) {
  if (input.numel() == 0) {  // the kernels divide by the number of values
    return {at::empty_like(input), at::zeros_like(mean), at::zeros_like(mean)};
  }
  // Empty, not undefined: the kernels of CUDA for channels-last and [N, C] inputs refuse undefined tensors.
  const at::Tensor none = at::empty({0}, mean.options());
  return at::native_batch_norm_backward(gradient, input, weight, mean, variance, /*save_mean=*/none,
                                        /*save_invstd=*/none, /*train=*/false, eps, {true, true, true});
}

// Note [Batch norm over ranks]: the kernels of evaluation mode normalise with given statistics, and their backward
// gives the part of the gradient that does not go through the statistics, with the sums of dy and of dy x normalised
// input. The other part follows from these sums over all ranks:
//   dx = weight / std x (dy - mean(dy) - normalised x mean(dy x normalised))
struct Normalise : torch::autograd::Function<Normalise> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight,
                            const at::Tensor& bias, const at::Tensor& mean, const at::Tensor& variance,
                            const at::Tensor& count, const c10::intrusive_ptr<NormContext>& norm) {
    context->save_for_backward({input, weight, mean, variance, count});
    context->saved_data["norm"] = c10::IValue::make_capsule(norm);
    if (input.numel() == 0) {
      return at::empty_like(input);
    }
    return std::get<0>(at::native_batch_norm(input, weight.to(mean.dtype()), bias.to(mean.dtype()), mean, variance,
                                             /*training=*/false, /*momentum=*/0, norm->eps));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (at::GradMode::is_enabled()) {
      throw Error("SyncBatchNorm has no second derivative", "use torch::nn::BatchNorm where you need one");
    }
    const auto saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &variance = saved[3], &count = saved[4];
    const auto capsule = context->saved_data["norm"].toCapsule();
    const auto& norm = static_cast<const NormContext&>(*capsule);
    const at::Tensor scale = weight.to(mean.dtype());
    auto [dx, dweight, dbias] = gradients_of(gradients[0], input, scale, mean, variance, norm.eps);
    const ChannelSums sums =
        norm.statistics->add_up(SyncStatistics::Pass::backward, norm.index,
                                {at::zeros_like(count), dbias.to(at::kDouble), dweight.to(at::kDouble)});
    const at::Tensor mean_dy = (sums.first / count).to(mean.dtype());
    const at::Tensor mean_product = (sums.second / count).to(mean.dtype());
    const at::Tensor inverse = (variance + norm.eps).rsqrt();
    const at::Tensor factor = scale * inverse;
    const at::Tensor slope = factor * inverse * mean_product;
    const at::Tensor offset = factor * mean_dy - slope * mean;
    std::vector<std::int64_t> per_channel(static_cast<std::size_t>(input.dim()), 1);
    per_channel[1] = -1;
    dx.sub_(at::addcmul(offset.view(per_channel), input, slope.view(per_channel)));
    return {dx, dweight.to(weight.dtype()), dbias.to(weight.dtype()), {}, {}, {}, {}};
  }
};

ChannelSums sums_of(const at::Tensor& input) {
  const at::TensorOptions options = input.options().dtype(at::kDouble);
  if (input.numel() == 0) {  // its mean and variance are NaN
    return {at::zeros({}, options), at::zeros({input.size(1)}, options), at::zeros({input.size(1)}, options)};
  }
  std::vector<std::int64_t> others(static_cast<std::size_t>(input.dim()));
  std::iota(others.begin(), others.end(), 0);
  others.erase(others.begin() + 1);
  auto [variance, mean] = at::var_mean(input, others, /*correction=*/0);
  variance = variance.to(at::kDouble);
  mean = mean.to(at::kDouble);
  const double count = static_cast<double>(input.numel()) / static_cast<double>(input.size(1));
  return {at::full({}, count, options), mean * count, (variance + mean * mean) * count};
}

struct Moments {
  at::Tensor mean{};
  at::Tensor variance{};
};

Moments moments_of(const ChannelSums& sums) {
  const at::Tensor mean = sums.first / sums.count;
  return {mean, (sums.second / sums.count - mean * mean).clamp_min(0)};
}

}  // namespace

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  const auto statistics = statistics_.lock();
  if (statistics == nullptr || !is_training()) {
    return BatchNormImplBase::forward(input);
  }
  _check_input_dim(input);
  // float64 sums: the variance is a difference of two of them.
  ChannelSums sums;
  const at::ScalarType dtype = input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  {
    const at::NoGradGuard no_grad;
    sums = statistics->add_up(SyncStatistics::Pass::forward, index_, sums_of(input.detach().to(dtype)));
    if (sums.count.is_cpu() && *sums.count.const_data_ptr<double>() == 0) {
      throw Error("SyncBatchNorm: the inputs of all ranks are empty", "leave out a micro-batch without values");
    }
    track(sums);
  }
  const Moments moments = moments_of(sums);
  const at::Tensor mean = moments.mean.to(dtype);
  return Normalise::apply(input, weight.defined() ? weight : at::ones_like(mean),
                          bias.defined() ? bias : at::zeros_like(mean), mean, moments.variance.to(dtype), sums.count,
                          c10::make_intrusive<NormContext>(statistics, index_, options.eps()));
}

/// Updates the running statistics, as torch::nn does with those of its batch.
void SyncBatchNormImpl::track(const ChannelSums& sums) {
  if (!options.track_running_stats()) {
    return;
  }
  const at::NoGradGuard no_grad;
  num_batches_tracked += 1;
  const double momentum = options.momentum() ? *options.momentum() : 1 / num_batches_tracked.item<double>();
  const Moments moments = moments_of(sums);
  const at::Tensor unbiased = moments.variance * (sums.count / (sums.count - 1).clamp_min(1));
  running_mean.lerp_(moments.mean.to(running_mean.dtype()), momentum);
  running_var.lerp_(unbiased.to(running_var.dtype()), momentum);
}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  if (input.dim() < 2 || input.size(1) != options.num_features()) {
    throw Error(fmt::format("SyncBatchNorm: the input has shape {}, expected [N, {}, ...]", shape_text(input.sizes()),
                            options.num_features()));
  }
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format("lockstep::SyncBatchNorm({}, eps={})", options.num_features(), options.eps());
}

}  // namespace lockstep
