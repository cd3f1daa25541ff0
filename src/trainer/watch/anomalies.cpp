#include "trainer/watch/anomalies.h"

#include <iterator>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <lockstep/base/error.h>

#include "base/text.h"
#include "world/warn_on_main.h"

namespace lockstep {
namespace {

/// `rank`: if one alone was it.
void append_place(EventFields& fields, std::optional<int> rank, std::string samples) {
  if (rank) {
    fields.emplace_back("rank", std::int64_t{*rank});
  }
  fields.emplace_back("samples", std::move(samples));
}

void append_loss(EventFields& fields, const NonFinite::Value& loss) {
  fields.emplace_back("loss_step", loss.step);
  append_place(fields, loss.rank, loss.samples);
}

}  // namespace

void Anomalies::add(std::int64_t step, const StepResult& result, const StepBatches& batches) {
  finite_.add(step, result, batches);
  spikes_.add(step, result, batches);
  replaced_.add(step, batches);
  constexpr std::size_t kMost = 1'000'000;  // while values are not finite, no copy is taken, and the list grows
  if (can_roll_back() && to_leave_out_.size() < kMost) {
    for (const Batch& batch : batches.micro) {
      to_leave_out_.insert(to_leave_out_.end(), batch.ids.begin(), batch.ids.end());
    }
  }
}

void Anomalies::look(const torch::nn::Module& module, std::int64_t step) {
  if (has_rolled_back(step)) {
    return;  // a save after a report that went back: nothing was trained since
  }
  auto spike = spikes_.look(world_);
  if (!spike_) {
    spike_ = std::move(spike);
  }
  auto found = finite_.look(module, world_);
  parameters_finite_ = !found || found->parameter.empty();
  if (!non_finite_) {
    non_finite_ = std::move(found);
  }
  tell_replaced();
  tell_skipped(step);
}

bool Anomalies::will_roll_back() const noexcept {
  return (non_finite_ && config_.optim.non_finite == NonFinitePolicy::rollback) ||
         (spike_ && config_.spike.policy == SpikePolicy::rollback);
}

bool Anomalies::act(const RunSnapshot::Parts& run, std::int64_t step, Occasion occasion) {
  if (has_rolled_back(step)) {
    return false;
  }
  const bool may_go_back = occasion != Occasion::other_report;
  const auto take = [&](auto& finding, bool goes_back) {
    return may_go_back || !goes_back ? std::exchange(finding, std::nullopt) : std::nullopt;
  };
  const auto spike = take(spike_, config_.spike.policy == SpikePolicy::rollback);
  const auto found = take(non_finite_, config_.optim.non_finite == NonFinitePolicy::rollback);
  if (found && act_on(*found, run, step)) {
    return true;
  }
  told_non_finite_ = told_non_finite_ && found;
  const bool put_back = spike && act_on(*spike, run, step);
  if (const auto why = occasion == Occasion::report_by_steps ? spikes_.take_lr_reduction() : std::nullopt) {
    lower_rates(*why, run.strategy, step);
  }
  if (!put_back && !found && may_go_back) {
    rollbacks_in_a_row_ = 0;
    take_snapshot(run, step);
  }
  return put_back;
}

// The worker that built the batch has warned.
void Anomalies::tell_replaced() {
  if (config_.data.max_bad_samples == 0) {
    return;
  }
  for (const ReplacedSample& found : replaced_.take(world_)) {
    files_.event("bad_sample", {{"step", found.step},
                                {"rank", std::int64_t{found.rank}},
                                {"sample", found.sample},
                                {"replaced_by", found.by}});
  }
}

void Anomalies::tell_skipped(std::int64_t step) {
  const SkippedSteps& skipped = finite_.skipped();
  if (skipped.count > 0 && config_.optim.non_finite == NonFinitePolicy::skip) {
    EventFields fields{{"step", step}, {"steps", skipped.count}, {"first", skipped.first}, {"last", skipped.last}};
    if (skipped.loss) {
      append_loss(fields, *skipped.loss);
    } else {
      fields.emplace_back("samples", skipped.samples);
    }
    files_.event("skipped", fields);
    warn_on_main(world_, fmt::format("step {}: {}", step, skipped.text()));
  }
  const std::vector<Spike>& spikes = spikes_.skipped();
  for (const Spike& spike : spikes) {
    tell_spike(spike, /*skipped=*/true);
  }
  if (!spikes.empty()) {
    warn_on_main(world_, fmt::format("{}; the step changed nothing{}", spikes.front().text(),
                                     spikes.size() == 1 ? std::string()
                                                        : fmt::format(", nor did {} after it since the last report",
                                                                      counted(std::ssize(spikes) - 1, "step"))));
  }
}

void Anomalies::tell_spike(const Spike& spike, bool skipped) {
  EventFields fields{{"step", spike.step},
                     {"metric", spike.name},
                     {"value", spike.value},
                     {"z_score", spike.z_score},
                     {"skipped", skipped}};
  append_place(fields, spike.rank, fmt::format("{}", fmt::join(spike.ids, " ")));
  files_.event("spike", fields);
}

void Anomalies::tell_non_finite(const NonFinite& found, std::int64_t step) {
  EventFields fields{{"step", step}, {"what", found.text()}};
  if (found.loss) {
    append_loss(fields, *found.loss);
  } else if (found.grad_norm) {
    fields.insert(fields.end(), {{"grad_norm_step", found.grad_norm->step}, {"samples", found.grad_norm->samples}});
  }
  files_.event("non_finite", fields);
}

// The changed rates are in the checkpoints.
void Anomalies::lower_rates(const Spike& why, Strategy& strategy, std::int64_t step) {
  for (std::size_t i = 0; i < strategy.optimizer_count(); ++i) {
    strategy.optimizer(i).change_lr([this](double lr) { return lr * config_.spike.lr_factor; });
  }
  const double lr = strategy.optimizer().lr();
  EventFields fields{{"step", step}, {"factor", config_.spike.lr_factor}, {"lr", lr}};
  if (why.step >= 0) {
    fields.emplace_back("spike_step", why.step);
  }
  append_place(fields, why.rank, fmt::format("{}", fmt::join(why.ids, " ")));
  files_.event("lower_lr", fields);
  warn_on_main(world_, fmt::format("step {}: the learning rate is {:.3g} now", step, lr));
}

bool Anomalies::act_on(const NonFinite& found, const RunSnapshot::Parts& run, std::int64_t step) {
  const bool looks_at_data = config_.data.check_finite;
  if (config_.optim.non_finite != NonFinitePolicy::warn || !told_non_finite_) {
    tell_non_finite(found, step);
  }
  switch (config_.optim.non_finite) {
    case NonFinitePolicy::rollback:
      roll_back(found.text(), found.loss ? std::optional(found.loss->rank) : std::nullopt, run, step);
      return true;
    case NonFinitePolicy::warn:
      if (!std::exchange(told_non_finite_, true)) {
        warn_on_main(world_, fmt::format("{}{}", found.text(),
                                         looks_at_data ? "" : "; --data.check_finite looks for it in the data"));
      }
      break;
    case NonFinitePolicy::stop:
    case NonFinitePolicy::skip:
      throw Error(found.text(),
                  fmt::format("look at the data of that step{}, the learning rate and --optim.max_grad_norm; "
                              "--optim.non_finite skip skips steps with such a loss or gradients, --optim.non_finite "
                              "warn continues despite it",
                              looks_at_data ? "" : " (--data.check_finite finds NaN and infinity in it)"),
                  ExitCode::bad_data);
  }
  return false;
}

bool Anomalies::act_on(const Spike& spike, const RunSnapshot::Parts& run, std::int64_t step) {
  tell_spike(spike, /*skipped=*/false);
  switch (config_.spike.policy) {
    case SpikePolicy::warn:
      warn_on_main(world_, spike.text());
      break;
    case SpikePolicy::skip:  // decided before the update: tell_skipped()
      break;
    case SpikePolicy::lower_lr:
      spikes_.request_lr_reduction(spike);
      warn_on_main(world_, spike.text());
      break;
    case SpikePolicy::rollback:
      roll_back(spike.text(), spike.rank, run, step);
      return true;
    case SpikePolicy::stop:
      throw Error(spike.text(),
                  "look at the data of that step, the learning rate and --optim.max_grad_norm; --spike.policy warn "
                  "continues, --spike.policy rollback leaves those steps out",
                  ExitCode::bad_data);
  }
  return false;
}

// Only the weights and what belongs to them go back: the steps are counted, and their samples are not used again.
void Anomalies::roll_back(const std::string& why, std::optional<int> rank, const RunSnapshot::Parts& run,
                          std::int64_t step) {
  constexpr int kMost = 3;  // with the same weights and other samples each time
  const std::int64_t to = snapshot_.step().value();
  if (++rollbacks_in_a_row_ > kMost) {
    throw Error(fmt::format("{}; {} rollbacks to step {} in a row did not help", why, kMost, to),
                "look at the learning rate and the model; the last checkpoint is from before", ExitCode::bad_data);
  }
  snapshot_.restore(run);
  rolled_back_at_ = step;
  parameters_finite_ = true;
  std::vector<std::string> left_out = world_.gather(fmt::format("{}", fmt::join(to_leave_out_, " ")));
  std::erase(left_out, "");
  to_leave_out_.clear();
  EventFields fields{{"step", step}, {"to", to}, {"why", why}};
  append_place(fields, rank, join(left_out, " "));
  files_.event("rollback", fields);
  warn_on_main(
      world_, fmt::format("{}: the weights are those of step {} again; the samples of steps {} to {} are left out", why,
                          to, to, step - 1));
}

bool Anomalies::can_roll_back() const noexcept {
  return config_.optim.non_finite == NonFinitePolicy::rollback ||
         (config_.spike.z_score > 0 && config_.spike.policy == SpikePolicy::rollback);
}

void Anomalies::take_snapshot(const RunSnapshot::Parts& run, std::int64_t step) {
  if (can_roll_back()) {
    snapshot_.take(run, step);
    to_leave_out_.clear();
  }
}

}  // namespace lockstep
