#include <limits>

#include <lockstep/base/error.h>

#include "fuzz/target.h"
#include "report/step_records.h"
#include "support/memory_file_system.h"

namespace lockstep::fuzz {

LOCKSTEP_FUZZ_TARGET(records) {
  MemoryFileSystem fs;
  fs.create("/records-0.bin")->append(std::as_bytes(std::span(input)));
  try {
    const RankRecords records = read_records(fs, "/records-0.bin");
    std::int64_t last = -1;
    for (const RankRecords::Entry& entry : records.entries) {
      promise(entry.record.step > last, "steps that ascend", input);
      promise(records.rank >= 0 && records.rank < entry.ranks, "a rank below the ranks", input);
      last = entry.record.step;
    }
    if (last == std::numeric_limits<std::int64_t>::max()) {
      return;
    }
    { RecordWriter(fs, "/records-0.bin", records.rank, records.rank + 1, {.step = last}).add({.step = last + 1}); }
    const RankRecords again = read_records(fs, "/records-0.bin");
    promise(again.entries.size() == records.entries.size() + 1, "that a resumed run can go on behind it", input);
  } catch (const DataError& error) {
    promise(std::string_view(error.what()).starts_with("/records-0.bin"), "a reason that names the file", input);
  }
}

}  // namespace lockstep::fuzz
