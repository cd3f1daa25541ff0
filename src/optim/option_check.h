// Checks of the options of an optimizer.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>

namespace lockstep {

/// Collects the problems of an optimizer's options. Each check returns this object, for the next one.
class OptionCheck {
 public:
  explicit OptionCheck(std::string optimizer) : optimizer_(std::move(optimizer)) {}

  OptionCheck& expect(const char* name, double value, bool good, const char* range) {
    if (!good) {
      problems_.push_back({.what = fmt::format("{}: {} is {}, expected {}", optimizer_, name, value, range)});
    }
    return *this;
  }
  template <class Options>
  OptionCheck& expect_rates(const Options& options) {
    expect("lr", options.lr, options.lr >= 0, "0 or more");
    if constexpr (requires { options.weight_decay; }) {
      expect("weight_decay", options.weight_decay, options.weight_decay >= 0, "0 or more");
    }
    if constexpr (requires { options.eps; }) {
      expect("eps", options.eps, options.eps >= 0, "0 or more");
    }
    return *this;
  }
  template <class Options>
  OptionCheck& expect_betas(const Options& options) {
    return expect_share("beta1", options.beta1).expect_share("beta2", options.beta2);
  }
  OptionCheck& expect_share(const char* name, double value) {
    return expect(name, value, value >= 0 && value < 1, "0 or more and less than 1");
  }
  void throw_problems() {
    if (!problems_.empty()) {
      throw ConfigError(std::move(problems_));
    }
  }

 private:
  std::string optimizer_;
  std::vector<Problem> problems_{};
};

}  // namespace lockstep
