#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/data/combined_loader.h>

#include "base/ceil_div.h"
#include "base/json.h"
#include "base/mapped.h"
#include "base/text.h"
#include "data/epoch_begin.h"
#include "data/step_plan.h"

namespace lockstep {

namespace {

Json to_json(const std::vector<LoaderPosition>& positions) {
  Json json = Json::array();
  for (const LoaderPosition& at : positions) {
    json.push_back(Json::array({at.epoch, at.consumed, at.dataset_size, at.global_batch, exact_json(at.state)}));
  }
  return json;
}

LoaderPosition position_of(const Json& json) {
  if (!json.is_array() || json.size() != 5) {
    throw std::runtime_error("a position of \"loaders\" is not an array of 5 values");
  }
  return {.epoch = value_as<std::int64_t>(json[0], "epoch"),
          .consumed = value_as<std::int64_t>(json[1], "consumed"),
          .dataset_size = value_as<std::int64_t>(json[2], "dataset_size"),
          .global_batch = value_as<std::int64_t>(json[3], "global_batch"),
          .state = exact_text(json[4], "state")};
}

/// What the text of a position has.
struct CombinedState {
  std::vector<LoaderPosition> loaders{};
  std::vector<bool> ended{};
  std::vector<LoaderPosition> began{};
};

CombinedState parse_state(const std::string& text, std::size_t loaders) {
  CombinedState state;
  try {
    const Json json = parse_json(text);
    for (const Json& each : member(json, "loaders")) {
      state.loaders.push_back(position_of(each));
    }
    state.ended = member_as<std::vector<bool>>(json, "ended");
    for (const Json& each : member(json, "began")) {
      state.began.push_back(position_of(each));
    }
  } catch (const std::exception& error) {
    throw CheckpointError(fmt::format("checkpoint position: found '{}', expected the position of combined loaders: {}",
                                      printable(text), error.what()),
                          "resume with the data of the checkpoint and the lockstep that wrote it, or start over with "
                          "--fresh");
  }
  if (state.loaders.size() != loaders || state.ended.size() != loaders || state.began.size() != loaders) {
    throw CheckpointError(
        fmt::format("checkpoint position: found {} combined loaders, expected {}", state.loaders.size(), loaders),
        "resume with the loaders of the checkpoint, or start over with --fresh");
  }
  return state;
}

}  // namespace

CombinedLoader::CombinedLoader(std::vector<std::shared_ptr<BatchSource>> loaders, CombineMode mode)
    : loaders_(std::move(loaders)), mode_(mode), ended_(loaders_.size()) {
  if (loaders_.empty()) {
    throw DataError("combined loader: found no loader, expected one or more");
  }
  if (const auto null = std::ranges::find(loaders_, nullptr); null != loaders_.end()) {
    throw DataError(fmt::format("combined loader: loader {} is null", null - loaders_.begin()),
                    "make it with std::make_shared, or leave it out");
  }
  for (auto loader = loaders_.begin(); loader != loaders_.end(); ++loader) {
    if (const auto before = std::find(loaders_.begin(), loader, *loader); before != loader) {
      throw DataError(fmt::format("combined loader: loader {} is the same as loader {}", loader - loaders_.begin(),
                                  before - loaders_.begin()),
                      "make two loaders of the data set");
    }
  }
  for (const auto& loader : loaders_) {
    const auto* combined = dynamic_cast<const CombinedLoader*>(loader.get());
    first_numbers_.push_back(first_numbers_.back() + (combined == nullptr ? 1 : combined->first_numbers_.back()));
  }
  began_ = mapped(loaders_, &BatchSource::position);
}

// A loader may fail, or end, after others have given their part of the step. They go back only if next() is called
// again, because seek() of a stream may take long.
const StepBatches* CombinedLoader::next_unless(const std::function<bool()>& stop) {
  if (steps_ == 0 && !has_failed_) {  // the program may have looked at a batch of a loader
    std::ranges::for_each(loaders_, [](const auto& loader) { seek_epoch_begin(*loader); });
    began_ = mapped(loaders_, &BatchSource::position);
  }
  if (has_failed_) {
    seek_loaders(before_);
  } else {
    before_ = mapped(loaders_, &BatchSource::position);
  }
  ended_ = has_failed_ ? ended_before_ : ended_;
  ended_before_ = ended_;
  has_failed_ = true;
  if (!give_step(stop)) {
    return nullptr;
  }
  has_failed_ = false;
  return &current_;
}

bool CombinedLoader::give_step(const std::function<bool()>& stop) {
  current_ = {.micro = std::move(current_.micro), .blocks = std::move(current_.blocks), .epoch = epoch_};
  current_.micro.clear();
  current_.blocks.clear();
  // Decide who takes part before any call of next(): a loader may end its epoch in this step.
  std::vector<std::size_t> parts;
  for (std::size_t loader = 0; loader < loaders_.size(); ++loader) {
    if (takes_part(loader)) {
      parts.push_back(loader);
    }
  }
  for (const std::size_t loader : parts) {
    const StepBatches* part = loaders_[loader]->next_unless(stop);
    if (part == nullptr) {
      return false;
    }
    const bool is_one = first_numbers_[loader + 1] == first_numbers_[loader] + 1;
    for (const Batch& batch : part->micro) {
      current_.micro.push_back(batch);
      current_.micro.back().loader = first_numbers_[loader] + (is_one ? 0 : batch.loader);
    }
    current_.local_samples += part->local_samples;
    current_.global_samples += part->global_samples;
    if (part->blocks.empty()) {
      current_.blocks.push_back({part->micro.size(), part->global_samples});
    } else {
      current_.blocks.insert(current_.blocks.end(), part->blocks.begin(), part->blocks.end());
    }
    ended_[loader] = ended_[loader] || part->ends_epoch;
  }
  ++steps_;
  current_.ends_epoch = is_over();
  if (current_.ends_epoch) {
    begin_epoch();
  }
  return true;
}

bool CombinedLoader::takes_part(std::size_t loader) const {
  switch (mode_) {
    case CombineMode::max_size:
      return !ended_[loader];
    case CombineMode::sequential:
      return std::find(ended_.begin(), ended_.end(), false) - ended_.begin() == static_cast<std::ptrdiff_t>(loader);
    default:
      return true;
  }
}

bool CombinedLoader::is_over() const {
  const auto ended = std::count(ended_.begin(), ended_.end(), true);
  return mode_ == CombineMode::min_size ? ended > 0 : ended == std::ssize(ended_);
}

// A loader in the middle of an epoch leaves it.
void CombinedLoader::begin_epoch() {
  for (const auto& loader : loaders_) {
    if (const LoaderPosition position = loader->position(); position.consumed > 0) {
      loader->seek({.epoch = position.epoch + 1, .global_batch = position.global_batch});
    }
  }
  ++epoch_;
  steps_ = 0;
  ended_.assign(ended_.size(), false);
  began_ = mapped(loaders_, &BatchSource::position);
}

void CombinedLoader::seek_loaders(const std::vector<LoaderPosition>& positions) {
  for (std::size_t loader = 0; loader < loaders_.size(); ++loader) {
    loaders_[loader]->seek(positions[loader]);
  }
}

std::optional<std::int64_t> CombinedLoader::steps_per_epoch() const {
  std::optional<std::int64_t> total;
  for (const auto& loader : loaders_) {
    const auto steps = loader->steps_per_epoch();
    if (!steps) {
      return std::nullopt;
    }
    if (!total) {
      total = steps;
    } else if (mode_ == CombineMode::sequential) {
      *total += *steps;
    } else {
      total = mode_ == CombineMode::min_size ? std::min(*total, *steps) : std::max(*total, *steps);
    }
  }
  return total;
}

bool CombinedLoader::has_one_reader() const {
  return std::ranges::all_of(loaders_, [](const auto& loader) { return loader->has_one_reader(); });
}

// Counts whole steps of all loaders; the positions of the loaders complete it.
LoaderPosition CombinedLoader::position() const {
  const std::vector<LoaderPosition> loaders = has_failed_ ? before_ : mapped(loaders_, &BatchSource::position);
  std::int64_t global_batch = 0;
  for (const LoaderPosition& position : loaders) {
    global_batch = mode_ == CombineMode::sequential ? std::max(global_batch, position.global_batch)
                                                    : global_batch + position.global_batch;
  }
  global_batch = std::max<std::int64_t>(global_batch, 1);  // a source of the program may not know its own
  return {.epoch = epoch_,
          .consumed = steps_ * global_batch,
          .global_batch = global_batch,
          .state = dump_json({{"loaders", to_json(loaders)},
                              {"ended", has_failed_ ? ended_before_ : ended_},
                              {"began", to_json(began_)}})};
}

void CombinedLoader::seek(const LoaderPosition& position) {
  check_position(position, /*dataset_size=*/0, position.consumed);
  if (position.state.empty()) {
    if (position.consumed > 0) {
      throw CheckpointError("checkpoint position: the positions of the combined loaders are missing",
                            "resume with the loaders of the checkpoint, or start over with --fresh");
    }
    if (position.epoch != epoch_) {  // nobody knows where its loaders would begin after those before
      began_.assign(loaders_.size(), {.epoch = position.epoch});
    }
    seek_loaders(began_);
    ended_.assign(ended_.size(), false);
  } else {
    CombinedState state = parse_state(position.state, loaders_.size());
    seek_loaders(state.loaders);
    ended_ = std::move(state.ended);
    for (std::size_t i = 0; i < loaders_.size(); ++i) {  // with another global batch its epoch may be over here
      ended_[i] = ended_[i] || loaders_[i]->position().epoch > state.loaders[i].epoch;
    }
    began_ = std::move(state.began);
  }
  epoch_ = position.epoch;
  // With another global batch a part of a step counts too: 0 would be the beginning of the epoch.
  steps_ = ceil_div(position.consumed, std::max<std::int64_t>(position.global_batch, 1));
  has_failed_ = false;
  if (is_over()) {
    begin_epoch();
  }
}

std::string CombinedLoader::fingerprint() const { return join(mapped(loaders_, &BatchSource::fingerprint), " + "); }

}  // namespace lockstep
