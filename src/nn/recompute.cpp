#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/rng_state.h>
#include <lockstep/nn/recompute.h>

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Part = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// Autocast without its cache: a cast that it kept would have no gradient after the first run, and would be that of an
/// old weight after the second.
struct Autocast {
  explicit Autocast(c10::DeviceType type)
      : device(type),
        is_enabled(at::autocast::is_autocast_enabled(type)),
        dtype(at::autocast::get_autocast_dtype(type)) {}

  c10::DeviceType device;
  bool is_enabled;
  at::ScalarType dtype;
};

/// At its end, the settings are those of before.
class WithAutocast {
 public:
  explicit WithAutocast(const Autocast& wanted)
      : before_(wanted.device), was_cached_(at::autocast::is_autocast_cache_enabled()) {
    set(wanted, /*caches=*/false);
  }
  ~WithAutocast() { set(before_, was_cached_); }
  WithAutocast(const WithAutocast&) = delete;
  WithAutocast& operator=(const WithAutocast&) = delete;

 private:
  static void set(const Autocast& autocast, bool caches) {
    at::autocast::set_autocast_enabled(autocast.device, autocast.is_enabled);
    at::autocast::set_autocast_dtype(autocast.device, autocast.dtype);
    at::autocast::set_autocast_cache_enabled(caches);
  }

  Autocast before_;
  bool was_cached_;
};

/// At its end, the random numbers go on as before.
class WithRandomNumbers {
 public:
  WithRandomNumbers(const at::Tensor& state, c10::Device device) : device_(device), before_(rng_state(device)) {
    set_rng_state(state, device_);
  }
  ~WithRandomNumbers() { set_rng_state(before_, device_); }
  WithRandomNumbers(const WithRandomNumbers&) = delete;
  WithRandomNumbers& operator=(const WithRandomNumbers&) = delete;

 private:
  c10::Device device_;
  at::Tensor before_;
};

/// What the first run depends on besides its inputs.
struct FirstRun : torch::CustomClassHolder {
  FirstRun(Part part, c10::Device on) : f(std::move(part)), device(on), rng(rng_state(on)), autocast(on.type()) {}
  Part f;
  c10::Device device;
  at::Tensor rng;
  Autocast autocast;
};

struct Recompute : torch::autograd::Function<Recompute> {
  // The first tensor requires gradients. Without it there would be no backward if only parameters need one.
  static variable_list forward(AutogradContext* context, const at::Tensor&, at::TensorList inputs,
                               const c10::intrusive_ptr<FirstRun>& first) {
    const variable_list kept = inputs.vec();
    context->save_for_backward(kept);
    context->saved_data["first"] = c10::IValue::make_capsule(first);
    const WithAutocast autocast(first->autocast);
    return first->f(kept);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    if (at::GradMode::is_enabled()) {
      throw Error("recompute() has no second derivative", "call the function itself where you need one");
    }
    const auto capsule = context->saved_data["first"].toCapsule();
    const auto& first = static_cast<const FirstRun&>(*capsule);
    variable_list inputs;
    for (const at::Tensor& input : context->get_saved_variables()) {
      inputs.push_back(input.detach().requires_grad_(input.requires_grad()));
    }
    variable_list outputs;
    {
      const WithRandomNumbers rng(first.rng, first.device);
      const WithAutocast autocast(first.autocast);
      const at::AutoGradMode with_gradients(true);
      outputs = first.f(inputs);
    }
    variable_list roots;
    variable_list incoming;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i].requires_grad()) {
        roots.push_back(outputs[i]);
        incoming.push_back(gradients[i]);
      }
    }
    torch::autograd::backward(roots, incoming);
    variable_list result{at::Tensor()};
    for (const at::Tensor& input : inputs) {
      result.push_back(input.grad());
    }
    result.emplace_back();
    return result;
  }
};

/// Where the part computes: lengths and masks may be on the CPU.
c10::Device device_of(const std::vector<at::Tensor>& inputs) {
  const auto found = std::ranges::find_if(inputs, [](const at::Tensor& input) { return !input.is_cpu(); });
  return found == inputs.end() ? c10::Device(c10::kCPU) : found->device();
}

}  // namespace

std::vector<at::Tensor> recompute(Part f, const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) {
    return f(inputs);
  }
  if (!std::ranges::all_of(inputs, &at::Tensor::defined)) {
    throw Error("recompute() got an undefined tensor", "capture it in the function, which then decides what to do");
  }
  return Recompute::apply(at::empty({0}).requires_grad_(), at::TensorList(inputs),
                          c10::make_intrusive<FirstRun>(std::move(f), device_of(inputs)));
}

at::Tensor recompute(std::function<at::Tensor(const at::Tensor&)> f, const at::Tensor& input) {
  const Part part = [f = std::move(f)](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{f(inputs.front())};
  };
  return recompute(part, std::vector<at::Tensor>{input}).front();
}

}  // namespace lockstep
