// lockstep/data/split.h
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include <lockstep/data/dataset.h>

namespace [[gnu::visibility("default")]] lockstep {

class World;

struct SplitOptions {
  double fraction = 0.1;   ///< of the samples, for validation
  std::int64_t count = 0;  ///< so many instead; 0: `fraction`
  std::uint64_t seed = 42;
};

struct Split {
  std::shared_ptr<Dataset> train{};
  std::shared_ptr<Dataset> validation{};
};

/// Collective. Samples for validation, drawn at random, and the rest for training. What was drawn is kept in `file`
/// (JSON; run_directory(config) is a good place): while that exists, it is the split, whatever the options say, so that
/// a run that continues never trains on what it was validated with. Only rank 0 needs the file. Throws: DataError
/// (nothing left on one side; a file of other data), IoError.
Split split_dataset(std::shared_ptr<const Dataset> data, const std::filesystem::path& file, World& world,
                    const SplitOptions& options = {});

}  // namespace lockstep
