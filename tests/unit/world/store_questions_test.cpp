// How much the ranks ask the rendezvous store, and exchange: not more for each rank if there are more ranks.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <lockstep/base/error.h>
#include <lockstep/environment/identity.h>
#include <lockstep/trainer/callback.h>
#include <lockstep/world/world.h>

#include "checkpoint/main_rank.h"
#include "trainer/callbacks/callback_list.h"
#include "trainer/callbacks/function_callback.h"
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
  /// What the rank noted of its collectives, in order: "number what".
  const std::vector<std::string>& notes() const noexcept { return notes_; }

  c10::intrusive_ptr<Store> clone() override { return shared_->clone(); }
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    ++questions_;
    if (key.starts_with("at/")) {
      notes_.emplace_back(value.begin(), value.end());
    }
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
  std::vector<std::string> notes_{};
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

// A gather takes something from each rank to each. Here one rank has something to say, mostly rank 0.
TEST(Exchanges, OfWhatRank0DidAreNoGathers) {
  constexpr int kRanks = 3;
  for (const int writer : {0, 2}) {
    questions_of(kRanks, [&](int rank, const c10::intrusive_ptr<CountingStore>& store) {
      World world = WorldAccess::make(store, {.rank = rank, .size = kRanks, .local_rank = rank, .local_size = kRanks},
                                      c10::Device(c10::kCPU), Backend::gloo, kPatience);
      std::vector<std::string> expected(kRanks);
      expected[static_cast<std::size_t>(writer)] = "done";
      EXPECT_EQ(run_on(world, "work", rank == writer, [] { return std::string("done"); }), expected);
      EXPECT_EQ(std::ranges::any_of(store->notes(), [](const auto& note) { return note.ends_with(" gather"); }),
                writer != 0);
      EXPECT_THROW(run_on(world, "work", rank == writer, []() -> std::string { throw CheckpointError("damaged"); }),
                   CheckpointError);
      return 0;
    });
  }
}

TEST(Exchanges, OfTheStagesOfCallbacksAreNoGathers) {
  constexpr int kRanks = 3;
  questions_of(kRanks, [&](int rank, const c10::intrusive_ptr<CountingStore>& store) {
    World world = WorldAccess::make(store, {.rank = rank, .size = kRanks, .local_rank = rank, .local_size = kRanks},
                                    c10::Device(c10::kCPU), Backend::gloo, kPatience);
    CallbackList callbacks;
    callbacks.begin(world);
    EXPECT_FALSE(callbacks.has_any());
    if (rank == 2) {
      callbacks.add(std::make_shared<FunctionCallback>(
          "mine", static_cast<std::uint32_t>(Stage::epoch_end), [](const StageContext&) {}, OnOptions()));
    }
    callbacks.begin(world);
    EXPECT_TRUE(callbacks.has_any());
    EXPECT_TRUE(callbacks.acts_at(Stage::epoch_end));
    EXPECT_FALSE(callbacks.acts_at(Stage::step_end));
    EXPECT_FALSE(store->notes().empty());
    EXPECT_FALSE(std::ranges::any_of(store->notes(), [](const auto& note) { return note.ends_with(" gather"); }));
    return 0;
  });
}

}  // namespace
}  // namespace lockstep
