#include <string>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/storage/safetensors.h>

#include "fuzz/target.h"
#include "support/memory_file_system.h"

namespace lockstep::fuzz {

/// A whole file: what is accepted can be read, tensor by tensor, and written again with the same meaning.
LOCKSTEP_FUZZ_TARGET(safetensors) {
  MemoryFileSystem fs;
  fs.create("/file")->append(std::as_bytes(std::span(input)));
  try {
    const SafetensorsReader reader(fs.open("/file"), "file");
    std::int64_t bytes = 0;
    std::vector<std::vector<std::byte>> data;
    std::vector<TensorView> views;
    for (const TensorEntry& entry : reader.entries()) {
      bytes += entry.end - entry.begin;
      data.emplace_back(static_cast<std::size_t>(entry.end - entry.begin));
      reader.read(entry, data.back());
      views.push_back({.name = entry.name, .dtype = entry.dtype, .shape = entry.shape, .bytes = data.back()});
    }
    promise(reader.data_offset() + bytes == static_cast<std::int64_t>(input.size()), "tensors that tile the file",
            input);
    fs.create("/again");
    const auto again = fs.open_append("/again");
    write_safetensors(views, reader.metadata(), [&](std::span<const std::byte> part) { again->append(part); });
    const SafetensorsReader second(fs.open("/again"), "again");
    promise(second.entries().size() == reader.entries().size(), "the same tensors when written again", input);
    promise(second.metadata() == reader.metadata(), "the same metadata when written again", input);
  } catch (const CheckpointError& error) {
    promise(std::string_view(error.what()).starts_with("file: "), "a reason that names the file", input);
  }
}

}  // namespace lockstep::fuzz
