// The fields of optimizer states as named tensors: how one is written, and how one is read and compared.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/optim/optimizer.h>

#include <lockstep/base/error.h>
#include <lockstep/tensor/named_tensors.h>

#include "optim/rule_optimizer.h"
#include "tensor/mismatch.h"

namespace lockstep {

/// A step count that is stored in a tensor.
struct CounterField {
  at::Tensor& tensor;
};

/// A slot of a RuleState.
struct SlotField {
  const StateSlot& kind;
  at::Tensor& tensor;
};

/// Appends the fields of states to named tensors. Reads each shared counter from the device only once.
class StateWriter {
 public:
  explicit StateWriter(NamedTensors& out) : out_(out) {}

  void write(std::string name, double rate) {
    out_.emplace_back(std::move(name), at::scalar_tensor(rate, at::kDouble));
  }
  void write(std::string name, std::int64_t count) {
    out_.emplace_back(std::move(name), at::scalar_tensor(count, at::kLong));
  }
  void write(std::string name, const CounterField& counter) {
    at::Tensor& count = counts_[counter.tensor.unsafeGetTensorImpl()];
    if (!count.defined()) {
      count = at::scalar_tensor(counter.tensor.item().toLong(), at::kLong);
    }
    out_.emplace_back(std::move(name), count);
  }
  void write(std::string name, const SlotField& slot) { write(std::move(name), slot.tensor); }
  void write(std::string name, const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return;
    }
    if (tensor.layout() != at::kStrided) {
      throw Error(fmt::format("optimizer state {}: it is sparse, and checkpoints hold dense tensors", name),
                  "use momentum 0 for parameters with sparse gradients, or an embedding without sparse(true)");
    }
    out_.emplace_back(std::move(name), tensor);
  }

 private:
  NamedTensors& out_;
  std::unordered_map<const c10::TensorImpl*, at::Tensor> counts_{};
};

/// Reads fields from named tensors and records mismatches.
class StateReader {
 public:
  explicit StateReader(const NamedTensors& given) : given_(given.begin(), given.end()) {}

  bool has(const std::string& name) const { return given_.contains(name); }

  void read(const std::string& name, const at::Tensor&, std::int64_t& count) {
    if (const at::Tensor found = take(name); is_count(name, found)) {
      count = found.item().toLong();
    }
  }
  void read(const std::string& name, const at::Tensor& parameter, const CounterField& counter) {
    if (const at::Tensor found = take(name); is_count(name, found)) {
      counter.tensor =
          at::full({}, found.item().toDouble(), parameter.options().dtype(at::kFloat).requires_grad(false));
    }
  }
  void read(const std::string& name, const at::Tensor& parameter, at::Tensor& tensor) {
    if (const at::Tensor found = take(name); mismatch_.compare(name, found, parameter)) {
      tensor = at::empty_like(parameter).copy_(found);
    }
  }
  void read(const std::string& name, const at::Tensor& parameter, const SlotField& slot) {
    const at::Tensor expected = empty_slot(slot.kind, parameter);
    if (const at::Tensor found = take(name); mismatch_.compare(name, found, expected)) {
      slot.tensor = expected.copy_(found);
    }
  }
  void read(const std::string& name, double& rate) {
    if (const at::Tensor found = take(name); mismatch_.compare(name, found, at::scalar_tensor(rate, at::kDouble))) {
      rate = found.item().toDouble();
    }
  }
  /// A tensor of this shape and dtype, copied to the device of `like`. Undefined: it is missing or differs.
  at::Tensor read_like(const std::string& name, const at::Tensor& like) {
    if (!has(name)) {
      note_missing(name);
      return {};
    }
    const at::Tensor found = take(name);
    return mismatch_.compare(name, found, like) ? at::empty_like(like).copy_(found) : at::Tensor();
  }
  void note_missing(const std::string& name) { mismatch_.missing.push_back(name); }
  /// The number of elements of a tensor that exists.
  std::int64_t size_of(const std::string& name) const { return given_.at(name).numel(); }
  /// Leaves out all tensors whose names begin so.
  void skip(std::string_view prefix) {
    for (const auto& [name, tensor] : given_) {
      if (name.starts_with(prefix)) {
        taken_.insert(name);
      }
    }
  }

  /// Throws: CheckpointError with all recorded mismatches and all unread tensors.
  void finish(const NamedTensors& given) {
    for (const auto& [name, tensor] : given) {
      if (!taken_.contains(name)) {
        mismatch_.unexpected.push_back(name);
      }
    }
    if (mismatch_.any()) {
      throw CheckpointError("the optimizer state does not match: " + mismatch_.text(),
                            "resume with the optimizer and parameter groups of the checkpoint");
    }
  }

 private:
  at::Tensor take(const std::string& name) {
    taken_.insert(name);
    return given_.at(name);
  }
  bool is_count(const std::string& name, const at::Tensor& found) {
    const bool good = found.numel() == 1 && (found.scalar_type() == at::kLong || found.scalar_type() == at::kFloat);
    if (!good) {
      mismatch_.compare(name, found, at::scalar_tensor(0, at::kLong));
    }
    return good;
  }

  std::unordered_map<std::string, at::Tensor> given_;
  std::unordered_set<std::string> taken_{};
  Mismatch mismatch_{};
};

/// By the address of a parameter. nullptr: no state yet.
using LoadedStates = std::vector<std::pair<void*, std::unique_ptr<torch::optim::OptimizerParamState>>>;

}  // namespace lockstep
