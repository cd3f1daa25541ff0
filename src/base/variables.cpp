#include <unistd.h>

#include <lockstep/base/variables.h>

namespace lockstep {

Variables read_environment() {
  std::map<std::string, std::string, std::less<>> values;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const auto equals = text.find('=');
    if (equals != std::string_view::npos) {
      // As in getenv, the first of two entries with one name counts.
      values.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return Variables(std::move(values));
}

}  // namespace lockstep
