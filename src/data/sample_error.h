// Errors about samples.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/data/dataset.h>

#include "base/exception_text.h"
#include "base/text.h"

namespace lockstep {

/// For an exception of the user's code while it built these samples, of whatever type: "sample 7: std::runtime_error:
/// not an image". `what`: see current_exception_text(). It has the exit code of a failed training.
inline DataError sample_error(const std::string& samples, const std::string& what) {
  return DataError(samples + ": " + what, {}, ExitCode::failed);
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
    const std::string what = exception_text(error);
    throw DataError((what.starts_with(names) ? "" : names) + what, error.hint(), error.exit_code());
  } catch (...) {
    throw sample_error(sample_names(ids), current_exception_text());
  }
}

/// Throws DataError: "subset: the data set is null".
inline void require_data(std::string_view what, const std::shared_ptr<const Dataset>& data) {
  if (!data) {
    throw DataError(fmt::format("{}: the data set is null", what),
                    "give it what a factory such as tensor_dataset() returns");
  }
}

/// Throws DataError: "subset: found sample id 7, expected 0 to 4", or "... 7, and the data set is empty".
inline void check_ids(std::string_view what, std::span<const std::int64_t> ids, std::int64_t size) {
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= size) {
      throw DataError(fmt::format("{}: found sample id {}, {}", what, id,
                                  size == 0 ? "and the data set is empty" : fmt::format("expected 0 to {}", size - 1)));
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
