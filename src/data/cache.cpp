#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/base/log.h>
#include <lockstep/data/cache.h>
#include <lockstep/data/file_datasets.h>
#include <lockstep/world/world.h>

#include "base/json.h"
#include "base/text.h"
#include "data/bad_samples.h"
#include "data/batch_columns.h"
#include "data/cache_progress.h"
#include "data/gather_rows.h"
#include "data/sample_error.h"
#include "data/worker_pool.h"
#include "environment/process_name.h"
#include "formats/array_file.h"
#include "tensor/dtype_names.h"
#include "tensor/shape_text.h"
#include "tensor/tensor_bytes.h"

namespace lockstep {

namespace {

namespace fs = std::filesystem;

/// The tensors of a batch of `samples` samples as they are stored.
NamedTensors cached_columns(const Batch& batch, std::int64_t samples) {
  if (batch.extra.has_value()) {
    throw DataError("cache: samples with `extra` cannot be cached, only tensors",
                    "put its values into tensors, such as Batch::fields, or add it after the cache");
  }
  NamedTensors columns = columns_of(batch);
  for (auto& [name, tensor] : columns) {
    if (tensor.dim() == 0 || tensor.size(0) != samples) {
      throw DataError(fmt::format("cache: found {} of shape {} for {}, expected [{}, ...]", name,
                                  shape_text(tensor.sizes()), counted(samples, "sample"), samples),
                      "only data sets with one row of each tensor for each sample can be cached");
    }
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
  }
  return columns;
}

/// One tensor per name, with a row for each sample.
class Cached final : public Dataset {
 public:
  Cached(NamedTensors columns, std::int64_t size, std::string fingerprint)
      : columns_(std::move(columns)), size_(size), fingerprint_(std::move(fingerprint)) {}

  std::int64_t size() const override { return size_; }
  std::string fingerprint() const override { return fingerprint_; }

  Batch get(std::span<const std::int64_t> ids, const SampleSeed&) const override {
    check_ids("cache", ids, size_);
    NamedTensors picked;
    for (const auto& [name, rows] : columns_) {
      picked.emplace_back(name, gather_rows(rows, ids, memory_));
    }
    return batch_of(std::move(picked));
  }

