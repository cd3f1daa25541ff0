#include "parallel/sync_statistics.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include <lockstep/base/error.h>

#include "base/text.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

// A message: the number of ranks that call a module, the sum of their keys and of the squares of these (the keys are
// equal if ranks x sum of squares = square of the sum), the count, and two numbers per channel.
enum Slot : std::int64_t { kRanks, kKeys, kSquares, kCount, kValues };

constexpr std::size_t kPasses = 2;

}  // namespace

std::shared_ptr<SyncStatistics> SyncStatistics::make(const torch::nn::Module& module, World& world) {
  std::vector<std::string> names;
  std::vector<SyncBatchNormImpl*> modules;
  for (const auto& part : module.named_modules({}, /*include_self=*/false)) {
    if (auto* norm = part.value()->as<SyncBatchNormImpl>()) {
      names.push_back(part.key());
      modules.push_back(norm);
    }
  }
  if (modules.empty()) {
    return nullptr;
  }
  std::shared_ptr<SyncStatistics> made(
      new SyncStatistics(std::move(names), std::move(modules), WorldAccess::second(world, "sync batch norm")));
  for (std::size_t i = 0; i < made->modules_.size(); ++i) {
    made->modules_[i]->statistics_ = made;
    made->modules_[i]->index_ = i;
  }
  return made;
}

SyncStatistics::SyncStatistics(std::vector<std::string> names, std::vector<SyncBatchNormImpl*> modules, World world)
    : names_(std::move(names)), modules_(std::move(modules)), world_(std::move(world)) {
  std::int64_t channels = 0;
  for (const SyncBatchNormImpl* module : modules_) {
    channels = std::max(channels, module->options.num_features());
  }
  padding_ = at::zeros({kValues + 2 * channels}, at::device(world_.device()).dtype(at::kDouble));
  for (std::size_t key = 1; key <= kPasses * modules_.size(); ++key) {
    const auto number = static_cast<double>(key);
    headers_.push_back(at::tensor({1.0, number, number * number}, at::kDouble).to(world_.device()));
  }
}

ChannelSums SyncStatistics::add_up(Pass pass, std::size_t module, const ChannelSums& mine) {
  const std::size_t key = kPasses * module + (pass == Pass::forward ? 0 : 1);
  const std::int64_t channels = mine.first.size(0);
  const std::int64_t used = kValues + 2 * channels;
  const at::Tensor sums = send(at::cat({headers_[key], mine.count.view({1}), mine.first, mine.second,
                                        padding_.narrow(0, used, padding_.size(0) - used)}));
  if (sums.is_cpu()) {
    const double* sum = sums.const_data_ptr<double>();
    if (sum[kRanks] * sum[kSquares] != sum[kKeys] * sum[kKeys]) {
      throw_other_order(fmt::format("the {} of {}", pass == Pass::forward ? "forward" : "backward", names_[module]));
    }
  }
  return {sums.select(0, kCount), sums.narrow(0, kValues, channels), sums.narrow(0, kValues + channels, channels)};
}

void SyncStatistics::end_pass() {
  const at::Tensor sums = send(padding_.clone());
  if (sums.is_cpu() && *sums.const_data_ptr<double>() != 0) {
    throw_other_order("no further batch norm");
  }
}

void SyncStatistics::take_part() {
  for (;;) {
    const at::Tensor sums = send(padding_.clone());
    const at::Tensor header = WorldAccess::on_host(world_, sums.narrow(0, 0, kValues));
    const double* sum = header.const_data_ptr<double>();
    if (sum[kRanks] == 0) {
      return;
    }
    const auto key = static_cast<std::size_t>(sum[kKeys] / sum[kRanks]) - 1;
    if (key % kPasses == 0) {
      SyncBatchNormImpl& module = *modules_.at(key / kPasses);
      const std::int64_t channels = module.options.num_features();
      module.track(
          {sums.select(0, kCount), sums.narrow(0, kValues, channels), sums.narrow(0, kValues + channels, channels)});
    }
  }
}

at::Tensor SyncStatistics::send(at::Tensor message) {
  world_.all_reduce(message, Reduce::sum);
  return message;
}

void SyncStatistics::throw_other_order(const std::string& mine) const {
  throw CommError(
      fmt::format("sync batch norm: rank {} runs {}, another rank runs something else", world_.rank(), mine),
      "every rank with samples has to call the same modules in the same order, with one backward per forward",
      ExitCode::disagree);
}

void refuse_plain_batch_norm(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& part : module.named_modules({}, /*include_self=*/false)) {
    const torch::nn::Module& found = *part.value();
    if (found.as<torch::nn::BatchNorm1dImpl>() != nullptr || found.as<torch::nn::BatchNorm2dImpl>() != nullptr ||
        found.as<torch::nn::BatchNorm3dImpl>() != nullptr) {
      names.push_back(part.key());
    }
  }
  if (!names.empty()) {
    throw ConfigError(
        fmt::format("--dist.require_sync_batch_norm true: these modules are batch norm of torch::nn, whose "
                    "statistics are those of one rank: {}",
                    join(names, ", ")),
        "declare them as lockstep::SyncBatchNorm, which has the same options and parameters");
  }
}

}  // namespace lockstep
