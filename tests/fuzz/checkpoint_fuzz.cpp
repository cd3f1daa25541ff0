#include <string>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/storage/checkpoint_dir.h>
#include <lockstep/storage/safetensors.h>

#include "base/crc32c.h"
#include "base/text.h"
#include "fuzz/target.h"
#include "storage/manifest.h"
#include "support/memory_file_system.h"

namespace lockstep::fuzz {
namespace {

void put(FileSystem& fs, const std::string& name, std::string_view text) {
  fs.create("/checkpoints/step-0000000001/" + name)->append(std::as_bytes(std::span(text)));
}

}  // namespace

/// A whole checkpoint whose checksums fit, with files of anything: what verifies can be loaded. The first line of the
/// input has the sizes of model.safetensors and state.json, what follows their bytes.
LOCKSTEP_FUZZ_TARGET(checkpoint) {
  const std::size_t line = input.find('\n');
  if (line == std::string_view::npos) {
    return;
  }
  MemoryFileSystem fs;
  fs.create_directories("/checkpoints/step-0000000001");
  Manifest manifest{.step = 1, .run_id = "fuzz"};
  std::string_view rest = input.substr(line + 1);
  const std::vector<std::string> names = {"model.safetensors", "state.json"};
  const std::vector<std::string> sizes = split(input.substr(0, line), ' ');
  for (std::size_t i = 0; i < names.size() && i < sizes.size(); ++i) {
    const std::string_view bytes = rest.substr(0, static_cast<std::size_t>(parse_int(sizes[i]).value_or(0)));
    rest.remove_prefix(bytes.size());
    put(fs, names[i], bytes);
    manifest.files.push_back({.name = names[i], .size = static_cast<std::int64_t>(bytes.size())});
    if (!bytes.empty()) {
      manifest.files.back().crc32c.push_back(crc32c(std::as_bytes(std::span(bytes))));
    }
  }
  put(fs, "MANIFEST.json", manifest_text(manifest));
  const CheckpointDir directory(fs, "/checkpoints");
  try {
    directory.verify(1);
  } catch (const CheckpointError& error) {
    promise(std::string_view(error.what()).starts_with("step-0000000001/"), "a reason that names the file", input);
    return;
  }
  for (const Manifest::File& file : directory.manifest(1).files) {  // throws out of here: the process dies
    directory.read(1, file.name);
    if (file.name.ends_with(".safetensors")) {
      const SafetensorsReader reader(fs.open(directory.path(1) / file.name), file.name);
      for (const TensorEntry& entry : reader.entries()) {
        std::vector<std::byte> bytes(static_cast<std::size_t>(entry.end - entry.begin));
        reader.read(entry, bytes);
      }
    }
  }
}

}  // namespace lockstep::fuzz
