#include <sstream>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <torch/csrc/jit/frontend/error_report.h>
#include <torch/csrc/jit/serialization/import.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/base/log.h>
#include <lockstep/checkpoint/script_module.h>

#include "base/paths.h"
#include "base/text.h"
#include "storage/zip_reader.h"

namespace lockstep {
namespace {

// torch.jit.freeze() removes the attributes, also that of the mode.
bool is_frozen(const torch::jit::Module& script) {
  return !script.hasattr("training") && script.parameters().size() == 0;
}

}  // namespace

ScriptModule::ScriptModule(const torch::jit::Module& script) : script_(std::make_unique<torch::jit::Module>(script)) {
  torch::nn::Module::train(script.is_training());  // before there are submodules, which have modes of their own
  for (const auto& parameter : script.named_parameters(/*recurse=*/false)) {
    register_parameter(parameter.name, parameter.value, parameter.value.requires_grad());
  }
  for (const auto& buffer : script.named_buffers(/*recurse=*/false)) {
    register_buffer(buffer.name, buffer.value);
  }
  for (const auto& child : script.named_children()) {
    register_module(child.name, std::make_shared<ScriptModule>(child.value));
  }
}

ScriptModule::~ScriptModule() = default;

at::Tensor ScriptModule::forward(const at::Tensor& input) {
  const c10::IValue result = call({input});
  if (!result.isTensor()) {
    throw Error(fmt::format("ScriptModule::forward: the model returned a {}, expected a tensor", result.tagKind()),
                "use call({input}), which returns what the model returned");
  }
  return result.toTensor();
}

c10::IValue ScriptModule::call(std::vector<c10::IValue> inputs) { return script_->forward(std::move(inputs)); }

void ScriptModule::train(bool on) {
  torch::nn::Module::train(on);        // and the submodules
  if (script_->hasattr("training")) {  // a frozen one has no mode
    script_->setattr("training", on);
  }
}

void ScriptModule::save(const std::filesystem::path& file) const {
  std::ostringstream bytes;
  script_->save(bytes);
  write_file(real_file_system(), file, bytes.view());
}

std::shared_ptr<ScriptModule> script_module(const std::filesystem::path& file) {
  const ZipReader zip(real_file_system().open(follow_links(file)), file.string());
  if (zip.find("constants.pkl") == nullptr) {
    throw CheckpointError(
        file.string() + ": found no TorchScript model",
        "save it in Python: torch.jit.script(model).save(\"model.pt\"); load_tensors() reads weights");
  }
  try {
    const torch::jit::Module script = torch::jit::load(file.string(), at::kCPU);
    if (is_frozen(script)) {
      log_info(fmt::format(
          "{}: torch.jit.freeze() made its parameters constants, so it cannot be trained: save it in Python before",
          file.string()));
    }
    return std::make_shared<ScriptModule>(script);
  } catch (const c10::Error& error) {
    throw CheckpointError(file.string() + ": " + std::string(without_frames(error.what())));
  } catch (const torch::jit::ErrorReport& error) {
    throw CheckpointError(file.string() + ": " + std::string(trim(error.what())),
                          "link the library that registers the operators of the model");
  }
}

}  // namespace lockstep
