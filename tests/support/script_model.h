// A scripted model without Python: a layer, batch norm with its statistics, and a layer.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include <ATen/ATen.h>
#include <torch/csrc/jit/api/module.h>

namespace lockstep {

inline at::Tensor waves(at::IntArrayRef shape) {
  return at::cos(at::arange(c10::multiply_integers(shape), at::kFloat)).view(shape) * 0.3;
}

class ScriptWriter {
 public:
  torch::jit::Module linear(const std::string& name, std::int64_t in, std::int64_t out) const {
    torch::jit::Module module = make(name);
    module.register_parameter("weight", trained(waves({out, in})), /*is_buffer=*/false);
    module.register_parameter("bias", trained(waves({out})), /*is_buffer=*/false);
    module.define("def forward(self, x: Tensor) -> Tensor:\n  return torch.linear(x, self.weight, self.bias)\n");
    return module;
  }

  torch::jit::Module batch_norm(const std::string& name, std::int64_t size) const {
    torch::jit::Module module = make(name);
    module.register_parameter("weight", trained(at::ones({size})), /*is_buffer=*/false);
    module.register_parameter("bias", trained(at::zeros({size})), /*is_buffer=*/false);
    module.register_buffer("running_mean", at::zeros({size}));
    module.register_buffer("running_var", at::ones({size}));
    module.define(
        "def forward(self, x: Tensor) -> Tensor:\n"
        "  return torch.batch_norm(x, self.weight, self.bias, self.running_mean, self.running_var, self.training,\n"
        "                          0.1, 1e-5, False)\n");
    return module;
  }

  torch::jit::Module net() const {
    torch::jit::Module module = make("Net");
    module.register_module("a", linear("A", 4, 6));
    module.register_module("bn", batch_norm("Bn", 6));
    module.register_module("b", linear("B", 6, 1));
    module.define(
        "def forward(self, x: Tensor) -> Tensor:\n  return self.b.forward(self.bn.forward(self.a.forward(x)))\n");
    return module;
  }

 private:
  torch::jit::Module make(const std::string& name) const {
    torch::jit::Module module(c10::QualifiedName("__torch__." + name), unit_);
    module.register_attribute("training", c10::BoolType::get(), true);
    return module;
  }
  static at::Tensor trained(const at::Tensor& tensor) { return tensor.clone().set_requires_grad(true); }

  std::shared_ptr<torch::jit::CompilationUnit> unit_ = std::make_shared<torch::jit::CompilationUnit>();
};

inline void write_script_model(const std::filesystem::path& file) { ScriptWriter().net().save(file.string()); }

}  // namespace lockstep
