#include "config/config_file.h"

#include <limits>
#include <optional>

#include <fmt/format.h>

#include <lockstep/base/file_system.h>

#include "base/json.h"
#include "base/paths.h"
#include "base/text.h"

namespace lockstep {
namespace {

constexpr std::int64_t kLargestFile = 1 << 20;
constexpr int kDeepest = 64;  // files of other systems, whose settings are named

std::optional<std::vector<int>> int_list(const Json& array) {
  std::vector<int> list;
  for (const Json& element : array) {
    const double number = element.is_number_integer() ? element.get<double>() : std::numeric_limits<double>::max();
    if (number < std::numeric_limits<int>::min() || number > std::numeric_limits<int>::max()) {
      return std::nullopt;
    }
    list.push_back(element.get<int>());
  }
  return list;
}

FileValue to_file_value(const Json& value) {
  switch (value.type()) {
    case Json::value_t::string:
      return value.get<std::string>();
    case Json::value_t::boolean:
      return value.get<bool>();
    case Json::value_t::number_integer:
      return value.get<std::int64_t>();
    case Json::value_t::number_unsigned: {
      const auto number = value.get<std::uint64_t>();
      return number <= std::uint64_t{std::numeric_limits<std::int64_t>::max()} ? FileValue(value.get<std::int64_t>())
                                                                               : FileValue(number);
    }
    case Json::value_t::number_float:
      return value.get<double>();
    case Json::value_t::array:
      if (auto list = int_list(value)) {
        return *std::move(list);
      }
      return UnusableValue{"a list that does not only contain whole numbers"};
    case Json::value_t::object:
      return UnusableValue{"an object"};
    default:
      return UnusableValue{"null"};
  }
}

}  // namespace

std::vector<FileSetting> parse_config_json(std::string_view text, const std::string& label) {
  Json root;
  try {
    root = parse_json(text, kDeepest);
  } catch (const std::runtime_error& error) {
    throw ConfigError(fmt::format("{}: {}", label, error.what()), "correct the file; it must be JSON");
  }
  if (!root.is_object()) {
    throw ConfigError(fmt::format("{}: expected an object", label), R"(begin with { and sections such as "optim": {)");
  }
  std::vector<FileSetting> settings;
  for (const auto& [key, value] : root.items()) {
    if (!value.is_object()) {
      settings.push_back({.name = key, .value = to_file_value(value), .place = label});
      continue;
    }
    for (const auto& [inner_key, inner] : value.items()) {
      settings.push_back({.name = key + "." + inner_key, .value = to_file_value(inner), .place = label});
    }
  }
  return settings;
}

std::string read_config_text(const std::filesystem::path& file) {
  const std::string extension = to_lower(file.extension().string());
  std::error_code unreadable;  // read_file() says it better
  if (extension != ".toml" && extension != ".json" && std::filesystem::exists(file, unreadable)) {
    const bool is_yaml = extension == ".yaml" || extension == ".yml";
    throw ConfigError(fmt::format("{}: expected a file that ends in .toml or .json", file.string()),
                      is_yaml
                          ? "make JSON of it with yq, as docs/migration.md says: then each setting is read, or refused "
                            "with its name here"
                          : "rename it, or write one with --print-config");
  }
  try {
    return read_file(real_file_system(), follow_links(file), kLargestFile);  // mounted ones are often links
  } catch (const IoError& error) {
    throw ConfigError(error.what(), error.hint());
  }
}

std::vector<FileSetting> read_config_file(const std::filesystem::path& file) {
  return parse_config_text(read_config_text(file), file);
}

std::vector<FileSetting> parse_config_text(std::string_view text, const std::filesystem::path& file) {
  return to_lower(file.extension().string()) == ".toml" ? parse_config_toml(text, file.string())
                                                        : parse_config_json(text, file.string());
}

}  // namespace lockstep
