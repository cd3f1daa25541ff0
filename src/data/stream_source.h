// Batches of a Stream for a training.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <lockstep/data/data_loader.h>

#include "data/device_prefetcher.h"
#include "data/worker_pool.h"

namespace lockstep {

/// Steps of a Stream on every rank. A reader fills this rank's part of each step; every few steps the ranks exchange
/// how many samples they have. next() returns a step only when the following one is known, so that it can mark the last
/// step of an epoch. Epochs of data.steps_per_epoch take no more from the stream than their steps.
/// docs/decisions/0018-streams.md.
class StreamSource final : public BatchSource {
 public:
  StreamSource(std::unique_ptr<Stream> stream, const LoaderPlan& plan, World& world);
  ~StreamSource() override;

  const StepBatches* next() override { return next_unless({}); }
  const StepBatches* next_unless(const std::function<bool()>& stop) override;
  std::optional<std::int64_t> steps_per_epoch() const override;
  bool has_one_reader() const override { return true; }
  LoaderPosition position() const override;
  void seek(const LoaderPosition& position) override;

 private:
  /// A position in the stream: epoch, pass, and the samples that each rank has read.
  struct Cursor {
    std::int64_t epoch = 0;
    std::int64_t pass = 0;   // of the epoch; above 0 only if an epoch is longer than the stream
    std::int64_t steps = 0;  // of the epoch
    std::int64_t consumed = 0;
    std::vector<std::int64_t> of_ranks{};  // samples of the pass
  };
  struct ReadStep {
    std::vector<PreparedBatch> micro{};
    std::vector<std::int64_t> counts{};  // of each rank
    std::int64_t total = 0;
  };

  struct Exchange {
    std::vector<std::vector<std::int64_t>> counts{};  // of each rank, the samples of each step that it has read
    std::vector<int> waiting{};                       // ranks that have not read all steps
    bool stops = false;                               // a rank was asked to stop
  };

  void read(PendingStep& step, std::size_t index);
  std::string place() const;  // of the next sample
  template <class Call>
  auto call(const Call& of_stream);  // its exceptions name the sample
  void start();
  std::optional<Batch> read_batch(std::int64_t most);
  void restart(Cursor cursor);
  bool discard_old(WorkerPool::Time until);
  void end_pass_without_whole_step();
  bool agree(const std::function<bool()>& stop);
  bool read_and_agree(const std::function<bool()>& stop);
  bool fill_window(const std::function<bool()>& stop);
  bool add_to_window(WorkerPool::Time until);
  std::size_t window_size() const;  // steps between two exchanges
  std::size_t left_in_epoch()
      const;  // steps on which the ranks have not agreed; without data.steps_per_epoch: no limit
  Exchange exchange(bool stops);
  bool is_taken(const ReadStep& step) const;
  bool pass_is_over() const;
  std::int64_t share() const;  // this rank's samples of a full step
  Cursor after(const ReadStep& step, bool ends_pass, bool ends_epoch) const;

  std::unique_ptr<Stream> stream_;
  World& world_;
  LoaderPlan plan_;
  std::int64_t steps_per_epoch_;  // 0: as many as the stream gives
  Cursor cursor_{};
  std::deque<ReadStep> ready_{};    // read and agreed; the second tells whether the first is the last
  std::vector<ReadStep> window_{};  // read, not yet agreed
  bool is_elsewhere_ = false;       // the reader is not at the cursor; the steps of the pool are not wanted
  StepBatches current_{};
  std::optional<DevicePrefetcher> prefetcher_{};

  // Used by the reader while a step is pending.
  struct Reader {
    bool started = false;
    bool ended = false;
    std::int64_t epoch = 0;
    std::int64_t samples = 0;  // samples to skip at the start; then samples read
  } reader_{};
  WorkerPool pool_;  // last member: its thread uses the others
};

}  // namespace lockstep
