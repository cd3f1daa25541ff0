#include "world/operation_notes.h"

#include <algorithm>
#include <exception>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/mapped.h"
#include "base/text.h"
#include "failure/deadlines.h"
#include "world/text_store.h"

namespace lockstep {
namespace {

std::string note_key(int rank) { return fmt::format("at/{}", rank); }

/// The note of each rank; "": it has written none. Usually all have written one, and then one question to the store is
/// enough. That matters, because every rank that waits asks.
std::vector<std::string> read_notes(c10d::Store& store, int size) {
  std::vector<std::string> keys;
  for (int rank = 0; rank < size; ++rank) {
    keys.push_back(note_key(rank));
  }
  if (const auto notes = store_get_all(store, keys)) {
    return *notes;
  }
  return mapped(
      keys, [&](const std::string& key) { return store_check(store, key) ? store_get(store, key) : std::string(); });
}

std::string ranks_with_older_notes(c10d::Store& store, int size, std::int64_t number) {
  std::vector<std::string> missing;
  const std::vector<std::string> notes = read_notes(store, size);
  for (int rank = 0; rank < size; ++rank) {
    const std::string& note = notes[static_cast<std::size_t>(rank)];
    const auto space = std::min(note.find(' '), note.size());
    if (parse_int(std::string_view(note).substr(0, space)).value_or(0) < number) {
      missing.push_back(note.empty() ? std::to_string(rank)
                                     : fmt::format("{} (last seen at '{}')", rank, note.substr(space + 1)));
    }
  }
  return join(missing, ", ");
}

}  // namespace

void write_operation_note(c10d::Store& store, int rank, std::int64_t number, std::string_view what) {
  store_set(store, note_key(rank), fmt::format("{} {}", number, what));
}

// The store's host may be unreachable. Then the thread that waits for it is abandoned: it cannot be interrupted, and
// this rank is about to end.
std::string missing_ranks(const c10::intrusive_ptr<c10d::Store>& store, int size, std::int64_t number) {
  try {
    std::packaged_task<std::string()> question([=] { return ranks_with_older_notes(*store, size, number); });
    auto answer = question.get_future();
    std::thread(std::move(question)).detach();
    return answer.wait_for(deadlines::kMissingRanks) == std::future_status::ready
               ? answer.get()
               : "unknown, the rendezvous store does not answer";
  } catch (const std::exception&) {
    return "unknown, the rendezvous store is gone as well";
  }
}

}  // namespace lockstep
