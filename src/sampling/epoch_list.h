// An order that is a list; the list of the last key is cached.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace lockstep {

/// Caches the last list and its key. Thread-safe.
template <class Key>
class EpochList {
 public:
  /// Copies elements of the list of `key`, from `first` on. Calls make() unless the cached list has this key.
  template <class Make>
  void copy(const Key& key, const Make& make, std::int64_t first, std::span<std::int64_t> elements) {
    const std::lock_guard lock(mutex_);
    if (!key_ || *key_ != key) {
      key_.reset();
      list_ = make();
      key_ = key;
    }
    std::copy_n(list_.begin() + static_cast<std::ptrdiff_t>(first), elements.size(), elements.begin());
  }

 private:
  std::mutex mutex_;
  std::optional<Key> key_{};
  std::vector<std::int64_t> list_{};
};

}  // namespace lockstep
