#include "optim/lbfgs_state.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/optim/lbfgs.h>

#include <lockstep/base/log.h>

namespace lockstep {

// Note [State of LBFGS]: it belongs to all parameters together, and torch keeps it under the first one. `al` is left
// out: each step writes it before it reads it. Lists have one tensor for each remembered step, the oldest first.

namespace {

std::string lbfgs_key(const BuiltOptimizer& built, std::string_view field) {
  return fmt::format("{}.{}", built.key, field);
}
// No second dot: what is before the last one tells the optimizer.
std::string lbfgs_key(const BuiltOptimizer& built, std::string_view list, std::size_t i) {
  return fmt::format("{}.{}:{}", built.key, list, i);
}

/// The gradient of all parameters as one vector, without values.
at::Tensor flat_gradient(const std::vector<at::Tensor>& parameters) {
  std::int64_t size = 0;
  at::ScalarType dtype = parameters.front().scalar_type();
  for (const at::Tensor& parameter : parameters) {
    size += parameter.numel();
    dtype = c10::promoteTypes(dtype, parameter.scalar_type());
  }
  return at::empty({size}, parameters.front().options().dtype(dtype).requires_grad(false));
}

/// Directions, and what they are calculated from.
void read_lbfgs_memory(const BuiltOptimizer& built, StateReader& reader, torch::optim::LBFGSParamState& state) {
  const auto& group = built.optimizer->param_groups().front();
  const at::Tensor vector = flat_gradient(group.params());
  const at::Tensor number = at::empty({}, vector.options());
  state.d(reader.read_like(lbfgs_key(built, "d"), vector));
  state.prev_flat_grad(reader.read_like(lbfgs_key(built, "prev_flat_grad"), vector));
  const auto remembers = [&](std::size_t i) { return reader.has(lbfgs_key(built, "ro", i)); };
  // torch begins with an integer.
  const bool is_first = !remembers(0);
  state.H_diag(reader.read_like(lbfgs_key(built, "H_diag"), is_first ? at::empty({}, at::kLong) : number));
  const auto most =
      static_cast<std::size_t>(static_cast<const torch::optim::LBFGSOptions&>(group.options()).history_size());
  for (std::size_t i = 0; i < most && remembers(i); ++i) {
    state.old_dirs().push_back(reader.read_like(lbfgs_key(built, "old_dirs", i), vector));
    state.old_stps().push_back(reader.read_like(lbfgs_key(built, "old_stps", i), vector));
    state.ro().push_back(reader.read_like(lbfgs_key(built, "ro", i), number));
  }
}

}  // namespace

void write_lbfgs(const BuiltOptimizer& built, StateWriter& writer) {
  if (built.optimizer->state().empty()) {
    return;  // no step yet
  }
  const auto& state = static_cast<const torch::optim::LBFGSParamState&>(*built.optimizer->state().begin()->second);
  writer.write(lbfgs_key(built, "func_evals"), state.func_evals());
  writer.write(lbfgs_key(built, "n_iter"), state.n_iter());
  writer.write(lbfgs_key(built, "t"), state.t());
  writer.write(lbfgs_key(built, "prev_loss"), state.prev_loss());
  writer.write(lbfgs_key(built, "d"), state.d());
  writer.write(lbfgs_key(built, "H_diag"), state.H_diag());
  writer.write(lbfgs_key(built, "prev_flat_grad"), state.prev_flat_grad());
  for (std::size_t i = 0; i < state.ro().size(); ++i) {
    writer.write(lbfgs_key(built, "old_dirs", i), state.old_dirs()[i]);
    writer.write(lbfgs_key(built, "old_stps", i), state.old_stps()[i]);
    writer.write(lbfgs_key(built, "ro", i), state.ro()[i]);
  }
}

LoadedStates read_lbfgs(const BuiltOptimizer& built, StateReader& reader) {
  const auto& group = built.optimizer->param_groups().front();
  LoadedStates loaded;
  if (group.params().empty()) {
    return loaded;
  }
  void* const place = group.params().front().unsafeGetTensorImpl();
  if (!reader.has(lbfgs_key(built, "n_iter"))) {
    loaded.emplace_back(place, nullptr);
    return loaded;
  }
  // A callback may freeze them again after the resume; the module was compared before.
  const std::string direction = lbfgs_key(built, "d");
  if (reader.has(direction) && reader.size_of(direction) != flat_gradient(group.params()).numel()) {
    if (log_rank() == 0) {  // every rank finds the same
      log_warning("LBFGS begins with an empty memory: other parameters were frozen when its state was saved");
    }
    reader.skip(lbfgs_key(built, ""));
    loaded.emplace_back(place, nullptr);
    return loaded;
  }
  const auto read_number = [&](std::string_view field, auto value) {
    const std::string key = lbfgs_key(built, field);
    const at::Tensor found =
        reader.read_like(key, at::scalar_tensor(value, c10::CppTypeToScalarType<decltype(value)>::value));
    return found.defined() ? found.item<decltype(value)>() : value;
  };
  auto state = std::make_unique<torch::optim::LBFGSParamState>();
  state->func_evals(read_number("func_evals", std::int64_t{0}));
  state->n_iter(read_number("n_iter", std::int64_t{0}));
  state->t(read_number("t", 0.0));
  state->prev_loss(read_number("prev_loss", 0.0));
  if (state->n_iter() > 0) {
    read_lbfgs_memory(built, reader, *state);
  }
  loaded.emplace_back(place, std::move(state));
  return loaded;
}

}  // namespace lockstep
