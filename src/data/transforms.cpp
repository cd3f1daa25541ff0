#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/data/padding.h>
#include <lockstep/data/transforms.h>

#include "base/splitmix.h"
#include "data/sample_error.h"
#include "data/stacker.h"

namespace lockstep {

namespace {

/// The samples `ids` of `data`, read one at a time, changed and stacked. `change(id, sample)` returns the new sample.
template <class Change>
Batch stack_samples(const Dataset& data, std::span<const std::int64_t> ids, const SampleSeed& seed,
                    std::span<const Padding> paddings, const Change& change) {
  Stacker stacker(ids.size(), paddings);
  std::vector<std::int64_t> own_ids;  // those that the data set sets itself
  for (const std::int64_t& id : ids) {
    const Batch batch = data.get({&id, 1}, seed);
    own_ids.insert(own_ids.end(), batch.ids.begin(), batch.ids.end());
    Batch sample = with_sample_names({&id, 1}, [&] { return sample_of(batch, 0, 1); });
    stacker.add(id, change(id, std::move(sample)));
  }
  Batch stacked = stacker.stacked();
  stacked.ids = std::move(own_ids);
  return stacked;
}

/// The seed with which a mapped data set is read.
SampleSeed inner_seed(const SampleSeed& seed) { return {.seed = splitmix(seed.seed), .epoch = seed.epoch}; }

/// `name`: of the function that changes the data; empty: it has none.
std::string mapped_fingerprint(const Dataset& data, const std::string& name) {
  return name.empty() ? data.fingerprint() : fmt::format("{} mapped by {}", data.fingerprint(), name);
}

class Mapped final : public Dataset {
 public:
  Mapped(std::shared_ptr<const Dataset> data, std::function<Batch(Batch, std::uint64_t)> f, std::string name)
      : data_(std::move(data)), f_(std::move(f)), name_(std::move(name)) {}

  std::int64_t size() const override { return data_->size(); }
  std::string fingerprint() const override { return mapped_fingerprint(*data_, name_); }

  Batch get(std::span<const std::int64_t> ids, const SampleSeed& seed) const override {
    return stack_samples(*data_, ids, inner_seed(seed), {}, [&](const std::int64_t& id, Batch sample) {
      return with_sample_names({&id, 1}, [&] { return f_(std::move(sample), seed(id)); });
    });
  }

 private:
  std::shared_ptr<const Dataset> data_;
  std::function<Batch(Batch, std::uint64_t)> f_;
  std::string name_;
};

class MappedBatches final : public Dataset {
 public:
  MappedBatches(std::shared_ptr<const Dataset> data, std::function<Batch(Batch)> f, std::string name)
      : data_(std::move(data)), f_(std::move(f)), name_(std::move(name)) {}

  std::int64_t size() const override { return data_->size(); }
  std::string fingerprint() const override { return mapped_fingerprint(*data_, name_); }

  Batch get(std::span<const std::int64_t> ids, const SampleSeed& seed) const override {
    Batch batch = data_->get(ids, seed);
    std::vector<std::int64_t> own_ids = batch.ids;
    const std::int64_t samples = batch.samples;
    Batch mapped = with_sample_names(ids, [&] { return f_(std::move(batch)); });
    mapped.ids = std::move(own_ids);
    if (mapped.samples == 0) {
      mapped.samples = samples;
    }
    return mapped;
  }

 private:
  std::shared_ptr<const Dataset> data_;
  std::function<Batch(Batch)> f_;
  std::string name_;
};

class Padded final : public Dataset {
 public:
  Padded(std::shared_ptr<const Dataset> data, std::vector<Padding> paddings)
      : data_(std::move(data)), paddings_(std::move(paddings)) {}

  std::int64_t size() const override { return data_->size(); }
  std::string fingerprint() const override { return data_->fingerprint(); }

  Batch get(std::span<const std::int64_t> ids, const SampleSeed& seed) const override {
    return stack_samples(*data_, ids, seed, paddings_, [](std::int64_t, Batch sample) { return sample; });
  }

 private:
  std::shared_ptr<const Dataset> data_;
  std::vector<Padding> paddings_;
};

template <class Function>
void check_map_arguments(const char* name, const std::shared_ptr<const Dataset>& data, const Function& f) {
  require_data(name, data);
  if (!f) {
    throw DataError(fmt::format("{}: the function is missing", name));
  }
}

}  // namespace

std::shared_ptr<Dataset> map(std::shared_ptr<const Dataset> data,
                             std::function<Batch(Batch sample, std::uint64_t seed)> f, std::string name) {
  check_map_arguments("map", data, f);
  return std::make_shared<Mapped>(std::move(data), std::move(f), std::move(name));
}

std::shared_ptr<Dataset> map_batches(std::shared_ptr<const Dataset> data, std::function<Batch(Batch batch)> f,
                                     std::string name) {
  check_map_arguments("map_batches", data, f);
  return std::make_shared<MappedBatches>(std::move(data), std::move(f), std::move(name));
}

std::shared_ptr<Dataset> padded(std::shared_ptr<const Dataset> data, std::vector<Padding> paddings) {
  require_data("padded", data);
  check_paddings(paddings);
  return std::make_shared<Padded>(std::move(data), std::move(paddings));
}

}  // namespace lockstep
