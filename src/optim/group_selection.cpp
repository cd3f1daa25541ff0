// Which parameters the groups of an optimizer select.
#include <cmath>
#include <regex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/optim/optimizers.h>

#include "base/option_check.h"
#include "base/text.h"

namespace lockstep {
namespace {

/// `*` stands for any characters, `?` for one.
bool matches(std::string_view pattern, std::string_view text) {
  std::size_t p = 0;
  std::size_t t = 0;
  std::size_t star = std::string_view::npos;
  std::size_t after_star = 0;  // in the text: where the last star may end
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t]) && pattern[p] != '*') {
      ++p;
      ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      after_star = t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++after_star;
    } else {
      return false;
    }
  }
  return pattern.substr(p).find_first_not_of('*') == std::string_view::npos;
}

}  // namespace

ParameterFilter named(std::string pattern) {
  return [pattern = std::move(pattern)](std::string_view name, const at::Tensor&) { return matches(pattern, name); };
}

ParameterFilter matching(const std::string& expression) {
  std::regex regex;
  try {
    regex.assign(expression);
  } catch (const std::regex_error& error) {
    throw ConfigError(fmt::format("matching(): '{}' is no regular expression: {}", printable(expression), error.what()),
                      "use the syntax of ECMAScript, or named() with * and ?");
  }
  return [regex = std::move(regex)](std::string_view name, const at::Tensor&) {
    return std::regex_match(name.begin(), name.end(), regex);
  };
}

std::vector<GroupSpec> layerwise_groups(const std::vector<std::string>& layers, double decay) {
  OptionCheck("layerwise_groups")
      .expect("decay", decay, decay > 0 && decay <= 1, "more than 0 and at most 1")
      .expect("the number of patterns", layers.size(), !layers.empty(), "1 or more")
      .throw_problems();
  std::vector<GroupSpec> groups;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    groups.push_back(
        {.select = named(layers[i]), .lr_scale = std::pow(decay, static_cast<double>(layers.size() - 1 - i))});
  }
  return groups;
}

}  // namespace lockstep
