#include "world/operation_notes.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace lockstep {
namespace {

/// Counts what missing_ranks asks it.
class CountingStore final : public c10d::HashStore {
 public:
  std::vector<uint8_t> get(const std::string& key) override {
    ++questions;
    return HashStore::get(key);
  }
  bool check(const std::vector<std::string>& keys) override {
    ++questions;
    return HashStore::check(keys);
  }
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override {
    ++questions;
    return HashStore::multiGet(keys);
  }
  int questions = 0;
};

TEST(OperationNotes, NameTheRanksThatAreBehind) {
  const auto store = c10::make_intrusive<CountingStore>();
  const auto prefixed = c10::make_intrusive<c10d::PrefixStore>("run", store);
  constexpr int kRanks = 50;
  for (int rank = 0; rank < kRanks; ++rank) {
    write_operation_note(*prefixed, rank, rank == 7 ? 41 : 42, rank == 7 ? "the metrics" : "end of step");
  }
  store->questions = 0;
  EXPECT_EQ(missing_ranks(prefixed, kRanks, 42), "7 (last seen at 'the metrics')");
  EXPECT_LT(store->questions, kRanks);
  EXPECT_EQ(missing_ranks(prefixed, kRanks, 41), "");
}

TEST(OperationNotes, NameTheRanksThatHaveWrittenNone) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  write_operation_note(*store, 0, 1, "the first");
  write_operation_note(*store, 2, 1, "the first");
  EXPECT_EQ(missing_ranks(store, 4, 1), "1, 3");
}

}  // namespace
}  // namespace lockstep
