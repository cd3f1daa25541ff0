#include <lockstep/base/error.h>

#include "config/migrate.h"
#include "fuzz/target.h"

namespace lockstep::fuzz {

LOCKSTEP_FUZZ_TARGET(migration) {
  try {
    const Migration migration = migrate_toml(input, "a.toml");
    promise(migration.changes.empty() == (migration.text == input), "a change for every change", input);
    promise(migrate_toml(migration.text, "a.toml").changes.empty(), "all changes at once", input);
  } catch (const ConfigError& error) {
    promise(!error.problems().empty(), "a reason", input);
  }
}

}  // namespace lockstep::fuzz
