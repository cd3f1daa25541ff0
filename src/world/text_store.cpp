#include "world/text_store.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <c10/util/Exception.h>

#include <lockstep/base/error.h>

namespace lockstep {
namespace {

using std::chrono::milliseconds;

/// A connection that breaks during a request means a lost peer.
template <class Question>
auto ask(Question&& question) {
  try {
    return question();
  } catch (const c10::DistNetworkError& error) {
    throw CommError(fmt::format("the rendezvous store is gone: {}", error.what_without_backtrace()),
                    "rank 0 or the launcher that serves the store has ended, or the connection was interrupted");
  }
}

class TextStore final : public Store {
 public:
  TextStore(c10::intrusive_ptr<c10d::Store> store, c10::intrusive_ptr<c10d::Store> world)
      : world_(std::move(world)), store_(std::move(store)) {}
  void set(std::string_view key, std::string_view value) override { store_set(*store_, std::string(key), value); }
  std::string get(std::string_view key, milliseconds timeout) override {
    if (!store_wait(*store_, std::string(key), timeout)) {
      throw CommError(fmt::format("no value for '{}' after {} ms", key, timeout.count()), {}, ExitCode::timeout);
    }
    return store_get(*store_, std::string(key));
  }
  bool check(std::string_view key) override { return store_check(*store_, std::string(key)); }
  std::int64_t add(std::string_view key, std::int64_t delta) override {
    return store_add(*store_, std::string(key), delta);
  }

 private:
  c10::intrusive_ptr<c10d::Store> world_;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace

void store_set(c10d::Store& store, const std::string& key, std::string_view value) {
  ask([&] { store.set(key, std::vector<std::uint8_t>(value.begin(), value.end())); });
}

void store_set_if_absent(c10d::Store& store, const std::string& key, std::string_view value) {
  ask([&] { store.compareSet(key, {}, std::vector<std::uint8_t>(value.begin(), value.end())); });
}

std::string store_get(c10d::Store& store, const std::string& key) {
  const auto bytes = ask([&] { return store.get(key); });
  return {bytes.begin(), bytes.end()};
}

bool store_check(c10d::Store& store, const std::string& key) {
  return ask([&] { return store.check({key}); });
}

std::optional<std::vector<std::string>> store_get_all(c10d::Store& store, const std::vector<std::string>& keys) {
  if (!store.hasExtendedApi() || !ask([&] { return store.check(keys); })) {
    return std::nullopt;
  }
  std::vector<std::string> values;
  for (const auto& bytes : ask([&] { return store.multiGet(keys); })) {
    values.emplace_back(bytes.begin(), bytes.end());
  }
  return values;
}

std::int64_t store_add(c10d::Store& store, const std::string& key, std::int64_t delta) {
  return ask([&] { return store.add(key, delta); });
}

bool store_wait(c10d::Store& store, const std::string& key, milliseconds timeout) {
  try {
    ask([&] { store.wait({key}, timeout); });
    return true;
  } catch (const c10::DistStoreError&) {
    return false;
  }
}

bool store_poll(c10d::Store& store, const std::string& key, milliseconds timeout,
                const std::function<void()>& meanwhile) {
  constexpr milliseconds kLongestPause{50};
  const auto start = std::chrono::steady_clock::now();
  for (milliseconds pause{1}; !store_check(store, key); pause = std::min(2 * pause, kLongestPause)) {
    if (std::chrono::steady_clock::now() - start >= timeout) {
      return false;
    }
    if (meanwhile) {
      meanwhile();
    }
    std::this_thread::sleep_for(pause);
  }
  return true;
}

std::unique_ptr<Store> make_text_store(c10::intrusive_ptr<c10d::Store> store, c10::intrusive_ptr<c10d::Store> world) {
  return std::make_unique<TextStore>(std::move(store), std::move(world));
}

}  // namespace lockstep
