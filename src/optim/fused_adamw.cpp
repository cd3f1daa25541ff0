#include "optim/fused_adamw.h"

#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "optim/fp32_update.h"
#include "tensor/one_thread.h"

namespace lockstep {
namespace {

at::TensorOptions counter_options(c10::Device device) { return at::TensorOptions().dtype(at::kFloat).device(device); }

FusedAdamWState& state_cast(torch::optim::OptimizerParamState& state) { return static_cast<FusedAdamWState&>(state); }

const at::Tensor& first_moment(const torch::optim::OptimizerParamState& state) {
  return static_cast<const FusedAdamWState&>(state).exp_avg;
}

}  // namespace

FusedAdamW::FusedAdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                       const torch::optim::AdamWOptions& defaults, WeightDecay weight_decay)
    : ListOptimizer(groups, std::make_unique<torch::optim::AdamWOptions>(defaults), first_moment),
      weight_decay_(weight_decay) {}

void FusedAdamW::update() {
  const at::Tensor skip = std::exchange(found_inf_, {});
  const std::optional<at::Tensor> found_inf = skip.defined() ? std::optional(skip) : std::nullopt;
  if (!counters_.empty()) {
    at::_foreach_add_(counters_, 1);
  }
  for (std::size_t i = 0; i < moments_.size(); ++i) {
    const GradientList& list = lists()[i];
    const OneThread for_small_tensors(list.is_small);
    const Moments& moments = moments_[i];
    const auto& options = options_of<torch::optim::AdamWOptions>(list);
    const auto [beta1, beta2] = options.betas();
    const auto update_tensors = [&](at::TensorList values, at::TensorList gradients, at::TensorList exp_avgs,
                                    at::TensorList exp_avg_sqs, at::TensorList max_exp_avg_sqs, at::TensorList steps) {
      const auto call = [&](auto kernel) {
        kernel(values, gradients, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, steps, options.lr(), beta1, beta2,
               options.weight_decay(), options.eps(), options.amsgrad(), /*maximize=*/false,
               /*grad_scale=*/std::optional<at::Tensor>(), found_inf);
      };
      if (weight_decay_ == WeightDecay::decoupled) {
        call([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
      } else {
        call([](auto&&... arguments) { at::_fused_adam_(arguments...); });
      }
    };
    if (rounds(list)) {
      update_in_fp32(
          {list.values, list.gradients, moments.exp_avgs, moments.exp_avg_sqs, moments.max_exp_avg_sqs, moments.steps},
          UpdateUnit::elements, {.key = rounding_key(), .positions = list.positions},
          [&](UpdateLists& part) { update_tensors(part[0], part[1], part[2], part[3], part[4], part[5]); });
    } else {
      update_tensors(list.values, list.gradients, moments.exp_avgs, moments.exp_avg_sqs, moments.max_exp_avg_sqs,
                     moments.steps);
    }
  }
  if (found_inf.has_value() && !counters_.empty()) {
    at::_foreach_add_(counters_, *found_inf, -1);  // the counters of a skipped step stay
  }
}

void FusedAdamW::lists_changed() {
  create_states();
  // If some parameters of a list have gradients and others have not, their step counts diverge: the first continue with
  // a copy of the common counter.
  struct Split {
    at::Tensor common{};  // keeps the tensor alive, so that no other counter gets its address
    at::Tensor own{};
  };
  std::unordered_map<const c10::TensorImpl*, Split> splits;
  moments_.clear();
  counters_.clear();
  for (const GradientList& list : lists()) {
    Moments& moments = moments_.emplace_back();
    for (const at::Tensor& parameter : list.parameters) {
      FusedAdamWState& state = state_cast(*state_.at(parameter.unsafeGetTensorImpl()));
      Split& split = splits[state.step.unsafeGetTensorImpl()];
      if (!split.own.defined()) {
        split = {.common = state.step, .own = state.step.clone()};
        counters_.push_back(split.own);
      }
      state.step = split.own;
      moments.steps.push_back(state.step);
      moments.exp_avgs.push_back(as_real(state.exp_avg));
      moments.exp_avg_sqs.push_back(as_real(state.exp_avg_sq));
      if (state.max_exp_avg_sq.defined()) {
        moments.max_exp_avg_sqs.push_back(as_real(state.max_exp_avg_sq));
      }
    }
  }
}

void FusedAdamW::create_states() {
  std::unordered_map<c10::Device, at::Tensor> zeros;
  for (const GradientList& list : lists()) {
    if (!list.is_new) {
      continue;
    }
    const bool amsgrad = options_of<torch::optim::AdamWOptions>(list).amsgrad();
    for (const at::Tensor& parameter : list.parameters) {
      at::Tensor& zero = zeros[parameter.device()];
      if (!zero.defined()) {
        zero = at::zeros({}, counter_options(parameter.device()));
      }
      auto state = std::make_unique<FusedAdamWState>();
      state->step = zero;
      state->exp_avg = at::zeros_like(parameter);
      state->exp_avg_sq = at::zeros_like(parameter);
      if (amsgrad) {
        state->max_exp_avg_sq = at::zeros_like(parameter);
      }
      state_[parameter.unsafeGetTensorImpl()] = std::move(state);
    }
  }
}

void FusedAdamW::share_steps() {
  std::map<std::tuple<c10::DeviceType, c10::DeviceIndex, std::int64_t>, at::Tensor> counters;
  for (auto& [key, slot] : state_) {
    FusedAdamWState& state = state_cast(*slot);
    const c10::Device device = state.step.device();
    const auto [found, added] =
        counters.try_emplace({device.type(), device.index(), state.step.item().toLong()}, state.step);
    state.step = found->second;
  }
}

}  // namespace lockstep
