#include <string>
#include <vector>

#include <lockstep/base/error.h>

#include "fuzz/target.h"
#include "storage/zip_reader.h"
#include "support/memory_file_system.h"

namespace lockstep::fuzz {

/// A whole file: a record that is found is read in full, or the reason names the file.
LOCKSTEP_FUZZ_TARGET(zip) {
  MemoryFileSystem fs;
  fs.create("/file")->append(std::as_bytes(std::span(input)));
  try {
    const ZipReader zip(fs.open("/file"), "file");
    for (const char* name : {"data.pkl", "data/0", "byteorder"}) {
      if (const ZipRecord* record = zip.find(name)) {
        promise(record->size >= 0 && record->size <= static_cast<std::int64_t>(input.size()), "a size that fits",
                input);
        std::vector<std::byte> bytes(static_cast<std::size_t>(record->size));
        zip.read(*record, bytes);
      }
    }
  } catch (const CheckpointError& error) {
    promise(std::string_view(error.what()).starts_with("file: "), "a reason that names the file", input);
  }
}

}  // namespace lockstep::fuzz
