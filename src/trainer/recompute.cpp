#include <utility>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/rng_state.h>
#include <lockstep/trainer/recompute.h>

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Part = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

struct Autocast {
  static Autocast current(c10::DeviceType device) {
    return {device, at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
  }
  void set() const {
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, dtype);
  }

  c10::DeviceType device;
  bool enabled;
  at::ScalarType dtype;
};

/// What the first run depends on besides its inputs.
struct FirstRun : torch::CustomClassHolder {
  FirstRun(Part part, c10::Device on)
      : f(std::move(part)), device(on), rng(rng_state(on)), autocast(Autocast::current(on.type())) {}
  Part f;
  c10::Device device;
  at::Tensor rng;
  Autocast autocast;
};

/// Restores the random numbers and the autocast of the first run; at its end those of before.
class SecondRunScope {
 public:
  explicit SecondRunScope(const FirstRun& first)
      : device_(first.device), rng_(rng_state(device_)), autocast_(Autocast::current(device_.type())) {
    set_rng_state(first.rng, device_);
    first.autocast.set();
  }
  ~SecondRunScope() {
    autocast_.set();
    set_rng_state(rng_, device_);
  }
  SecondRunScope(const SecondRunScope&) = delete;
  SecondRunScope& operator=(const SecondRunScope&) = delete;

 private:
  c10::Device device_;
  at::Tensor rng_;
  Autocast autocast_;
};

struct Recompute : torch::autograd::Function<Recompute> {
  // `anchor` requires gradients: without such an input there would be no backward, also if only parameters need one.
  static variable_list forward(AutogradContext* context, const at::Tensor&, at::TensorList inputs,
                               const c10::intrusive_ptr<FirstRun>& first) {
    const variable_list kept = inputs.vec();
    context->save_for_backward(kept);
    context->saved_data["first"] = c10::IValue::make_capsule(first);
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
      const SecondRunScope scope(first);
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

}  // namespace

std::vector<at::Tensor> recompute(Part f, const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) {
    return f(inputs);
  }
  const c10::Device device = inputs.empty() ? c10::Device(c10::kCPU) : inputs.front().device();
  return Recompute::apply(at::empty({0}).requires_grad_(), at::TensorList(inputs),
                          c10::make_intrusive<FirstRun>(std::move(f), device));
}

at::Tensor recompute(std::function<at::Tensor(const at::Tensor&)> f, const at::Tensor& input) {
  const Part part = [f = std::move(f)](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{f(inputs.front())};
  };
  return recompute(part, std::vector<at::Tensor>{input}).front();
}

}  // namespace lockstep
