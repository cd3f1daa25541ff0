#include "plan/rank_shares.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/ceil_div.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostRows = 64;

}  // namespace

std::string device_text(const LocalDevice& device) {
  return device.id.gpu ? fmt::format("{} {}", to_string(device.id), device.name) : to_string(device.id);
}

std::vector<RankShare> rank_shares(const Plan& plan) {
  std::vector<RankShare> shares;
  for (int node = 0; node < plan.nodes; ++node) {
    const auto ranks = static_cast<int>(share_of(plan.world_size, plan.nodes, node));
    if (ranks > plan.local_world_size() || (node == 0 && ranks < plan.local_world_size())) {
      return {};
    }
    for (int local = 0; local < ranks; ++local) {
      const int rank = static_cast<int>(shares.size());
      shares.push_back({.rank = rank,
                        .node = node,
                        .local_rank = local,
                        .device = plan.local_devices[static_cast<std::size_t>(local)],
                        .samples = share_of(plan.loader.batch.global_batch_size, plan.world_size, rank)});
    }
  }
  return shares;
}

std::string dry_run_text(const Plan& plan, const std::optional<Identity>& identity) {
  std::string text = describe(plan);
  if (!starts_ranks(identity) || plan.world_size == 1) {
    return text;
  }
  const std::vector<RankShare> shares = rank_shares(plan);
  if (shares.empty()) {
    return text;
  }
  constexpr std::string_view kDevice = "device";
  std::size_t widest = kDevice.size();
  for (const RankShare& share : shares) {
    widest = std::max(widest, device_text(share.device).size());
  }
  text += fmt::format("\n{:<6}{:<6}{:<12}{:<{}}  samples per step\n", "rank", "node", "local rank", kDevice, widest);
  for (const RankShare& share : shares) {
    if (static_cast<std::size_t>(share.rank) == kMostRows) {
      return text + fmt::format("... and {} more ranks\n", shares.size() - kMostRows);
    }
    text += fmt::format("{:<6}{:<6}{:<12}{:<{}}  {}\n", share.rank, share.node, share.local_rank,
                        device_text(share.device), widest, share.samples);
  }
  return text;
}

}  // namespace lockstep
