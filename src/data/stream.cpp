#include <algorithm>
#include <utility>

#include <lockstep/base/error.h>
#include <lockstep/data/stream.h>

#include "data/batch_columns.h"
#include "data/stacker.h"

namespace lockstep {

namespace {

class SampleStream final : public Stream {
 public:
  SampleStream(std::function<SampleSource(std::int64_t, int, int)> start, std::vector<Padding> paddings,
               std::function<void()> cancel)
      : start_(std::move(start)), paddings_(std::move(paddings)), cancel_(std::move(cancel)) {}

  void start_epoch(std::int64_t epoch, int rank, int world_size) override {
    source_ = start_(epoch, rank, world_size);
    given_ = 0;
    ended_ = false;
  }

  std::optional<Batch> next(std::int64_t most) override {
    Stacker stacker(static_cast<std::size_t>(most), paddings_);
    Batch batch;
    while (batch.samples < most) {
      auto sample = read();
      if (!sample) {
        break;
      }
      stacker.add(given_++, std::move(*sample));
      ++batch.samples;
    }
    if (batch.samples == 0) {
      return std::nullopt;
    }
    const std::int64_t samples = batch.samples;
    batch = stacker.stacked();
    batch.samples = samples;
    return batch;
  }

  void skip(std::int64_t samples) override {
    for (; samples > 0 && read(); --samples) {
      ++given_;
    }
  }

  void cancel() noexcept override {
    if (cancel_) {
      cancel_();
    }
  }

 private:
  std::optional<Batch> read() {
    auto sample = ended_ ? std::nullopt : source_();
    ended_ = !sample;
    return sample;
  }

  std::function<SampleSource(std::int64_t, int, int)> start_;
  std::vector<Padding> paddings_;
  std::function<void()> cancel_;
  SampleSource source_{};
  std::int64_t given_ = 0;
  bool ended_ = false;  // a source is not asked after its end: it may begin anew, or wait
};

}  // namespace

void Stream::skip(std::int64_t samples) {
  constexpr std::int64_t kMost = 64;
  while (samples > 0) {
    const auto batch = next(std::min(samples, kMost));
    if (!batch) {
      return;
    }
    samples -= samples_of(*batch);
  }
}

std::unique_ptr<Stream> sample_stream(std::function<SampleSource(std::int64_t epoch, int rank, int world_size)> start,
                                      std::vector<Padding> paddings, std::function<void()> cancel) {
  if (!start) {
    throw DataError("sample stream: the function is missing");
  }
  check_paddings(paddings);
  return std::make_unique<SampleStream>(std::move(start), std::move(paddings), std::move(cancel));
}

}  // namespace lockstep
