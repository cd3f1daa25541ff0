#include "cli/config_command.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/config/config_io.h>

#include "base/text.h"
#include "config/config_file.h"
#include "config/migrate.h"

namespace lockstep {
namespace {

constexpr std::string_view kUsage =
    "usage: lockstep config\n"
    "       lockstep config --check FILE\n"
    "       lockstep config --migrate FILE\n\n"
    "Without flags it prints a TOML file with every setting: its meaning, its values and its default. All\n"
    "values are commented out, so the file changes nothing.\n\n"
    "  --check FILE     print all problems of a .toml or .json file, with their lines; what the file does not\n"
    "                   set has lockstep's defaults\n"
    "  --migrate FILE   give settings of earlier versions and of other systems their names of today in a .toml\n"
    "                   file, print each change, and check the result; the old file becomes FILE.old\n\n"
    "exit code: 0 no problem, 2 a problem\n";

/// Throws: ConfigError with all problems of the file.
void check(const std::string& file) {
  const std::vector<std::string> args{"--config=" + file};
  const Invocation invocation = parse_invocation({}, args, {});
  const auto set = std::count_if(invocation.origins.begin(), invocation.origins.end(),
                                 [](const auto& origin) { return origin.second.starts_with("file "); });
  fmt::print("{}: {}, no problem\n", file, counted(set, "setting"));
}

void migrate(const std::string& file) {
  if (!to_lower(file).ends_with(".toml")) {
    throw ConfigError(fmt::format("--migrate {}: expected a file that ends in .toml", file),
                      "a JSON file is changed by hand; lockstep config --check FILE lists what to change");
  }
  const Migration migration = migrate_toml(read_config_text(file), file);
  if (migration.changes.empty()) {
    fmt::print("{}: nothing to rename\n", file);
    return;
  }
  FileSystem& fs = real_file_system();
  const std::filesystem::path old = file + ".old";
  if (fs.exists(old)) {
    throw ConfigError(fmt::format("{}: this file exists; the old {} would get its name", old.string(), file),
                      "move it away, then start again");
  }
  std::error_code unresolved;
  const auto target = std::filesystem::canonical(file, unresolved);
  write_file(fs, old, read_config_text(file));
  write_file(fs, unresolved ? std::filesystem::path(file) : target, migration.text);
  for (const std::string& change : migration.changes) {
    fmt::print("{}: {}\n", file, change);
  }
  fmt::print("{}: the old file is {}\n", file, old.string());
}

}  // namespace

int config_command(std::span<const std::string> args) {
  if (args.empty()) {
    fmt::print("{}", config_template());
    return 0;
  }
  if (args.size() == 1 && (args[0] == "--help" || args[0] == "-h")) {
    fmt::print("{}", kUsage);
    return 0;
  }
  if (args.size() != 2 || (args[0] != "--check" && args[0] != "--migrate")) {
    throw ConfigError(fmt::format("config: found \"{}\", expected --check FILE, --migrate FILE or nothing",
                                  printable(join(args, " "))),
                      "see lockstep config --help");
  }
  if (args[0] == "--migrate") {
    migrate(args[1]);
  }
  check(args[1]);
  return 0;
}

}  // namespace lockstep
