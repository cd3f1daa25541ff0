// Sweeps over many moments, ranks or bytes: number of points, seed and result.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

namespace lockstep {

/// Number of points of a sweep: `everyday`, or `nightly` under the preset nightly (LOCKSTEP_TEST_ROUNDS=100);
/// proportional for other values of the variable.
inline int rounds(int everyday, int nightly = 100) {
  const char* text = std::getenv("LOCKSTEP_TEST_ROUNDS");
  const int percent = text != nullptr ? std::atoi(text) : 0;
  return percent > 0 ? std::max(everyday, nightly * percent / 100) : everyday;
}

/// Counts points and losses and prints both at the end. The random numbers of a sweep come from a seed that is printed;
/// LOCKSTEP_TEST_SEED repeats a sweep.
class Sweep {
 public:
  explicit Sweep(std::string name) : name_(std::move(name)) {
    const char* given = std::getenv("LOCKSTEP_TEST_SEED");
    seed_ = given != nullptr ? static_cast<std::uint32_t>(std::strtoul(given, nullptr, 10)) : std::random_device()();
    random_.seed(seed_);
  }
  ~Sweep() { std::printf("%s: %d points, %d lost (seed %u)\n", name_.c_str(), points_, lost_, seed_); }
  Sweep(const Sweep&) = delete;
  Sweep& operator=(const Sweep&) = delete;

  int between(int first, int last) { return std::uniform_int_distribution(first, last)(random_); }
  void count(bool kept) {
    ++points_;
    lost_ += kept ? 0 : 1;
  }
  int points() const noexcept { return points_; }
  int lost() const noexcept { return lost_; }

 private:
  std::string name_;
  std::uint32_t seed_ = 0;
  std::mt19937 random_;
  int points_ = 0;
  int lost_ = 0;
};

}  // namespace lockstep
