#include "report/console_names.h"

#include <map>
#include <string_view>

namespace lockstep {
namespace {

/// "confusion" of "confusion_0_1", "latency_p" of "latency_p99.9".
std::string_view without_numbers(std::string_view name) {
  return name.substr(0, name.find_last_not_of("0123456789._") + 1);
}

}  // namespace

std::set<std::string> names_for_console(std::span<const std::string> names) {
  constexpr int kMostAlike = 8;
  std::map<std::string_view, int> alike;
  for (const std::string& name : names) {
    ++alike[without_numbers(name)];
  }
  std::set<std::string> shown;
  for (const std::string& name : names) {
    const std::string_view stem = without_numbers(name);
    if (name.find('/') == name.npos && (stem == name || alike[stem] <= kMostAlike)) {
      shown.insert(name);
    }
  }
  return shown;
}

}  // namespace lockstep
