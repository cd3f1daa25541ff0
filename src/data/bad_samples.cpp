#include "data/bad_samples.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/exception_text.h"
#include "base/text.h"
#include "data/finite_values.h"
#include "data/sample_error.h"
#include "world/out_of_memory.h"

namespace lockstep {

namespace {

/// Throws: DataError.
void check_finite(const Batch& batch, std::span<const std::int64_t> ids) {
  if (const auto found = find_not_finite(batch, std::ssize(ids))) {
    // Found in one of several samples, it may come from the others, such as their mean.
    const bool names_one = found->row && ids.size() > 1;
    throw DataError(
        fmt::format("{}: {}{}", sample_names(ids), found->text,
                    names_one ? fmt::format(" (sample {})", ids[static_cast<std::size_t>(*found->row)]) : ""),
        ids.size() > 1 ? "each of these samples alone is finite: look at what builds the batch, such as map_batches"
                       : "");
  }
}

}  // namespace

Batch BadSamples::load(const Dataset& data, std::span<const std::int64_t> ids, const SampleSeed& seed) const {
  try {
    Batch batch = data.get(ids, seed);
    if (check_finite_) {
      check_finite(batch, ids);
    }
    return batch;
  } catch (const IoError& error) {  // of the data, not of a checkpoint
    throw DataError(exception_text(error), error.hint(), exit_code_of(error));
  } catch (const Error&) {
    throw;
  } catch (...) {
    throw sample_error(sample_names(ids), current_exception_text());
  }
}

// Throws the error of the first bad one, which names only it.
void BadSamples::throw_of_first(const Dataset& data, std::span<const std::int64_t> ids, const SampleSeed& seed) const {
  for (const std::int64_t id : ids) {
    try {
      load(data, {&id, 1}, seed);
    } catch (const Error& error) {
      const std::string text = exception_text(error);
      if (!error.hint().empty() || is_out_of_memory(error)) {
        throw DataError(text, error.hint(), exit_code_of(error));
      }
      // A data set of several names its parts' samples by other numbers.
      const std::string name = fmt::format("{}: ", sample_names({&id, 1}));
      throw DataError(fmt::format("{}{}", text.starts_with(name) ? "" : name, text), hint_, exit_code_of(error));
    }
  }
}

Batch BadSamples::get(const Dataset& data, std::span<const std::int64_t> ids, const SampleSeed& seed) {
  try {
    return load(data, ids, seed);
  } catch (const Error&) {
    if (most_ == 0) {
      throw_of_first(data, ids, seed);
      throw;
    }
    // To find the bad ones, load each sample alone. If all of them load, the samples are not the cause.
    std::vector<std::int64_t> good(ids.begin(), ids.end());
    std::vector<std::int64_t> replaced;
    std::vector<std::int64_t> bad_ids;
    for (std::size_t row = 0; row < good.size(); ++row) {
      good[row] = neighbour(data, ids[row], seed);
      if (good[row] != ids[row]) {
        replaced.push_back(static_cast<std::int64_t>(row));
        bad_ids.push_back(ids[row]);
      }
    }
    if (replaced.empty()) {
      throw;
    }
    Batch batch = load(data, good, seed);
    batch.replaced = std::move(replaced);
    batch.bad_ids = std::move(bad_ids);
    if (batch.ids.empty()) {
      batch.ids = std::move(good);
    }
    return batch;
  }
}

// `id` if it is good, else the next sample that is.
std::int64_t BadSamples::neighbour(const Dataset& data, std::int64_t id, const SampleSeed& seed) {
  for (std::int64_t tried = 0; tried < data.size(); ++tried) {
    const std::int64_t candidate = (id + tried) % data.size();
    try {
      load(data, {&candidate, 1}, seed);
      return candidate;
    } catch (const Error& error) {
      note(candidate, error);
    }
  }
  throw DataError("all samples of the data set are bad",
                  "the warnings before say what is wrong with each of them; look at the code that reads the data");
}

void BadSamples::note(std::int64_t id, const std::exception& error) {
  std::unique_lock lock(mutex_);
  if (known_.contains(id)) {
    return;
  }
  if (static_cast<std::int64_t>(known_.size()) == most_) {
    throw DataError(fmt::format("{}; {} other bad samples were replaced before, and data.max_bad_samples is {}",
                                exception_text(error), known_.size(), most_),
                    fmt::format("the others: {}", fmt::join(known_, ", ")), exit_code_of(error));
  }
  known_.insert(id);
  const std::string warning = fmt::format("bad sample {}, replaced by the next one ({} of at most {}): {}", id,
                                          known_.size(), most_, printable(exception_text(error)));
  lock.unlock();  // the function of a LogScope may take its time
  log_warning(warning);
}

}  // namespace lockstep
