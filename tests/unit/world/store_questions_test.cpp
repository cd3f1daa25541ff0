// How much the ranks ask the rendezvous store: not more for each rank if there are more ranks.
#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <lockstep/environment/identity.h>
#include <lockstep/world/world.h>

#include "world/rendezvous.h"
#include "world/world_access.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr std::chrono::seconds kPatience{60};

/// One rank's connection to a store that all ranks share.
class CountingStore final : public c10d::Store {
 public:
  explicit CountingStore(c10::intrusive_ptr<c10d::Store> shared) : shared_(std::move(shared)) {}

  /// Without those that found nothing yet: they only show how long a rank waited.
  int questions() const noexcept { return questions_; }

  c10::intrusive_ptr<Store> clone() override { return shared_->clone(); }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    ++questions_;
    shared_->set(key, value);
  }
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& current,
                                  const std::vector<uint8_t>& value) override {
    ++questions_;
    return shared_->compareSet(key, current, value);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    ++questions_;
    return shared_->get(key);
  }
  int64_t add(const std::string& key, int64_t value) override {
    ++questions_;
    return shared_->add(key, value);
  }
  bool deleteKey(const std::string& key) override {
    ++questions_;
    return shared_->deleteKey(key);
  }
  bool check(const std::vector<std::string>& keys) override {
    const bool found = shared_->check(keys);
    questions_ += found ? 1 : 0;
    return found;
  }
  int64_t getNumKeys() override { return shared_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    ++questions_;
    shared_->wait(keys, timeout);
  }

 private:
  c10::intrusive_ptr<c10d::Store> shared_;
  int questions_ = 0;
};

/// Questions of each rank in `work`, which gets the rank and its store, and returns how many to leave out.
std::vector<int> questions_of(int ranks,
                              const std::function<int(int, const c10::intrusive_ptr<CountingStore>&)>& work) {
  const auto shared = c10::make_intrusive<c10d::HashStore>();
  std::vector<int> questions(static_cast<std::size_t>(ranks));
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      try {
        const auto store = c10::make_intrusive<CountingStore>(shared);
        const int before = work(rank, store);
        questions[at] = store->questions() - before;
      } catch (...) {
        failures[at] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  for (const auto& failure : failures) {
    if (failure) {
      std::rethrow_exception(failure);
    }
  }
  return questions;
}

/// The main rank asks `for_each` questions more for each rank, the others always the same number.
void expect_same_for_every_size(const std::function<std::vector<int>(int)>& questions, int for_each) {
  const std::vector<int> of_two = questions(2);
  for (int ranks = 3; ranks <= 8; ++ranks) {
    const std::vector<int> found = questions(ranks);
    EXPECT_EQ(found.front(), of_two.front() + (ranks - 2) * for_each) << ranks << " ranks";
    EXPECT_EQ(*std::max_element(found.begin() + 1, found.end()), of_two.back()) << ranks << " ranks";
  }
}

TEST(StoreQuestions, OfAStartAreAsManyAsRanks) {
  expect_same_for_every_size(
      [](int ranks) {
        return questions_of(ranks, [&](int rank, const c10::intrusive_ptr<CountingStore>& store) {
          wait_for_all_ranks(store, {.rank = rank, .world_size = ranks, .run_id = "run"}, kPatience);
          return 0;
        });
      },
      /*for_each=*/1);
}

TEST(StoreQuestions, OfTakingTurnsAreAsManyAsRanks) {
  for (const auto turns : {&World::main_first, &World::one_by_one}) {
    expect_same_for_every_size(
        [&](int ranks) {
          return questions_of(ranks, [&](int rank, const c10::intrusive_ptr<CountingStore>& store) {
            World world =
                WorldAccess::make(store, {.rank = rank, .size = ranks, .local_rank = rank, .local_size = ranks},
                                  c10::Device(c10::kCPU), Backend::gloo, kPatience);
            const int before = store->questions();
            (world.*turns)("work", [] {});
            return before;
          });
        },
        /*for_each=*/2);
  }
}

}  // namespace
}  // namespace lockstep
