#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/base/log.h>
#include <lockstep/data/split.h>
#include <lockstep/sampling/distributed_sampler.h>
#include <lockstep/world/world.h>

#include "base/json.h"
#include "base/text.h"
#include "data/sample_error.h"

namespace lockstep {

namespace {

using Ids = std::vector<std::int64_t>;

/// The samples for validation, sorted.
Ids draw(std::int64_t size, const SplitOptions& options) {
  if (size < 2) {
    throw DataError(fmt::format("split: the data set has {}, expected 2 or more", counted(size, "sample")),
                    "one part of the data is for training, the other for validation");
  }
  if (options.count == 0 && !(options.fraction >= 0 && options.fraction <= 1)) {
    throw DataError(
        fmt::format("split: SplitOptions::fraction is {}, expected a part between 0 and 1", options.fraction),
        "0.1 takes a tenth of the samples for validation; SplitOptions::count is a number of samples");
  }
  const auto count = options.count != 0
                         ? options.count
                         : static_cast<std::int64_t>(std::llround(static_cast<double>(size) * options.fraction));
  if (count < 1 || count >= size) {
    throw DataError(fmt::format("split: {} of {} samples are for validation, expected 1 to {}", count, size, size - 1),
                    "set SplitOptions::fraction or count");
  }
  Ids ids(static_cast<std::size_t>(count));
  KeyedPermutation(size, options.seed, /*epoch=*/0).fill(0, ids);
  std::sort(ids.begin(), ids.end());
  return ids;
}

/// The validation samples in the text of a file; they must be of `data`.
Ids parse(const std::string& text, const std::filesystem::path& file, const Dataset& data) {
  std::string fingerprint;
  Ids ids;
  try {
    const Json json = parse_json(text);
    fingerprint = exact_text(member(json, "data"), "data");
    ids = member_as<Ids>(json, "validation");
  } catch (const std::exception& error) {
    throw DataError(fmt::format("{}: {}", file.string(), error.what()), "delete the file to draw a new split");
  }
  if (fingerprint != data.fingerprint()) {
    throw DataError(fmt::format("{} is the split of other data: found '{}', expected '{}'", file.string(),
                                printable(fingerprint), data.fingerprint()),
                    "delete the file to draw a new split");
  }
  const bool ascends = std::adjacent_find(ids.begin(), ids.end(), std::greater_equal<>()) == ids.end();
  if (ids.empty() || !ascends || ids.front() < 0 || ids.back() >= data.size()) {
    throw DataError(fmt::format("{}: its {} samples for validation must be sorted, without duplicates, from 0 to {}",
                                file.string(), ids.size(), data.size() - 1),
                    "delete the file to draw a new split");
  }
  return ids;
}

}  // namespace

Split split_dataset(std::shared_ptr<const Dataset> data, const std::filesystem::path& file, World& world,
                    const SplitOptions& options) {
  require_data("split", data);
  std::string text;
  world.main_first("the split of the data", [&] {
    if (!world.is_main()) {
      return;
    }
    FileSystem& fs = real_file_system();
    if (fs.exists(file)) {
      text = read_file(fs, file, /*max_bytes=*/std::int64_t{1} << 30);
      parse(text, file, *data);
      log_info(fmt::format("using the split in {}", file.string()));
      return;
    }
    const Ids ids = draw(data->size(), options);
    text = dump_json({{"data", exact_json(data->fingerprint())}, {"seed", options.seed}, {"validation", ids}});
    if (file.has_parent_path()) {
      fs.create_directories(file.parent_path());
    }
    write_file(fs, file, text);
  });
  Split split{.validation_ids = parse(world.broadcast_bytes(text), file, *data)};
  auto next = split.validation_ids.begin();
  for (std::int64_t id = 0; id < data->size(); ++id) {
    if (next != split.validation_ids.end() && *next == id) {
      ++next;
    } else {
      split.train_ids.push_back(id);
    }
  }
  split.train = subset(data, split.train_ids);
  split.validation = subset(data, split.validation_ids);
  return split;
}

}  // namespace lockstep
