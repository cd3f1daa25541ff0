// lockstep/data/reloaded_loader.h
//
// A loader for data that change during a run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <lockstep/data/data_loader.h>

namespace [[gnu::visibility("default")]] lockstep {

/// A loader that is made anew every few epochs, for data or a global batch that changes during a run. Lightning's
/// reload_dataloaders_every_n_epochs. A validation, test or prediction does not change its epoch, so for them it stays
/// at its first loader.
class ReloadedLoader final : public BatchSource {
 public:
  /// Collective, as DataLoader is. Makes the loader of an epoch that is a multiple of ReloadedLoader's `every_epochs`,
  /// and of the epochs up to the next multiple. It may take any time, as a callback. It must give the same data each
  /// time it is called for an epoch, because a resumed run calls it again. The new loader goes to the number of its
  /// epoch with seek(), and so shuffles as one loader of the whole run would. It keeps the global batch of the loader
  /// before, unless its plan has global_is_given; a CombinedLoader has those of its loaders' plans, so rather combine
  /// several ReloadedLoader.
  using Make = std::function<std::unique_ptr<BatchSource>(std::int64_t epoch)>;

  /// Collective. Calls `make` for epoch 0, also in a run that is resumed later. Later loaders are made by next() when
  /// the first step of their epochs is taken, and by seek(). The loader before is destroyed after that. An exception of
  /// `make` changes nothing: the next call of next() tries again. Throws: ConfigError (every_epochs below 1, no
  /// function), DataError (`make` returned null). Keeps a reference to `world`.
  ReloadedLoader(Make make, World& world, std::int64_t every_epochs = 1);

  const StepBatches* next() override { return next_unless({}); }
  const StepBatches* next_unless(const std::function<bool()>& stop) override;
  std::optional<std::int64_t> steps_per_epoch() const override;  ///< of the present loader
  LoaderPosition position() const override;
  void seek(const LoaderPosition& position) override;
  std::string fingerprint() const override;  ///< of the loader of epoch 0: a resumed run compares the same one
  bool is_combined() const override { return loader_->is_combined(); }  ///< of the present loader
  bool has_one_reader() const override;

 private:
  bool is_over() const;
  std::unique_ptr<BatchSource> make_loader(std::int64_t epoch) const;

  Make make_;
  World& world_;
  std::int64_t every_epochs_;
  std::int64_t first_epoch_ = 0;  // of the present loader
  std::unique_ptr<BatchSource> loader_{};
  bool must_reload_ = false;  // before the next step
  std::string fingerprint_{};
};

}  // namespace lockstep
