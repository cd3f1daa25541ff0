// lockstep/data/combined_loader.h
//
// Several loaders as one, such as one for each of several data sets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/data/data_loader.h>

namespace [[gnu::visibility("default")]] lockstep {

/// The length of an epoch over several loaders, and the loaders that each step uses. The names are Lightning's.
enum class CombineMode {
  min_size,        ///< all loaders; the epoch ends with the shortest
  max_size_cycle,  ///< all loaders; the epoch ends with the longest, the others start again
  max_size,        ///< all loaders that have not ended; the epoch ends with the longest
  sequential,      ///< one loader after another
};

/// Several loaders as one. A step has the micro-batches of each loader that takes part, one loader after another;
/// Batch::loader is the index of its loader. The step's loss and gradient are the exact mean over all its samples, with
/// any number of ranks. Every epoch starts all loaders at the beginning of an epoch. For a loss over pairs of samples
/// write a Dataset of pairs, whose get() uses two other data sets.
class CombinedLoader final : public BatchSource {
 public:
  /// Nothing else may take steps from these loaders or move them. Throws: DataError (no loader; one is null, or given
  /// twice).
  CombinedLoader(std::vector<std::shared_ptr<BatchSource>> loaders, CombineMode mode);
  CombinedLoader(const CombinedLoader&) = delete;  ///< both would move the same loaders
  CombinedLoader& operator=(const CombinedLoader&) = delete;

  const StepBatches* next() override { return next_unless({}); }
  const StepBatches* next_unless(const std::function<bool()>& stop) override;
  std::optional<std::int64_t> steps_per_epoch() const override;
  LoaderPosition position() const override;
  /// Without `state`: to the beginning of the epoch. The present one begins as it began; in another one every loader
  /// begins its epoch of the same number.
  void seek(const LoaderPosition& position) override;
  std::string fingerprint() const override;
  bool is_combined() const override { return true; }
  bool has_one_reader() const override;  ///< true if all of them have

 private:
  bool give_step(const std::function<bool()>& stop);  // false: a loader has ended
  bool takes_part(std::size_t loader) const;
  bool is_over() const;
  void begin_epoch();
  void seek_loaders(const std::vector<LoaderPosition>& positions);

  std::vector<std::shared_ptr<BatchSource>> loaders_;
  std::vector<std::size_t> first_numbers_{0};  // Batch::loader of their batches; the last one: of the next loader
  CombineMode mode_;
  std::int64_t epoch_ = 0;
  std::int64_t steps_ = 0;               // of the epoch
  std::vector<bool> ended_;              // has ended its own epoch in this one
  std::vector<LoaderPosition> began_{};  // of the loaders, at the beginning of the epoch
  StepBatches current_{};
  // Of the loaders before the step that next() gives.
  std::vector<LoaderPosition> before_{};
  std::vector<bool> ended_before_{};
  bool has_failed_ = false;  // next() could not give its step: some loaders are ahead of it
};

}  // namespace lockstep
