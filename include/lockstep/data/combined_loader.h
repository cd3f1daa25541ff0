// lockstep/data/combined_loader.h
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/data/data_loader.h>

namespace [[gnu::visibility("default")]] lockstep {

/// How long an epoch of several loaders is, and which of them a step takes from. The names are Lightning's.
enum class CombineMode {
  min_size,        ///< from all; over when the first one is
  max_size_cycle,  ///< from all; over when the longest one is, the others begin again
  max_size,        ///< from all that are not over yet; over when all are
  sequential,      ///< from one after another
};

/// Several loaders as one. A step has the micro-batches of every loader that takes part in it, one loader after
/// another; Batch::loader says whose one is. The step's loss and gradient are the mean over all of its samples,
/// exactly, at any number of ranks. Every epoch begins with all loaders at the beginning of one of theirs. A loss over
/// pairs of samples is a data set of pairs instead: a Dataset whose get() asks two others.
class CombinedLoader final : public BatchSource {
 public:
  /// The loaders are kept by reference. Throws: DataError (none).
  CombinedLoader(std::vector<BatchSource*> loaders, CombineMode mode);

  const StepBatches* next() override;
  std::optional<std::int64_t> steps_per_epoch() const override;
  LoaderPosition position() const override;
  void seek(const LoaderPosition& position) override;

 private:
  bool takes_part(std::size_t loader) const;
  bool is_over() const;
  void begin_epoch();

  std::vector<BatchSource*> loaders_;
  CombineMode mode_;
  std::int64_t epoch_ = 0;
  std::int64_t steps_ = 0;   // of the epoch
  std::vector<bool> ended_;  // has ended an epoch of its own in this one
  StepBatches current_{};
};

}  // namespace lockstep