 private:
  NamedTensors columns_;
  std::int64_t size_;
  std::string fingerprint_;
  mutable RecycledMemory memory_{};
};

/// A cache replaces no sample.
BadSamples cached_samples() {
  return BadSamples(DataConfig{.max_bad_samples = 0}, "leave it out with subset() below the cache");
}

/// Calls take(first id, columns) for all samples in their order, several at a time; all columns match those of the
/// first sample. `workers`: threads that make samples. `what`: for the log.
void for_all_samples(const Dataset& data, int workers, const std::string& what, const NamedTensors& first,
                     const std::function<void(std::int64_t, const NamedTensors&)>& take) {
  constexpr std::int64_t kBlock = 32;  // each thread holds one or two blocks
  const auto like_first = [&](const NamedTensors& columns) {
    return std::equal(columns.begin(), columns.end(), first.begin(), first.end(), [](const auto& a, const auto& b) {
      return a.first == b.first && a.second.scalar_type() == b.second.scalar_type() &&
             a.second.sizes().slice(1) == b.second.sizes().slice(1);
    });
  };
  BadSamples samples = cached_samples();
  WorkerPool pool(workers, [&](PendingStep& step, std::size_t) {
    const c10::NoGradGuard no_grad;
    step.micro.front().batch = samples.get(data, step.plan.ids, {});
  });
  CacheProgress progress(what, data.size(), CacheProgress::Clock::now());
  std::int64_t planned = 0;
  while (planned < data.size() || pool.pending() > 0) {
    while (planned < data.size() && pool.pending() <= static_cast<std::size_t>(workers)) {
      auto step = pool.spare();
      step->plan.ids.resize(static_cast<std::size_t>(std::min(kBlock, data.size() - planned)));
      step->plan.micro_batches = 1;
      std::iota(step->plan.ids.begin(), step->plan.ids.end(), planned);
      planned += std::ssize(step->plan.ids);
      pool.submit(std::move(step));
    }
    const PendingStep& step = pool.front();
    const std::int64_t begin = step.plan.ids.front();
    const std::int64_t end = step.plan.ids.back() + 1;
    const NamedTensors columns = cached_columns(step.micro.front().batch, end - begin);
    if (!like_first(columns)) {
      throw DataError(fmt::format("cache: samples {} to {} do not have the same tensors as sample 0", begin, end - 1));
    }
    take(begin, columns);
    pool.pop();
    if (const auto line = progress.line(end, CacheProgress::Clock::now())) {
      log_info(*line);
    }
  }
}

NamedTensors first_sample(const Dataset& data) {
  if (data.size() == 0) {
    throw DataError("cache: the data set is empty", "check the path and the split of the data set");
  }
  const std::int64_t id = 0;
  return cached_columns(cached_samples().get(data, {&id, 1}, {}), /*samples=*/1);
}

/// A column of a dtype that .npy files do not have is stored as bytes, uint8 [samples, bytes of a row].
Json stored_column(const std::string& name, const at::Tensor& first) {
  const auto dtype = dtype_name(first.scalar_type());
  if (!dtype) {
    throw DataError(fmt::format("cache: {} has dtype {}, which no file of lockstep can hold", name,
                                c10::toString(first.scalar_type())),
                    "convert it in a map() below the cache, or use memory_cache");
  }
  if (has_npy_dtype(*dtype)) {
    return name;
  }
  return {{"name", name}, {"dtype", std::string(*dtype)}, {"shape", first.sizes().slice(1).vec()}};
}

std::string header_of(const Json& stored, const at::Tensor& first, std::int64_t samples) {
  if (!stored.is_string()) {
    return npy_header("U8", {samples, static_cast<std::int64_t>(first.nbytes())});
  }
  std::vector<std::int64_t> shape = first.sizes().vec();
  shape.front() = samples;
  return npy_header(std::string(*dtype_name(first.scalar_type())), shape);
}

/// The name of a column and its rows, from what is in its file.
NamedTensors::value_type column_of(const Json& stored, at::Tensor rows) {
  if (stored.is_string()) {
    return {value_as<std::string>(stored, "columns"), std::move(rows)};
  }
  const auto dtype = dtype_of(member_as<std::string>(stored, "dtype"));
  if (!dtype) {
    throw DataError("a column has an unknown dtype");
  }
  auto shape = member_as<std::vector<std::int64_t>>(stored, "shape");
  shape.insert(shape.begin(), rows.size(0));
  return {member_as<std::string>(stored, "name"), rows.view(*dtype).view(shape)};
}

fs::path column_file(const fs::path& directory, std::size_t column) {
  return directory / fmt::format("column{}.npy", column);
}

constexpr const char* kComplete = "complete.json";  // written last

void make_files(const Dataset& data, const fs::path& directory, int workers) {
  FileSystem& files = real_file_system();
  files.create_directories(directory);
  files.remove(directory / kComplete);
  const NamedTensors first = first_sample(data);
  Json stored = Json::array();
  std::vector<std::unique_ptr<WritableFile>> columns;
  for (const auto& [name, tensor] : first) {
    stored.push_back(stored_column(name, tensor));
    const fs::path path = column_file(directory, columns.size());
    files.remove(path);
    columns.push_back(files.create(path));
    const std::string header = header_of(stored.back(), tensor, data.size());
    columns.back()->append(std::as_bytes(std::span(header)));
  }
  const std::string what = fmt::format("writing the cache {}", directory.string());
  for_all_samples(data, workers, what, first, [&](std::int64_t, const NamedTensors& rows) {
    for (std::size_t column = 0; column < rows.size(); ++column) {
      columns[column]->append(bytes_of(rows[column].second));
    }
  });
  for (const auto& column : columns) {
    column->sync();
    column->close();
  }
  write_file(files, directory / kComplete, dump_json({{"data", exact_json(data.fingerprint())}, {"columns", stored}}));
}

/// After a failure, such as a full disk.
void remove_columns(const fs::path& directory) {
  FileSystem& files = real_file_system();
  try {
    for (std::size_t column = 0; files.exists(column_file(directory, column)); ++column) {
      files.remove(column_file(directory, column));
    }
  } catch (const IoError& error) {
    log_warning(fmt::format("an incomplete cache is left: {}", printable(error.what())));
  }
}

/// nullptr: the cache is missing, incomplete, or of other data.
std::shared_ptr<Dataset> open_files(const Dataset& data, const fs::path& directory) {
  FileSystem& files = real_file_system();
  if (!files.exists(directory / kComplete)) {
    return nullptr;
  }
  try {
    const Json json = parse_json(read_file(files, directory / kComplete));
    if (exact_text(member(json, "data"), "data") != data.fingerprint()) {
      log_info(fmt::format("the cache in {} belongs to other data and is written again", directory.string()));
      return nullptr;
    }
    NamedTensors columns;
    for (const Json& stored : member(json, "columns")) {
      columns.push_back(column_of(stored, npy_tensor(column_file(directory, columns.size()))));
      if (columns.back().second.dim() == 0 || columns.back().second.size(0) != data.size()) {
        throw DataError(fmt::format("{1} does not have {0} rows", data.size(), columns.back().first));
      }
    }
    return std::make_shared<Cached>(std::move(columns), data.size(), data.fingerprint());
  } catch (const std::exception& error) {
    log_warning(fmt::format("the cache in {} is damaged and is written again: {}", directory.string(),
                            printable(error.what())));
    return nullptr;
  }
}

/// Waits for another run that writes the same cache.
std::unique_ptr<FileLock> lock_files(const fs::path& directory) {
  constexpr std::chrono::milliseconds kAskAgain{100};
  FileSystem& files = real_file_system();
  files.create_directories(directory);
  std::string owner;
  bool told = false;
  while (true) {
    if (auto lock = files.try_lock(directory / ".lock", pid_on_host(), owner)) {
      return lock;
    }
    if (!std::exchange(told, true)) {
      log_info(fmt::format("the cache in {} is being written by {}", directory.string(), printable(owner)));
    }
    std::this_thread::sleep_for(kAskAgain);
  }
}

}  // namespace

std::shared_ptr<Dataset> memory_cache(std::shared_ptr<const Dataset> data, std::int64_t most_bytes) {
  require_data("cache", data);
  const c10::NoGradGuard no_grad;
  const NamedTensors first = first_sample(*data);
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] : first) {
    bytes += static_cast<std::int64_t>(tensor.nbytes()) * data->size();
  }
  if (bytes > most_bytes) {
    log_warning(fmt::format("not cached in memory: {} samples need {}, the limit is {}", data->size(),
                            human_bytes(bytes), human_bytes(most_bytes)));
    return std::const_pointer_cast<Dataset>(data);  // which has no function that changes it
  }
  NamedTensors columns;
  for (const auto& [name, tensor] : first) {
    std::vector<std::int64_t> sizes = tensor.sizes().vec();
    sizes.front() = data->size();
    columns.emplace_back(name, at::empty(sizes, tensor.options()));
  }
  for_all_samples(*data, at::get_num_threads(), "loading all samples into memory", first,
                  [&](std::int64_t begin, const NamedTensors& rows) {
                    for (std::size_t column = 0; column < rows.size(); ++column) {
                      columns[column].second.narrow(0, begin, rows[column].second.size(0)).copy_(rows[column].second);
                    }
                  });
  return std::make_shared<Cached>(std::move(columns), data->size(), data->fingerprint());
}

std::shared_ptr<Dataset> disk_cache(std::shared_ptr<const Dataset> data, const fs::path& directory, World& world) {
  require_data("cache", data);
  std::shared_ptr<Dataset> cached;
  // One rank after another: the second finds the cache of the first, or is on another machine.
  world.one_by_one("the cache of the data", [&] {
    const c10::NoGradGuard no_grad;
    cached = open_files(*data, directory);
    if (cached) {
      return;
    }
    const std::unique_ptr<FileLock> lock = lock_files(directory);
    cached = open_files(*data, directory);
    if (!cached) {
      try {
        make_files(*data, directory, at::get_num_threads() * world.local_size());  // the other ranks wait
      } catch (...) {
        remove_columns(directory);
        throw;
      }
      cached = open_files(*data, directory);
      if (!cached) {
        throw DataError(fmt::format("the cache in {} was just written, and cannot be used", directory.string()),
                        "the message before this one says why; Dataset::fingerprint() has to be the same in each call");
      }
    }
  });
  return cached;
}

}  // namespace lockstep
