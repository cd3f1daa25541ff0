// lockstep/base/store.h
//
// Small named values that all ranks share. Torch-free.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace [[gnu::visibility("default")]] lockstep {

/// Small named values shared by all ranks (the rendezvous store). Each object has a connection of its own, so that a
/// wait in one thread does not hold up another. Thread-safe. Throws: CommError when it is lost.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(std::string_view key, std::string_view value) = 0;  ///< replaces an earlier value
  /// Waits for the key. Throws: CommError (exit 124) after `timeout`.
  virtual std::string get(std::string_view key, std::chrono::milliseconds timeout) = 0;
  virtual bool check(std::string_view key) = 0;  ///< whether the key has a value; does not wait
  /// Adds to a number, 0 without an earlier value, and returns the new one. Use such a key with add() only.
  virtual std::int64_t add(std::string_view key, std::int64_t delta) = 0;
};

}  // namespace lockstep
