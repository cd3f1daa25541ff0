// lockstep/data/split.h
//
// Divides a data set into samples for training and for validation, the same ones in every start of a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include <lockstep/data/dataset.h>

namespace [[gnu::visibility("default")]] lockstep {

class World;

/// How many samples split_dataset() draws for validation.
struct SplitOptions {
  double fraction = 0.1;   ///< part of the samples for validation
  std::int64_t count = 0;  ///< number of samples for validation; 0: use `fraction`
  std::uint64_t seed = 42;
};

/// The two parts of a data set.
struct Split {
  std::shared_ptr<Dataset> train{};
  std::shared_ptr<Dataset> validation{};
  /// The numbers that their samples have in the whole data set: sample i of `train` is its sample train_ids[i].
  std::vector<std::int64_t> train_ids{};
  std::vector<std::int64_t> validation_ids{};
};

/// Collective. Draws samples for validation at random; the rest is for training. Stores the result in `file` (JSON;
/// run_directory(config) is a good place). If `file` exists, its split is used whatever the options say, so that a
/// resumed run never trains on its validation samples. Only rank 0 needs the file. Throws: DataError (one part is
/// empty; the file belongs to other data), IoError.
Split split_dataset(std::shared_ptr<const Dataset> data, const std::filesystem::path& file, World& world,
                    const SplitOptions& options = {});

}  // namespace lockstep
