#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <mutex>
#include <ranges>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <lockstep/base/error.h>
#include <lockstep/checkpoint/rng_state.h>
#include <lockstep/nn/recompute.h>

#include "checkpoint/rng_scope.h"

namespace lockstep {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using torch::autograd::impl::gradient_edge;
using Part = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// Autocast without its cache: what uses a cast that it kept would reach the weight through the graph of the other run,
/// and the cast would be that of an old weight after the second run.
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

/// A run of the part, with a graph that ends at copies of the inputs, which share their memory.
class Run {
 public:
  Run(const Part& f, const variable_list& given) {
    variable_list own;
    for (const at::Tensor& input : given) {
      own.push_back(input.detach().requires_grad_(input.requires_grad()));
      inputs.push_back(gradient_edge(own.back()));
    }
    outputs = f(own);
    for (const at::Tensor& output : outputs) {
      roots.push_back(output.defined() ? gradient_edge(output) : Edge());
    }
  }

  /// The edges by which gradients leave the graph, other than to an input: to parameters, and to what was there before
  /// the run. Each once; the order follows from the graph.
  edge_list exits() const {
    edge_list found;
    std::unordered_set<Edge> known;
    std::unordered_set<const Node*> seen;
    std::vector<const Node*> next;
    for (const Edge& input : inputs) {
      seen.insert(input.function.get());
    }
    const auto look_at = [&](const Edge& edge) {
      const Node* node = edge.function.get();
      if (node == nullptr || seen.contains(node)) {
        return;
      }
      if (!is_outside(*node)) {
        seen.insert(node);
        next.push_back(node);
      } else if (known.insert(edge).second) {
        found.push_back(edge);
      }
    };
    std::ranges::for_each(roots, look_at);
    while (!next.empty()) {
      const Node& node = *next.back();
      next.pop_back();
      std::ranges::for_each(node.next_edges(), look_at);
    }
    return found;
  }

  edge_list inputs{};  // an edge without a function: no gradient is wanted
  variable_list outputs{};
  edge_list roots{};  // of the outputs, likewise

 private:
  // The numbers of nodes grow in each thread. Nodes of leaves, such as parameters, lead no further.
  bool is_outside(const Node& node) const {
    return node.num_outputs() == 0 || node.thread_id() != thread_ || node.sequence_nr() < begin_;
  }

  const std::uint64_t thread_ = at::RecordFunction::currentThreadId();
  const std::uint64_t begin_ = at::sequence_number::peek();
};

/// Of an exit of a run whose graph is gone: whether the run made this leaf, so that nothing else has it.
bool was_made_inside(const Edge& exit) {
  const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(exit.function.get());
  return leaf != nullptr && leaf->variable.use_count() == 1;
}

/// While it lives, a backward ends at these edges and runs no hooks of tensors there: what is outside of a part follows
/// in the backward around it.
class Borders {
 public:
  explicit Borders(std::span<const Edge> edges) {
    for (const Edge& edge : edges) {
      Node& node = *edge.function;
      hidden_.push_back({.node = edge.function,
                         .next = std::exchange(node.next_edges(), {}),
                         .hooks = std::exchange(node.tensor_pre_hooks(), {}),
                         .retaining = std::exchange(node.retains_grad_hooks(), {})});
    }
  }
  ~Borders() {
    for (Hidden& hidden : std::views::reverse(hidden_)) {  // a node may be there twice
      hidden.node->next_edges() = std::move(hidden.next);
      hidden.node->tensor_pre_hooks() = std::move(hidden.hooks);
      hidden.node->retains_grad_hooks() = std::move(hidden.retaining);
    }
  }
  Borders(const Borders&) = delete;
  Borders& operator=(const Borders&) = delete;

 private:
  using Hook = std::unique_ptr<torch::autograd::FunctionPreHook>;
  struct Hidden {
    std::shared_ptr<Node> node{};
    edge_list next{};
    std::vector<Hook> hooks{};
    std::unordered_map<std::size_t, Hook> retaining{};
  };
  std::vector<Hidden> hidden_{};
};

/// What the first run depends on besides its inputs.
struct Conditions {
  explicit Conditions(c10::Device on) : device(on), rng(rng_state(on)), autocast(on.type()) {}
  c10::Device device;
  at::Tensor rng;
  Autocast autocast;
};

// Note [Gradients of a recomputed part]: the second run has a graph of its own, and its backward only computes
// gradients. This node returns them, those of parameters too, and the backward around it adds them up. So each
// parameter gets one gradient per backward, wherever it is used, and what waits for gradients or searches the graph,
// such as c10d's reducer, sees the parameters of the part. To know them, the first run makes a graph, which is dropped
// at its end.
class Recompute final : public Node {
 public:
  /// `inputs`: as they were before the first run. `made_inside`: leaves that each run makes for itself.
  Recompute(Part f, Conditions conditions, std::vector<SavedVariable> inputs, std::size_t made_inside)
      : f_(std::move(f)), conditions_(std::move(conditions)), inputs_(std::move(inputs)), made_inside_(made_inside) {}

