#include <string>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/crc32c.h"
#include "fuzz/target.h"
#include "storage/manifest.h"
#include "storage/names.h"

namespace lockstep::fuzz {
namespace {

/// The same text with a checksum that fits: what is behind the checksum has to hold, too.
std::string with_checksum(std::string_view input) {
  constexpr std::size_t kTail = 25;  // docs/checkpoint_format.md
  const std::string_view body = input.substr(0, input.size() - std::min(input.size(), kTail));
  return fmt::format("{}  \"crc32c\": \"{:08x}\"\n}}\n", body, crc32c(std::as_bytes(std::span(body))));
}

}  // namespace

LOCKSTEP_FUZZ_TARGET(manifest) {
  for (const std::string& text : {std::string(input), with_checksum(input)}) {
    try {
      const Manifest manifest = parse_manifest(text, "step/MANIFEST.json");
      for (const Manifest::File& file : manifest.files) {
        promise(is_file_name(file.name) && file.name != kManifestName, "plain file names", input);
        promise(file.size >= 0, "a size", input);
        promise(
            static_cast<std::int64_t>(file.crc32c.size()) == (file.size / kChunkBytes + (file.size % kChunkBytes != 0)),
            "a checksum per chunk", input);
      }
      const std::string again = manifest_text(manifest);
      promise(manifest_text(parse_manifest(again, "again")) == again, "a text that means the same when read again",
              input);
    } catch (const CheckpointError& error) {
      promise(std::string_view(error.what()).starts_with("step/MANIFEST.json: "), "a reason that names the file",
              input);
    }
  }
}

}  // namespace lockstep::fuzz
