// An order that is a list made once, for as long as the same one is asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep {

/// Keeps the last list and what it was made for. Thread-safe.
template <class Key>
class EpochList {
 public:
  /// Calls use(list) with the list of `key`, made by make() unless it is the last one.
  template <class Make, class Use>
  void with(const Key& key, const Make& make, const Use& use) {
    const std::lock_guard lock(mutex_);
    if (!key_ || *key_ != key) {
      key_.reset();
      list_ = make();
      key_ = key;
    }
    use(std::as_const(list_));
  }

 private:
  std::mutex mutex_;
  std::optional<Key> key_{};
  std::vector<std::int64_t> list_{};
};

}  // namespace lockstep