  variable_list apply(variable_list&& gradients) override {
    if (at::GradMode::is_enabled()) {
      throw Error("recompute() has no second derivative", "call the function itself where you need one");
    }
    const std::lock_guard lock(mutex_);
    const Run run = run_again();
    check(run);
    edge_list next = run.inputs;
    next.insert(next.end(), exits().begin(), exits().end());
    edge_list roots;
    variable_list incoming;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (gradients[i].defined() && run.roots.at(i).is_valid()) {
        roots.push_back(run.roots[i]);
        incoming.push_back(std::move(gradients[i]));
      }
    }
    edge_list wanted;
    std::ranges::copy_if(next, std::back_inserter(wanted), &Edge::is_valid);
    const Borders borders(exits());
    variable_list found = torch::autograd::Engine::get_default_engine().execute(
        roots, incoming, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/false, wanted);
    variable_list result;
    for (std::size_t i = 0; const Edge& edge : next) {
      result.push_back(edge.is_valid() ? std::move(found[i++]) : at::Tensor());
    }
    // Of outputs that the loss does not use. A node of one function with several outputs gives zeros, too.
    for (std::size_t i = inputs_.size(); i < result.size(); ++i) {
      if (!result[i].defined()) {
        result[i] = next[i].function->input_metadata(next[i].input_nr).zeros_like();
      }
    }
    return result;
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    for (SavedVariable& input : inputs_) {
      input.reset_data();
    }
  }

 private:
  Run run_again() const {
    variable_list inputs;
    for (const SavedVariable& input : inputs_) {
      inputs.push_back(input.unpack());
    }
    const RngScope random_numbers(conditions_.device);
    set_rng_state(conditions_.rng, conditions_.device);
    const WithAutocast autocast(conditions_.autocast);
    const at::AutoGradMode with_gradients(true);
    return {f_, inputs};
  }

  void check(const Run& run) const {
    const std::unordered_set<Edge> of_first(exits().begin(), exits().end());
    const edge_list found = run.exits();
    const auto others = std::ranges::count_if(found, [&](const Edge& edge) { return !of_first.contains(edge); });
    if (run.outputs.size() != num_inputs() || static_cast<std::size_t>(others) != made_inside_) {
      throw Error(
          "recompute(): the second run of the function has other outputs or uses other parameters than the first",
          "the function must depend on nothing that changes between forward and backward");
    }
  }

  std::span<const Edge> exits() const { return std::span(next_edges_).subspan(inputs_.size()); }

  const Part f_;
  const Conditions conditions_;
  std::vector<SavedVariable> inputs_;
  const std::size_t made_inside_;
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
  std::vector<SavedVariable> kept;
  edge_list next;
  for (const at::Tensor& input : inputs) {
    kept.emplace_back(input, /*is_output=*/false);
    next.push_back(gradient_edge(input));
  }
  Conditions conditions(device_of(inputs));
  edge_list exits;
  variable_list outputs;
  std::vector<bool> have_gradients;
  {
    const WithAutocast autocast(conditions.autocast);
    const Run run(f, inputs);
    exits = run.exits();
    for (std::size_t i = 0; i < run.outputs.size(); ++i) {
      outputs.push_back(run.outputs[i].defined() ? run.outputs[i].detach() : at::Tensor());
      have_gradients.push_back(run.roots[i].is_valid());
    }
  }
  const std::size_t made_inside = std::erase_if(exits, was_made_inside);
  next.insert(next.end(), exits.begin(), exits.end());
  const std::shared_ptr<Recompute> node(
      new Recompute(std::move(f), std::move(conditions), std::move(kept), made_inside), torch::autograd::deleteNode);
  node->set_next_edges(std::move(next));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (have_gradients[i]) {
      torch::autograd::create_gradient_edge(outputs[i], node);
    } else {
      node->add_input_metadata(Node::undefined_input());
    }
  }
  return outputs;
}

at::Tensor recompute(std::function<at::Tensor(const at::Tensor&)> f, const at::Tensor& input) {
  const Part part = [f = std::move(f)](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{f(inputs.front())};
  };
  return recompute(part, std::vector<at::Tensor>{input}).front();
}

}  // namespace lockstep
