// Errors about samples.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <typeinfo>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/data/dataset.h>

#include "base/text.h"

namespace lockstep {

/// For an exception of the user's code while it built these samples: "sample 7: std::runtime_error: not an image",
/// without LibTorch's stack trace, and with the exit code of a failed training.
inline DataError sample_error(const std::string& samples, const std::exception& error) {
  return DataError(samples + ": " + type_name(typeid(error)) + ": " + std::string(without_frames(error.what())), {},
                   ExitCode::failed);
}

/// "sample 7", or "samples 7, 2, 9, ... (32 samples)".
inline std::string sample_names(std::span<const std::int64_t> ids) {
  if (ids.size() == 1) {
    return fmt::format("sample {}", ids.front());
  }
  constexpr std::size_t kShown = 8;
  const auto shown = ids.first(std::min(ids.size(), kShown));
  return fmt::format("samples {}{} ({} samples)", fmt::join(shown, ", "), ids.size() > kShown ? ", ..." : "",
                     ids.size());
}

/// Returns build(); its exceptions become DataErrors that name the samples, with the exit codes of the exceptions.
template <class Build>
auto with_sample_names(std::span<const std::int64_t> ids, const Build& build) {
  try {
    return build();
  } catch (const Error& error) {
    const std::string names = sample_names(ids) + ": ";
    const bool has_names = std::string_view(error.what()).starts_with(names);
    throw DataError(fmt::format("{}{}", has_names ? "" : names, error.what()), error.hint(), error.exit_code());
  } catch (const std::exception& error) {
    throw sample_error(sample_names(ids), error);
  }
}

/// Throws DataError: "subset: the data set is null".
inline void require_data(std::string_view what, const std::shared_ptr<const Dataset>& data) {
  if (!data) {
    throw DataError(fmt::format("{}: the data set is null", what),
                    "give it what a factory such as tensor_dataset() returns");
  }
}

/// Throws DataError: "subset: found sample id 7, expected 0 to 4".
inline void check_ids(std::string_view what, std::span<const std::int64_t> ids, std::int64_t size) {
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= size) {
      throw DataError(fmt::format("{}: found sample id {}, expected 0 to {}", what, id, size - 1));
    }
  }
}

/// Throws DataError: "stream: found a batch of 8 samples with 1 id".
inline void check_id_count(std::string_view what, const Batch& batch) {
  if (!batch.ids.empty() && std::ssize(batch.ids) != batch.samples) {
    throw DataError(fmt::format("{}: found a batch of {} with {}", what, counted(batch.samples, "sample"),
                                counted(std::ssize(batch.ids), "id")),
                    "give each sample an id, or none");
  }
}

}  // namespace lockstep
