#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/data/reloaded_loader.h>

#include "base/option_check.h"
#include "data/step_plan.h"
#include "world/world_access.h"

namespace lockstep {

ReloadedLoader::ReloadedLoader(Make make, World& world, std::int64_t every_epochs)
    : make_(std::move(make)), world_(world), every_epochs_(every_epochs) {
  OptionCheck("ReloadedLoader")
      .refuse_if(!make_, "the function is missing")
      .expect("every_epochs", every_epochs, every_epochs >= 1, "1 or more")
      .throw_problems();
  seek({});
  fingerprint_ = loader_->fingerprint();
}

// The batches of the last step belong to the present loader, so it stays until the next step is asked for.
const StepBatches* ReloadedLoader::next_unless(const std::function<bool()>& stop) {
  if (must_reload_) {
    seek(position());
  }
  const StepBatches* step = loader_->next_unless(stop);
  must_reload_ = step != nullptr && step->ends_epoch && is_over();
  return step;
}

std::optional<std::int64_t> ReloadedLoader::steps_per_epoch() const { return loader_->steps_per_epoch(); }

bool ReloadedLoader::has_one_reader() const { return loader_->has_one_reader(); }

bool ReloadedLoader::is_over() const { return loader_->position().epoch >= first_epoch_ + every_epochs_; }

// At the beginning of the next loader nothing but the global batch belongs to this one's data.
LoaderPosition ReloadedLoader::position() const {
  LoaderPosition at = loader_->position();
  return must_reload_ ? LoaderPosition{.epoch = at.epoch, .global_batch = at.global_batch} : at;
}

void ReloadedLoader::seek(const LoaderPosition& position) {
  check_position(position, position.dataset_size, position.consumed);
  const std::int64_t first = position.epoch - position.epoch % every_epochs_;
  if (loader_ != nullptr && first == first_epoch_) {
    loader_->seek(position);
  } else {
    std::unique_ptr<BatchSource> made = make_loader(first);
    made->seek(position);
    loader_ = std::move(made);
    first_epoch_ = first;
  }
  must_reload_ = is_over();  // with another global batch the epoch may be over here
}

std::unique_ptr<BatchSource> ReloadedLoader::make_loader(std::int64_t epoch) const {
  std::unique_ptr<BatchSource> made;
  WorldAccess::run_as_callback(world_, "ReloadedLoader", fmt::format("epoch {}", epoch), [&] {
    made = make_(epoch);
    if (made == nullptr) {
      throw DataError(fmt::format("ReloadedLoader: the function returned null for epoch {}", epoch),
                      "return a loader for every epoch");
    }
  });
  return made;
}

std::string ReloadedLoader::fingerprint() const { return fingerprint_; }

}  // namespace lockstep
