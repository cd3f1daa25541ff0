#include "data/stream_source.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/world/world.h>

#include "base/ceil_div.h"
#include "base/exception_text.h"
#include "base/text.h"
#include "data/batch_columns.h"
#include "data/finite_values.h"
#include "data/sample_error.h"
#include "data/step_plan.h"
#include "world/gather_values.h"
#include "world/warn_on_main.h"
#include "world/world_access.h"

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLook{100};  // between two questions whether to stop
constexpr std::chrono::seconds kExchange{1};     // a rank without data tells the others, and learns of their stop
constexpr std::chrono::seconds kTell{30};        // then the main rank names the ranks without data
constexpr std::chrono::seconds kCancel{5};       // for a stream that was told that no more samples are wanted

std::int64_t sum(const std::vector<std::int64_t>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
}

std::optional<std::vector<std::int64_t>> parse_numbers(std::string_view text) {
  std::vector<std::int64_t> numbers;
  for (const std::string& word : split(text, ' ')) {
    const auto number = parse_int(word);
    if (!number || *number < 0) {
      return std::nullopt;
    }
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace

StreamSource::StreamSource(std::unique_ptr<Stream> stream, const LoaderPlan& plan, World& world)
    : stream_(std::move(stream)),
      world_(world),
      plan_(plan),
      steps_per_epoch_(fixed_steps_per_epoch(plan)),
      // One reader, because a stream has one order.
      pool_(std::min(plan.data.workers, 1), [this](PendingStep& step, std::size_t index) { read(step, index); }) {
  if (plan_.batch.global_batch_size < world.size()) {
    throw ConfigError(fmt::format("global_batch_size is {}, expected at least one sample for each of {} ranks",
                                  plan_.batch.global_batch_size, world.size()),
                      "every rank reads its own stream");
  }
  if (!world.device().is_cpu()) {
    prefetcher_.emplace(world, plan.data);
  }
  if (plan.data.max_bad_samples > 0 && world.is_main()) {
    log_warning("data.max_bad_samples does not apply to streams: a sample that cannot be read ends the run");
  }
  restart({});
}

StreamSource::~StreamSource() {
  pool_.stop();
  stream_->cancel();
  if (!pool_.clear(Clock::now() + kCancel)) {
    log_warning(
        fmt::format("no more samples are wanted, but the stream has not returned from next() or skip() for {} s: "
                    "waiting for it. Override Stream::cancel() so that it returns. A second Ctrl-C ends the "
                    "process at once",
                    kCancel.count()));
  }
}

const StepBatches* StreamSource::next_unless(const std::function<bool()>& stop) {
  current_.micro.clear();
  const std::size_t known = cursor_.steps + 1 == steps_per_epoch_ ? 1 : 2;  // the second tells where the pass ends
  while (ready_.size() < known && !pass_is_over()) {
    if (!agree(stop)) {
      return nullptr;
    }
  }
  if (!is_taken(ready_.front())) {
    throw DataError(fmt::format("the stream gave {} samples in epoch {}, expected {}", ready_.front().total,
                                cursor_.epoch,
                                plan_.sampler.drop_last ? "a whole step on every rank" : "at least one"));
  }
  ReadStep step = std::move(ready_.front());
  ready_.pop_front();
  const bool ends_pass = !ready_.empty() && !is_taken(ready_.front());
  const bool ends_epoch = steps_per_epoch_ > 0 ? cursor_.steps + 1 >= steps_per_epoch_ : ends_pass;
  for (PreparedBatch& prepared : step.micro) {
    if (prefetcher_ && prepared.batch.samples > 0) {
      prefetcher_->receive(prepared);
    }
    current_.micro.push_back(std::move(prepared.batch));
  }
  current_.local_samples = step.counts[static_cast<std::size_t>(world_.rank())];
  current_.global_samples = step.total;
  current_.epoch = cursor_.epoch;
  current_.ends_epoch = ends_epoch;
  cursor_ = after(step, ends_pass, ends_epoch);
  if (ends_pass || ends_epoch) {
    restart(cursor_);
  }
  return &current_;
}

std::optional<std::int64_t> StreamSource::steps_per_epoch() const {
  return steps_per_epoch_ > 0 ? std::optional(steps_per_epoch_) : std::nullopt;
}

LoaderPosition StreamSource::position() const {
  LoaderPosition position{
      .epoch = cursor_.epoch, .consumed = cursor_.consumed, .global_batch = plan_.batch.global_batch_size};
  if (cursor_.steps > 0) {
    position.state = fmt::format("{} {} {}", cursor_.pass, cursor_.steps, fmt::join(cursor_.of_ranks, " "));
  }
  return position;
}

void StreamSource::seek(const LoaderPosition& position) {
  Cursor cursor{.epoch = position.epoch, .consumed = position.consumed};
  if (position.consumed > 0) {
    const auto numbers = parse_numbers(position.state);
    if (!numbers || numbers->size() < 3) {
      throw CheckpointError(
          fmt::format("checkpoint position: found '{}', expected the position of a stream", printable(position.state)),
          "resume with the data of the checkpoint, or start over with --fresh");
    }
    cursor.pass = (*numbers)[0];
    cursor.steps = (*numbers)[1];
    cursor.of_ranks.assign(numbers->begin() + 2, numbers->end());
    if (std::ssize(cursor.of_ranks) != world_.size()) {
      throw CheckpointError(
          fmt::format("checkpoint position: found the streams of {} ranks in the middle of an epoch, expected {}",
                      cursor.of_ranks.size(), world_.size()),
          fmt::format("streams are divided by rank: resume with --nprocs {}", cursor.of_ranks.size()));
    }
  }
  check_position(position, /*dataset_size=*/0, position.consumed);
  if (steps_per_epoch_ > 0 && cursor.steps >= steps_per_epoch_) {
    cursor = {.epoch = cursor.epoch + 1};  // epochs are shorter than those of the checkpoint
  }
  restart(std::move(cursor));
  if (!plan_.batch.global_is_given && position.global_batch >= world_.size() &&
      position.global_batch != plan_.batch.global_batch_size) {
    warn_on_main(world_, kept_global_batch_text(position.global_batch, plan_.batch.global_batch_size, world_.size(),
                                                plan_.batch.batch_size));
    pool_.clear();                                          // from now on nobody reads the plan
    plan_.batch.global_batch_size = position.global_batch;  // as for a data set
  }
  if (cursor_.of_ranks[static_cast<std::size_t>(world_.rank())] > 0) {
    pool_.clear();
    discard_old(Clock::now());
    start();  // skipping may take longer than a step is allowed to
  }
  if (plan_.sampler.drop_last && sum(cursor_.of_ranks) > 0) {
    end_pass_without_whole_step();
  }
}

// Collective. The rest of the pass may be too small for another global batch than that of the checkpoint.
void StreamSource::end_pass_without_whole_step() {
  agree(/*stop=*/{});
  if (is_taken(ready_.front())) {
    return;
  }
  if (steps_per_epoch_ > 0) {
    restart({.epoch = cursor_.epoch, .pass = cursor_.pass + 1, .steps = cursor_.steps, .consumed = cursor_.consumed});
  } else {
    restart({.epoch = cursor_.epoch + 1});
  }
}

// Discards everything that was read ahead; the next step starts the stream again. Does not wait for the reader, which
// may be in a next() that waits for data.
void StreamSource::restart(Cursor cursor) {
  ready_.clear();
  window_.clear();
  cursor_ = std::move(cursor);
  cursor_.of_ranks.resize(static_cast<std::size_t>(world_.size()));
  is_elsewhere_ = true;
}

// True: the reader is at the cursor. False: it was still reading at another place.
bool StreamSource::discard_old(WorkerPool::Time until) {
  if (!is_elsewhere_) {
    return true;
  }
  if (!pool_.clear(until)) {
    return false;
  }
  is_elsewhere_ = false;
  reader_ = {.epoch = cursor_.epoch + (cursor_.pass << 32),
             .samples = cursor_.of_ranks[static_cast<std::size_t>(world_.rank())]};
  return true;
}

StreamSource::Cursor StreamSource::after(const ReadStep& step, bool ends_pass, bool ends_epoch) const {
  if (ends_epoch) {
    return {.epoch = cursor_.epoch + 1};
  }
  Cursor cursor = cursor_;
  ++cursor.steps;
  cursor.consumed += step.total;
  for (std::size_t rank = 0; rank < step.counts.size(); ++rank) {
    cursor.of_ranks[rank] += step.counts[rank];
  }
  if (ends_pass) {
    ++cursor.pass;
    cursor.of_ranks.assign(step.counts.size(), 0);
  }
  return cursor;
}

bool StreamSource::is_taken(const ReadStep& step) const {
  return plan_.sampler.drop_last ? step.total == plan_.batch.global_batch_size : step.total > 0;
}

bool StreamSource::pass_is_over() const { return !ready_.empty() && !is_taken(ready_.back()); }

std::int64_t StreamSource::share() const {
  return share_of(plan_.batch.global_batch_size, world_.size(), world_.rank());
}

// Collective, the same number of steps on every rank. False: a rank was asked to stop while one waited for data; what
// was read is kept. An exception leaves the stream at the end of the last step.
bool StreamSource::agree(const std::function<bool()>& stop) {
  try {
    return read_and_agree(stop);
  } catch (...) {
    restart(cursor_);
    throw;
  }
}

// A rank that waits for data takes part in an exchange every second: it may be the only one that was asked to stop, or
// the only one that was not.
bool StreamSource::read_and_agree(const std::function<bool()>& stop) {
  const auto begin = Clock::now();
  bool told = false;
  while (true) {
    const bool stops = fill_window(stop);
    const Exchange found = exchange(stops);
    if (found.waiting.empty()) {
      for (std::size_t i = 0; i < window_.size(); ++i) {
        for (const std::vector<std::int64_t>& of_rank : found.counts) {
          window_[i].counts.push_back(of_rank[i]);
        }
        window_[i].total = sum(window_[i].counts);
        ready_.push_back(std::move(window_[i]));
      }
      window_.clear();
      return true;
    }
    if (found.stops) {
      return false;
    }
    if (!told && world_.is_main() && Clock::now() - begin >= kTell) {
      log_warning(fmt::format("waiting for data: no step of the stream for {} s on rank{} {}", kTell.count(),
                              found.waiting.size() == 1 ? "" : "s", fmt::join(found.waiting, ", ")));
      told = true;
    }
    // It waits and has not stalled. The exchange of a single rank does not change the record.
    ProgressRecord& progress = WorldAccess::progress(world_);
    progress.set_phase(progress.phase);
  }
}

// Until the window is full, or an exchange is due. Returns whether this rank was asked to stop.
bool StreamSource::fill_window(const std::function<bool()>& stop) {
  const auto exchange_at = Clock::now() + kExchange;
  while (true) {
    const bool stops = stop && stop();
    const auto until = stops ? Clock::now() : std::min(exchange_at, Clock::now() + kLook);
    while (window_.size() < window_size() && add_to_window(until)) {
    }
    if (stops || window_.size() == window_size() || Clock::now() >= exchange_at) {
      return stops;
    }
  }
}

bool StreamSource::add_to_window(WorkerPool::Time until) {
  if (!discard_old(until)) {
    return false;
  }
  const std::size_t ahead = plan_.data.workers > 0 ? window_size() : 1;
  while (pool_.pending() < std::min(ahead, left_in_epoch() - window_.size())) {
    auto step = pool_.spare();
    step->plan.micro_batches = static_cast<std::size_t>(
        micro_batch_count(plan_.batch.global_batch_size, world_.size(), plan_.batch.batch_size));
    pool_.submit(std::move(step));
  }
  if (!pool_.is_complete(until)) {
    return false;
  }
  window_.push_back({.micro = std::exchange(pool_.front().micro, {})});
  pool_.pop();
  return true;
}

std::size_t StreamSource::window_size() const {
  return std::min(static_cast<std::size_t>(std::max(plan_.data.prefetch, 1)), left_in_epoch());
}

std::size_t StreamSource::left_in_epoch() const {
  return steps_per_epoch_ > 0 ? static_cast<std::size_t>(steps_per_epoch_ - cursor_.steps) - ready_.size()
                              : std::numeric_limits<std::size_t>::max();
}

StreamSource::Exchange StreamSource::exchange(bool stops) {
  const auto steps = static_cast<std::int64_t>(window_size());
  std::vector<std::int64_t> mine{stops ? 1 : 0, steps};
  for (const ReadStep& step : window_) {
    mine.push_back(0);
    for (const PreparedBatch& prepared : step.micro) {
      mine.back() += prepared.batch.samples;
    }
  }
  Exchange found;
  for (const std::vector<std::int64_t>& numbers : gather_values(world_, mine)) {
    if (numbers.size() < 2 || numbers[1] != steps || std::ssize(numbers) > 2 + steps) {
      throw CommError(fmt::format("a rank sent '{}' about its stream, expected the samples of {} steps",
                                  fmt::join(numbers, " "), steps),
                      "use the same data.prefetch and data.steps_per_epoch on every rank", ExitCode::disagree);
    }
    found.stops = found.stops || numbers[0] != 0;
    found.counts.emplace_back(numbers.begin() + 2, numbers.end());
    if (std::ssize(found.counts.back()) < steps) {
      found.waiting.push_back(static_cast<int>(found.counts.size()) - 1);
    }
  }
  return found;
}

void StreamSource::read(PendingStep& step, std::size_t index) {
  const c10::NoGradGuard no_grad;
  const c10::OptionalStreamGuard on_copy_stream(prefetcher_ ? std::optional(prefetcher_->stream()) : std::nullopt);
  PreparedBatch& prepared = step.micro[index];
  prepared.batch = {};
  const std::int64_t wanted = share() - static_cast<std::int64_t>(index) * plan_.batch.batch_size;
  if (wanted <= 0 || reader_.ended) {
    return;
  }
  auto batch = read_batch(std::min(wanted, plan_.batch.batch_size));
  if (!batch) {
    reader_.ended = true;
    return;
  }
  prepared.batch = std::move(*batch);
  reader_.samples += prepared.batch.samples;
  if (prefetcher_) {
    prefetcher_->send(prepared);
  }
}

std::string StreamSource::place() const {
  return fmt::format("stream of rank {}, after sample {} of its epoch", world_.rank(), reader_.samples);
}

template <class Call>
auto StreamSource::call(const Call& of_stream) {
  try {
    return of_stream();
  } catch (const IoError& error) {  // of the data, not of a checkpoint
    throw DataError(fmt::format("{}: {}", place(), exception_text(error)), error.hint(), exit_code_of(error));
  } catch (const Error&) {
    throw;
  } catch (...) {
    throw sample_error(place(), current_exception_text());
  }
}

// While no step is pending, or by the reader.
void StreamSource::start() {
  const c10::NoGradGuard no_grad;
  call([&] {
    stream_->start_epoch(reader_.epoch, world_.rank(), world_.size());
    stream_->skip(reader_.samples);
  });
  reader_.started = true;
}

std::optional<Batch> StreamSource::read_batch(std::int64_t most) {
  if (!reader_.started) {
    start();
  }
  std::optional<Batch> batch = call([&] { return stream_->next(most); });
  if (batch) {
    batch->samples = samples_of(*batch);
  }
  if (batch && (batch->samples < 1 || batch->samples > most)) {
    throw DataError(fmt::format("stream: found a batch of {} samples, expected 1 to {}", batch->samples, most),
                    "set Batch::samples; nullopt ends the epoch");
  }
  if (batch) {
    check_id_count("stream", *batch);
  }
  if (batch && plan_.sampler.drop_last && batch->samples < most) {  // its step is not full, which ends the epoch
    if (call([&] { return stream_->next(most - batch->samples); })) {
      throw DataError(fmt::format("{}: found a batch of {} before the end, expected {}", place(),
                                  counted(batch->samples, "sample"), most),
                      "with --sampler.drop_last true, next(most) has to return as many samples as it is asked for "
                      "until the end of the stream");
    }
    reader_.ended = true;
  }
  if (const auto found = batch && plan_.data.check_finite ? find_not_finite(*batch, batch->samples) : std::nullopt) {
    throw DataError(fmt::format("{}: {}{}", place(), found->text,
                                found->row ? fmt::format(" (sample {})", reader_.samples + *found->row) : ""));
  }
  return batch;
}

}  // namespace lockstep
