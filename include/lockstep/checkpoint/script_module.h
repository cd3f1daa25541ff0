// lockstep/checkpoint/script_module.h
//
// A TorchScript file as a module that is trained and saved like one written in C++.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

namespace torch::jit {
struct Module;
}

namespace [[gnu::visibility("default")]] lockstep {

/// A scripted module and its submodules under their names in Python. Parameters and buffers are those of the scripted
/// module, not copies: an optimizer changes the weights that forward() uses.
class ScriptModule final : public torch::nn::Module {
 public:
  explicit ScriptModule(const torch::jit::Module& script);
  ~ScriptModule() override;

  /// For a model that maps one tensor to one tensor. Throws: Error (the result is no tensor).
  at::Tensor forward(const at::Tensor& input);
  /// For any other model: the arguments and the result of Python's forward().
  c10::IValue call(std::vector<c10::IValue> inputs);

  void train(bool on = true) override;  ///< also eval(): the modes of batch norm and dropout

  using torch::nn::Module::save;
  /// Writes a TorchScript file that torch.jit.load reads in Python, with the weights of now. Atomic and durable; call
  /// it on one rank only. Throws: IoError.
  void save(const std::filesystem::path& file) const;

 private:
  std::unique_ptr<torch::jit::Module> script_;
};

/// Loads a file of torch.jit.save onto the CPU. It contains code, which forward() executes: only for files that you
/// trust. Throws: CheckpointError naming the file and the problem, IoError.
std::shared_ptr<ScriptModule> script_module(const std::filesystem::path& file);

}  // namespace lockstep
