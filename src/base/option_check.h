// Checks of the options that a program gives to a part of the library. Torch-free.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/problems.h"

namespace lockstep {

/// Collects the problems of some options, to report all of them. Each check returns this object, for the next one.
class OptionCheck {
 public:
  /// `subject`: whose options they are; each problem begins with it.
  explicit OptionCheck(std::string subject) : subject_(std::move(subject)) {}

  /// Unless `good`: "muon: lr is -1, expected 0 or more".
  template <class Value>
  OptionCheck& expect(std::string_view name, const Value& value, bool good, std::string_view range) {
    return refuse_if(!good, fmt::format("{} is {}, expected {}", name, value, range));
  }
  OptionCheck& expect_share(std::string_view name, double value) {
    return expect(name, value, value >= 0 && value < 1, "0 or more and less than 1");
  }
  OptionCheck& refuse_if(bool bad, std::string_view what, std::string hint = {}) {
    if (bad) {
      problems_.push_back({.what = fmt::format("{}: {}", subject_, what), .hint = std::move(hint)});
    }
    return *this;
  }
  void throw_problems() {  ///< Throws: ConfigError, if there are any.
    throw_if_any(std::move(problems_));
  }

 private:
  std::string subject_;
  std::vector<Problem> problems_{};
};

}  // namespace lockstep
