#include "trainer/callbacks/callback_list.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include <lockstep/base/error.h>
#include <lockstep/trainer/callbacks.h>
#include <lockstep/world/world.h>

#include "base/temporary_value.h"
#include "base/text.h"
#include "storage/run_commands.h"
#include "trainer/output/metric_names.h"
#include "world/world_access.h"

namespace lockstep {

namespace {

// In the order of the bits, in which free_name() joins them.
constexpr std::pair<Stage, std::string_view> kStageNames[] = {
    {Stage::fit_start, "fit_start"},
    {Stage::step_end, "step_end"},
    {Stage::epoch_end, "epoch_end"},
    {Stage::validation_end, "validation_end"},
    {Stage::report, "report"},
    {Stage::checkpoint_saved, "checkpoint_saved"},
    {Stage::fit_end, "fit_end"},
    {Stage::validation_start, "validation_start"},
    {Stage::step_start, "step_start"},
    {Stage::backward_end, "backward_end"},
    {Stage::exception, "exception"},
    {Stage::epoch_report, "epoch_report"},
    {Stage::epoch_start, "epoch_start"},
    {Stage::command, "command"},
    {Stage::test_start, "test_start"},
    {Stage::test_end, "test_end"},
    {Stage::predict_start, "predict_start"},
    {Stage::predict_end, "predict_end"},
    {Stage::validation_batch_end, "validation_batch_end"},
    {Stage::test_batch_end, "test_batch_end"},
    {Stage::predict_batch_end, "predict_batch_end"},
    {Stage::evaluation_stopped, "evaluation_stopped"},
    {Stage::validation_batch_start, "validation_batch_start"},
    {Stage::test_batch_start, "test_batch_start"},
    {Stage::predict_batch_start, "predict_batch_start"},
    {Stage::backward_start, "backward_start"},
    {Stage::sanity_start, "sanity_start"},
    {Stage::sanity_end, "sanity_end"},
};

void require_metric_of_validation(std::string_view callback, std::string_view metric, const Metrics& metrics) {
  if (metric.starts_with(kValidationPrefix) && find_metric(metrics, metric) == nullptr) {
    throw metric_not_found(callback, metric, metrics);
  }
}

/// Collective. The bits that are set on any rank.
std::uint32_t set_on_any_rank(std::uint32_t bits, World& world) {
  const at::Tensor places = at::arange(32, at::kLong);
  const at::Tensor set = at::bitwise_right_shift(static_cast<std::int64_t>(bits), places).bitwise_and(1);
  world.all_reduce(set, Reduce::max);
  return static_cast<std::uint32_t>(at::bitwise_left_shift(set, places).sum().item<std::int64_t>());
}

// A callback may log inside a loop over the metrics of its stage. So it reads a copy, because log() extends the
// original.
void call_one(Callback& callback, const StageContext& context) {
  if (context.metrics == nullptr) {
    callback.on(context);
    return;
  }
  const Metrics metrics = *context.metrics;
  StageContext own = context;
  own.metrics = &metrics;
  callback.on(own);
}

void require_dense(std::string_view callback, std::string_view name, const at::Tensor& tensor) {
  const char* const found = !tensor.defined()                                     ? "an undefined tensor"
                            : tensor.is_nested()                                  ? "a nested tensor"
                            : tensor.layout() != at::kStrided || tensor.is_meta() ? "a tensor without dense values"
                                                                                  : nullptr;
  if (found != nullptr) {
    throw CheckpointError(
        fmt::format("callback '{}' saved {} as '{}', expected a dense tensor", callback, found, printable(name)),
        "let Callback::save() leave it out, or return it with to_dense()");
  }
}

}  // namespace

std::string_view to_string(Stage stage) noexcept {
  const auto* const found = std::ranges::find(kStageNames, stage, &std::pair<Stage, std::string_view>::first);
  return found != std::end(kStageNames) ? found->second : "unknown stage";
}

bool are_stages(std::uint32_t stages) noexcept {
  std::uint32_t all = 0;
  for (const auto& [stage, name] : kStageNames) {
    all |= stage;
  }
  return stages != 0 && (stages & ~all) == 0;
}

void CallbackList::add(std::shared_ptr<Callback> callback, bool is_last) {
  if (callback == nullptr) {
    throw ConfigError("Trainer::add got a null pointer", "give it a callback, such as make_shared<EarlyStopping>(...)");
  }
  std::string name = callback->name();
  if (std::ranges::any_of(entries_, &Entry::is_running)) {
    throw ConfigError(fmt::format("the callback '{}' was added inside of a callback", name),
                      "add it before fit(); OnOptions::when says when it is called");
  }
  for (const Entry& other : entries_) {
    if (other.name == name) {
      throw ConfigError(
          fmt::format("two callbacks have the name '{}'", name),
          "give each callback a different name; --early_stop.metric and --plateau.metric add a callback, too");
    }
  }
  const auto end = is_last ? entries_.end() : std::ranges::find(entries_, true, &Entry::is_last);
  entries_.insert(end, Entry{.name = std::move(name), .callback = std::move(callback), .is_last = is_last});
}

// Ranks may have different callbacks. All ranks synchronize at every stage for which any rank has one.
void CallbackList::begin(World& world) {
  synchronized_stages_ = stages_ = 0;
  for (Entry& entry : entries_) {
    const PhaseScope phase(WorldAccess::progress(world), entry.name, "stages()");
    entry.stages = entry.callback->stages();
    stages_ |= entry.stages;
    synchronized_stages_ |= entry.callback->is_light() ? 0 : entry.stages & ~kUnsynchronizedStages;
  }
  WorldAccess::any_without_timeout(world, false);
  constexpr std::uint32_t kHasAny = 1U << 31;  // beside the stages
  const std::uint32_t of_all = set_on_any_rank(synchronized_stages_ | (entries_.empty() ? 0 : kHasAny), world);
  synchronized_stages_ = of_all & ~kHasAny;
  has_any_ = (of_all & kHasAny) != 0;
}

void CallbackList::begin(const torch::nn::Module& module, World& world) {
  begin(world);
  parameters_ = module.parameters();
}

void CallbackList::add_command(const std::string& word) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  };
  if (word.empty() || !std::ranges::all_of(word, is_allowed)) {
    throw ConfigError(fmt::format("Trainer::on_command: the word is \"{}\"", printable(word)),
                      "use the characters a-z, 0-9, - and _");
  }
  if (std::ranges::find(kRunCommands, word) != kRunCommands.end() ||
      std::ranges::find(commands_, word) != commands_.end()) {
    throw ConfigError(fmt::format("Trainer::on_command: the word {} is in use", word), "use another one");
  }
  commands_.push_back(word);
}

