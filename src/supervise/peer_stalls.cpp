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

PeerStalls::PeerStalls(int rank, int size, const ProgressBoard& board, int index)
    : rank_(rank), size_(size), board_(board), index_(index) {}

std::string PeerStalls::about() const { return fmt::format("{} {}", board_.fd(), index_); }

void PeerStalls::add(const StoreLink::Peer& peer) {
  peers_.emplace(peer.rank, Peer{.process = peer.process, .about = peer.about});
}

bool PeerStalls::is_first_that_runs() const {
  return std::all_of(peers_.begin(), peers_.lower_bound(rank_), [](const auto& lower) {
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

StallFinder::Finding PeerStalls::look(Time now) {
  if (static_cast<int>(peers_.size()) + 1 < size_ || now < look_at_) {
    return {};
  }
  look_at_ = now + StallWatch::kPeriod;
  if (!is_first_that_runs() ||
      !std::all_of(peers_.begin(), peers_.end(), [](auto& peer) { return open(peer.second); })) {
    watch_.reset();
    return {};
  }
  std::vector<RankSample> samples;
  for (const auto& [rank, peer] : peers_) {
    samples.push_back(sample_of((*peer.board)[peer.index], peer.process.pid));
  }
  const ProgressRecord& own = board_[index_];
  samples.insert(samples.begin() + rank_, sample_of(own, getpid()));
  if (!watch_) {
    watch_.emplace(StallLimits{}, size_, size_);
  }
  watch_->set_limits(own.stall_warning_ms.load(std::memory_order_relaxed),
                     own.stall_deadline_ms.load(std::memory_order_relaxed));
  Finding found;
  for (const StallFinding& stall : watch_->observe(samples, now)) {
    found.text += (found.text.empty() ? "" : "\n") + join(stall.lines, "\n") +
                  (stall.hint.empty() || stall.ends_the_run ? "" : "\n  hint: " + stall.hint);
    if (stall.ends_the_run) {
      const int rank = stall.ranks.front();
      const auto peer = peers_.find(rank);
      found.failure = Failure{.rank = rank,
                              .code = static_cast<int>(ExitCode::timeout),
                              .text = peer == peers_.end() ? stall.what
                                                           : fmt::format("rank {} ({}) failed: {}", rank,
                                                                         to_string(peer->second.process), stall.what)};
    }
  }
  return found;
}

}  // namespace lockstep
