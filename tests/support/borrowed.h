// Loaders of a test for a CombinedLoader, which owns its loaders.
#pragma once

#include <memory>

#include <lockstep/data/data_loader.h>

namespace lockstep {

/// `source`, which must live as long as the result.
inline std::shared_ptr<BatchSource> borrowed(BatchSource& source) { return {std::shared_ptr<void>(), &source}; }

}  // namespace lockstep
