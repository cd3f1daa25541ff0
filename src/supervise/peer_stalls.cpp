#include "supervise/peer_stalls.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <lockstep/base/error.h>

#include "base/descriptor.h"
#include "base/text.h"
#include "supervise/process_state.h"

namespace lockstep {
namespace {

constexpr std::string_view kEnded = "?ZX";
constexpr std::string_view kCannotRun = "Tt?ZX";

bool is_one_of(std::string_view states, const ProcessState& process) {
  return states.find(process.state) != std::string_view::npos;
}

RankSample sample_of(const ProgressRecord& record, pid_t pid) {
  const ProcessState process = read_process_state(pid);
  return {.view = view(record), .process = process, .pid = pid, .running = !is_one_of(kEnded, process)};
}

}  // namespace

PeerStalls::PeerStalls(Options options, const ProgressBoard& board) : options_(options), board_(board) {}

std::string PeerStalls::about() const { return fmt::format("{} {}", board_.fd(), options_.local_rank); }

void PeerStalls::add(const StoreLink::Peer& peer) {
  peers_.emplace(peer.rank, Peer{.process = peer.process, .about = peer.about});
}

bool PeerStalls::is_first_that_runs() const {
  return std::all_of(peers_.begin(), peers_.lower_bound(options_.rank), [](const auto& lower) {
    return is_one_of(kCannotRun, read_process_state(lower.second.process.pid));
  });
}

/// False: its record cannot be seen.
bool PeerStalls::open(Peer& peer) {
  if (peer.about.empty()) {
    return peer.board.has_value();
  }
  const std::vector<std::string> numbers = split(std::exchange(peer.about, {}), ' ');
  const auto fd = parse_int(numbers.front()).value_or(-1);
  peer.index = static_cast<int>(parse_int(numbers.back()).value_or(0));
  const Descriptor file(::open(fmt::format("/proc/{}/fd/{}", peer.process.pid, fd).c_str(), O_RDWR | O_CLOEXEC));
  try {
    peer.board.emplace(file.get(), peer.index);
  } catch (const LaunchError&) {
  }
  return peer.board.has_value();
}

/// By rank. Those of other machines count as ended: nobody here knows of them.
std::vector<RankSample> PeerStalls::samples() {
  std::vector<RankSample> all(static_cast<std::size_t>(options_.size), RankSample{.running = false});
  for (const auto& [rank, peer] : peers_) {
    all[static_cast<std::size_t>(rank)] = sample_of((*peer.board)[peer.index], peer.process.pid);
  }
  all[static_cast<std::size_t>(options_.rank)] = sample_of(board_[options_.local_rank], getpid());
  return all;
}

StallFinder::Finding PeerStalls::look(Time now) {
  const auto here = peers_.size() + 1;
  if (here < static_cast<std::size_t>(options_.local_size) || now < look_at_) {
    return {};
  }
  look_at_ = now + StallWatch::kPeriod;
  if (!is_first_that_runs() || !std::ranges::all_of(peers_, [](auto& peer) { return open(peer.second); })) {
    watch_.reset();
    return {};
  }
  const std::vector<RankSample> all = samples();
  if (!watch_) {
    watch_.emplace(StallLimits{}, options_.size, /*sees_all=*/here == all.size());
  }
  watch_->take_limits(board_[options_.local_rank]);
  Finding found;
  for (const StallFinding& stall : watch_->observe(all, now)) {
    const bool may_be_elsewhere = here < all.size() && (stall.ranks.empty() || stall.ranks.size() == here) &&
                                  std::ranges::all_of(stall.ranks, [&](int rank) {
                                    return all[static_cast<std::size_t>(rank)].view.operation != Operation::none;
                                  });
    if (may_be_elsewhere) {
      continue;
    }
    found.text += (found.text.empty() ? "" : "\n") + join(stall.lines, "\n") +
                  (stall.hint.empty() || stall.ends_the_run ? "" : "\n  hint: " + stall.hint);
    if (stall.ends_the_run) {
      const int rank = stall.ranks.front();
      const auto peer = peers_.find(rank);
      const std::string who = peer == peers_.end()
                                  ? std::string()  // this rank, which the others name
                                  : fmt::format("rank {} ({}) failed: ", rank, to_string(peer->second.process));
      found.failure = Failure{.rank = rank, .code = static_cast<int>(ExitCode::timeout), .text = who + stall.what};
    }
  }
  return found;
}

}  // namespace lockstep
