#include <algorithm>
#include <cerrno>
#include <filesystem>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/base/log.h>
#include <lockstep/config/config_io.h>

#include "base/io_error.h"
#include "base/text.h"
#include "cli/commands.h"
#include "config/config_file.h"
#include "config/flags.h"
#include "config/migrate.h"
#include "config/toml_writer.h"

namespace lockstep {
namespace {

constexpr FlagRow kFlags[] = {
    {"check", "FILE",
     "print all problems of a .toml file, with their lines, or of a .json file; only the program itself finds those "
     "that depend on its defaults"},
    {"migrate", "FILE",
     "give settings of earlier versions and of other systems their names of today in a .toml file, print each change, "
     "and check the result; the old file becomes FILE.old"},
};

/// Throws: ConfigError with all problems of the file.
void check(const std::string& file) {
  const std::vector<std::string> args{"--config=" + file};
  const Invocation invocation = parse_invocation({}, args, {}, FlagsAccess::for_tool());
  for (const std::string& warning : invocation.warnings) {
    log_warning(warning);
  }
  // The program's own flags are not checked here.
  const auto set = std::ranges::count_if(read_config_file(file), [](const FileSetting& setting) {
    return !setting.name.starts_with(fmt::format("{}.", kProgramSection));
  });
  fmt::print("{}: {}, no problem\n", file, counted(set, "setting"));
}

/// Writes a file with a new text and the owner and mode of before; the old one becomes <file>.old, which is returned.
/// A link stays a link.
std::filesystem::path replace_keeping_old(const std::filesystem::path& file, std::string_view text) {
  FileSystem& fs = real_file_system();
  const std::filesystem::path target = std::filesystem::is_symlink(file) ? std::filesystem::canonical(file) : file;
  const std::filesystem::path old = target.string() + ".old";
  const std::filesystem::path fresh = target.string() + ".new";
  struct stat before {};
  if (::stat(target.c_str(), &before) != 0) {
    throw_io_error("inspect", target, errno);
  }
  for (const auto& path : {old, fresh}) {
    if (fs.exists(path)) {
      throw ConfigError(fmt::format("{}: this file exists; --migrate would overwrite it", path.string()),
                        "move it away, then start again");
    }
  }
  ::umask(S_IRWXG | S_IRWXO);  // nobody else reads a private file while it is being written
  write_file(fs, fresh, text);
  try {
    if (::chown(fresh.c_str(), before.st_uid, before.st_gid) != 0 ||
        ::chmod(fresh.c_str(), before.st_mode & 07777) != 0) {
      throw_io_error("keep the owner of", target, errno);
    }
    fs.rename(target, old);
  } catch (const IoError&) {
    fs.remove(fresh);
    throw;
  }
  fs.rename(fresh, target);
  return old;
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
  const std::filesystem::path old = replace_keeping_old(file, migration.text);
  for (const std::string& change : migration.changes) {
    fmt::print("{}: {}\n", file, change);
  }
  fmt::print("{}: the old file is {}\n", file, old.string());
}

int config(const CommandLine& line, const Variables&) {
  const GivenFlag* checked = line.find("check");
  const GivenFlag* migrated = line.find("migrate");
  if (checked != nullptr && migrated != nullptr) {
    throw ConfigError("config: found --check and --migrate, expected one of them", "--migrate checks the result, too");
  }
  if (migrated != nullptr) {
    migrate(migrated->text);
    check(migrated->text);
  } else if (checked != nullptr) {
    check(checked->text);
  } else {
    fmt::print("{}", config_template());
  }
  return 0;
}

}  // namespace

const Command kConfigCommand{
    .name = "config",
    .summary = "print, check or migrate a file of settings",
    .description =
        "Without flags it prints a TOML file with every setting: its meaning, its values and its default. All values "
        "are commented out, so the file changes nothing.",
    .exit_codes = "0 no problem, 2 a problem",
    .flags = kFlags,
    .run = config};

}  // namespace lockstep
