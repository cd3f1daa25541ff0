// A value that is put back.
#pragma once

#include <utility>

namespace lockstep {

/// `place` has `value` while this object lives, and then what it had before.
template <class T>
class TemporaryValue {
 public:
  TemporaryValue(T& place, T value) : place_(place), before_(std::exchange(place, std::move(value))) {}
  ~TemporaryValue() { place_ = std::move(before_); }
  TemporaryValue(const TemporaryValue&) = delete;
  TemporaryValue& operator=(const TemporaryValue&) = delete;

  const T& before() const noexcept { return before_; }

 private:
  T& place_;
  T before_;
};

}  // namespace lockstep
