// An order that is a list; the list of the last key is cached.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace lockstep {

/// Caches the last list and its key. Thread-safe.
template <class Key>
class EpochList {
 public:
  /// Calls use(list) with the list of `key`; calls make() unless the cached list has this key.
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