// A callback may begin a validation of its own, so this function may run inside itself.
bool CallbackList::call(const StageContext& context) {
  const auto stage = static_cast<std::uint32_t>(context.stage);
  const bool synchronizes = (synchronized_stages_ & stage) != 0;
  std::vector<bool> before = std::exchange(frozen_before_, {});
  if (synchronizes) {
    note_frozen(before);
  }
  for (Entry& entry : entries_) {
    if ((entry.stages & stage) != 0 && !entry.is_running) {
      const TemporaryValue running(entry.is_running, true);
      const PhaseScope phase(WorldAccess::progress(context.world), entry.name, to_string(context.stage));
      call_one(*entry.callback, context);
    }
  }
  if (synchronizes) {
    note_frozen(frozen_);
  }
  const bool changed = synchronizes && WorldAccess::any_without_timeout(context.world, frozen_ != before);
  frozen_before_ = std::move(before);
  return changed;
}

bool CallbackList::may_log(Stage stage) const noexcept {
  return std::ranges::any_of(entries_, [&](const Entry& entry) {
    const Callback* callback = entry.callback.get();
    return (entry.stages & stage) != 0 && dynamic_cast<const EarlyStopping*>(callback) == nullptr &&
           dynamic_cast<const ReduceOnPlateau*>(callback) == nullptr;
  });
}

void CallbackList::check_metrics_of_validation(const Metrics& metrics) const {
  for (const Entry& entry : entries_) {
    if (const auto* stopping = dynamic_cast<const EarlyStopping*>(entry.callback.get())) {
      require_metric_of_validation("EarlyStopping", stopping->metric(), metrics);
    } else if (const auto* plateau = dynamic_cast<const ReduceOnPlateau*>(entry.callback.get())) {
      require_metric_of_validation("ReduceOnPlateau", plateau->metric(), metrics);
    }
  }
}

// The flags are on the host, so this does not wait for the device.
void CallbackList::note_frozen(std::vector<bool>& frozen) const {
  frozen.clear();
  for (const at::Tensor& parameter : parameters_) {
    frozen.push_back(!parameter.requires_grad());
  }
}

std::string CallbackList::free_name(std::uint32_t stages) const {
  std::string base = "on";
  for (const auto& [stage, name] : kStageNames) {
    if ((stages & stage) != 0) {
      base += fmt::format("_{}", name);
    }
  }
  const auto is_used = [&](const std::string& name) {
    return std::ranges::any_of(entries_, [&](const Entry& entry) { return entry.name == name; });
  };
  std::string name = base;
  for (int number = 2; is_used(name); ++number) {
    name = fmt::format("{}_{}", base, number);
  }
  return name;
}

NamedTensors CallbackList::save(World& world) const {
  NamedTensors all;
  for (const Entry& entry : entries_) {
    const PhaseScope phase(WorldAccess::progress(world), entry.name, "save()");
    for (auto& [name, tensor] : entry.callback->save()) {
      if (world.is_main()) {  // the state of the other ranks is not written
        require_dense(entry.name, name, tensor);
      }
      all.emplace_back(fmt::format("{}.{}", entry.name, name), tensor);
    }
  }
  WorldAccess::any_without_timeout(world, false);
  return all;
}

// "loss.box.mean" belongs to "loss.box", and not to "loss".
const CallbackList::Entry* CallbackList::owner_of(std::string_view tensor) const {
  const Entry* owner = nullptr;
  for (const Entry& entry : entries_) {
    if (tensor.starts_with(entry.name + ".") && (owner == nullptr || entry.name.size() > owner->name.size())) {
      owner = &entry;
    }
  }
  return owner;
}

void CallbackList::load(const NamedTensors& state, World& world, bool back) const {
  for (const Entry& entry : entries_) {
    NamedTensors mine;
    for (const auto& [name, tensor] : state) {
      if (owner_of(name) == &entry) {
        mine.emplace_back(name.substr(entry.name.size() + 1), tensor);
      }
    }
    if (!mine.empty() || back) {
      const PhaseScope phase(WorldAccess::progress(world), entry.name, "load()");
      entry.callback->load(mine);
    }
  }
  WorldAccess::any_without_timeout(world, false);
}

ValidationScopes CallbackList::validation_scopes(World& world, std::shared_ptr<void> first) const {
  ValidationScopes scopes;
  scopes.add(std::move(first));
  for (const Entry& entry : entries_) {
    const PhaseScope phase(WorldAccess::progress(world), entry.name, "validation_scope()");
    scopes.add(entry.callback->validation_scope());
  }
  return scopes;
}

}  // namespace lockstep
