#include "world/turns.h"

#include <chrono>
#include <exception>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/text.h"
#include "failure/deadlines.h"
#include "failure/linger.h"
#include "world/operation_notes.h"
#include "world/remote_error.h"
#include "world/text_store.h"

namespace lockstep {
namespace {

std::string turn_key(const Turn& turn, std::string_view name) { return fmt::format("turn/{}/{}", turn.number, name); }

std::string outcome_of(const Turn& turn, const std::string& name) {
  const std::string key = turn_key(turn, name);
  while (!store_wait(turn.store, key, std::chrono::hours(24))) {
  }
  return store_get(turn.store, key);
}

// A rank that failed waits for nobody else: the others may still work, or have ended because of it.
void let_others_read(const Turn& turn) noexcept {
  std::vector<std::string> keys;
  for (int rank = 0; rank < turn.size; ++rank) {
    keys.push_back(turn_key(turn, std::to_string(rank)));
  }
  if (turn.rank == 0) {
    linger(deadlines::kLinger, [&] { return turn.store.check(keys); });
  }
}

}  // namespace

void take_turn(const Turn& turn, std::string_view what, ProgressRecord& progress, const std::function<void()>& work) {
  // The first failure is what every rank hears of, after the number of its rank; nobody works after it.
  const std::string kOk = "ok";
  const std::string kAll = "all";
  progress.begin(Operation::turn, 0);
  write_operation_note(turn.store, turn.rank, turn.number, what);
  std::string outcome = turn.after ? outcome_of(turn, std::to_string(*turn.after)) : kOk;
  const bool may_work = outcome == kOk;
  std::exception_ptr mine;
  if (may_work) {
    progress.end();  // its own turn: what it does now is no collective
    try {
      work();
    } catch (...) {
      mine = std::current_exception();
      outcome = fmt::format("{} {}", turn.rank, encode_current_error());
    }
    progress.begin(Operation::turn, 0);
  }
  store_set(turn.store, turn_key(turn, std::to_string(turn.rank)), outcome);
  if (mine) {
    let_others_read(turn);
    progress.end();
    std::rethrow_exception(mine);
  }
  if (turn.rank == 0) {
    for (int rank = 1; rank < turn.size; ++rank) {
      if (const std::string theirs = outcome_of(turn, std::to_string(rank)); outcome == kOk) {
        outcome = theirs;
      }
    }
    store_set(turn.store, turn_key(turn, kAll), outcome);
  } else if (may_work) {
    outcome = outcome_of(turn, kAll);
  }
  progress.end();
  if (outcome != kOk) {
    const auto space = outcome.find(' ');
    throw_remote_error(std::string_view(outcome).substr(space + 1), what,
                       static_cast<int>(parse_int(std::string_view(outcome).substr(0, space)).value_or(0)));
  }
}

}  // namespace lockstep
