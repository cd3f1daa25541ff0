#include "storage/manifest.h"

#include <initializer_list>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/ceil_div.h"
#include "base/crc32c.h"
#include "base/json.h"
#include "storage/names.h"

namespace lockstep {
namespace {

// The last member of the object is the checksum of all bytes before its line, so it always has this form and length.
constexpr std::string_view kTailBegin = "  \"crc32c\": \"";
constexpr std::string_view kTailEnd = "\"\n}\n";
constexpr std::size_t kTailSize = kTailBegin.size() + 8 + kTailEnd.size();

std::uint32_t checksum(std::string_view text) { return crc32c(std::as_bytes(std::span(text.data(), text.size()))); }

std::string tail(std::uint32_t crc) { return fmt::format("{}{:08x}{}", kTailBegin, crc, kTailEnd); }

// Reads the members of a JSON object; messages name the file and the member.
class Fields {
 public:
  Fields(const Json& object, std::string where, std::initializer_list<const char*> keys)
      : object_(object), where_(std::move(where)) {
    if (!object.is_object() || object.size() != keys.size()) {
      fail(fmt::format("found {}, expected an object of {} members", object.type_name(), keys.size()));
    }
    for (const char* key : keys) {
      if (!object.contains(key)) {
        fail(fmt::format("\"{}\" is missing", key));
      }
    }
  }

  std::int64_t integer(const char* key, std::int64_t max = std::numeric_limits<std::int64_t>::max()) const {
    const Json& value = object_[key];
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(max)) {
      fail(fmt::format("\"{}\" is not an integer from 0 to {}", key, max));
    }
    return value.get<std::int64_t>();
  }

  std::string text(const char* key) const {
    const Json& value = object_[key];
    if (!value.is_string()) {
      fail(fmt::format("\"{}\" is not a string", key));
    }
    return value.get<std::string>();
  }

  const Json& array(const char* key) const {
    const Json& value = object_[key];
    if (!value.is_array()) {
      fail(fmt::format("\"{}\" is not an array", key));
    }
    return value;
  }

  [[noreturn]] void fail(const std::string& what) const { throw CheckpointError(where_ + ": " + what); }

 private:
  const Json& object_;
  std::string where_;
};

std::uint32_t parse_checksum(const Json& value, const Fields& fields) {
  const std::string text = value.is_string() ? value.get<std::string>() : std::string();
  if (text.size() != 8 || text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    fields.fail("a checksum is not eight lower-case hexadecimal digits");
  }
  return static_cast<std::uint32_t>(std::stoul(text, nullptr, 16));
}

Manifest::File parse_file(const Json& object, const std::string& where) {
  const Fields fields(object, where, {"name", "size", "crc32c"});
  Manifest::File file{.name = fields.text("name"), .size = fields.integer("size")};
  if (!is_file_name(file.name) || file.name == kManifestName) {
    fields.fail("a file name must have 1 to 128 of the characters A-Z a-z 0-9 . _ -");
  }
  const Json& checksums = fields.array("crc32c");
  const std::int64_t chunks = ceil_div(file.size, kChunkBytes);
  if (static_cast<std::int64_t>(checksums.size()) != chunks) {
    fields.fail(fmt::format("{}: found {} checksums, expected {} for {} bytes", file.name, checksums.size(), chunks,
                            file.size));
  }
  for (const Json& value : checksums) {
    file.crc32c.push_back(parse_checksum(value, fields));
  }
  return file;
}

// Checked before the rest of the text is parsed.
void check_tail(std::string_view text, const std::string& where) {
  const std::size_t body = text.size() < kTailSize ? 0 : text.size() - kTailSize;
  const std::string expected = tail(checksum(text.substr(0, body)));
  if (text.substr(body) != expected) {
    throw CheckpointError(where + ": its checksum does not match its text");
  }
}

}  // namespace

std::int64_t size_of(const Manifest& manifest) {
  return std::accumulate(manifest.files.begin(), manifest.files.end(), std::int64_t{0},
                         [](std::int64_t sum, const Manifest::File& file) { return sum + file.size; });
}

std::string manifest_text(const Manifest& manifest) {
  std::string text = fmt::format(
      "{{\n  \"format\": {},\n  \"step\": {},\n  \"run_id\": {},\n  \"restart\": {},\n  \"chunk_bytes\": {},\n  "
      "\"files\": [",
      manifest.format, manifest.step, dump_json(Json(manifest.run_id)), manifest.restart, kChunkBytes);
  const char* separator = "\n";
  for (const Manifest::File& file : manifest.files) {
    text += fmt::format("{}    {{\"name\": \"{}\", \"size\": {}, \"crc32c\": [", separator, file.name, file.size);
    for (std::size_t i = 0; i < file.crc32c.size(); ++i) {
      text += fmt::format("{}\"{:08x}\"", i == 0 ? "" : ", ", file.crc32c[i]);
    }
    text += "]}";
    separator = ",\n";
  }
  text += "\n  ],\n";
  return text + tail(checksum(text));
}

Manifest parse_manifest(std::string_view text, const std::string& where) {
  check_tail(text, where);
  Json root;
  try {
    root = parse_json(text);
  } catch (const std::exception& error) {
    throw CheckpointError(where + ": " + error.what());
  }
  // The check of the members below handles an equal number that is not an integer (1.0).
  if (root.is_object() && root.contains("format") && root["format"] != kCheckpointFormat) {
    throw CheckpointError(
        fmt::format("{}: checkpoint format {}, this build reads {}", where, root["format"].dump(), kCheckpointFormat),
        "read it with the lockstep version that wrote it");
  }
  const Fields fields(root, where, {"format", "step", "run_id", "restart", "chunk_bytes", "files", "crc32c"});
  fields.integer("format");
  if (fields.integer("chunk_bytes") != kChunkBytes) {
    fields.fail(fmt::format("\"chunk_bytes\" is not {}", kChunkBytes));
  }
  Manifest manifest{.format = kCheckpointFormat,
                    .step = fields.integer("step"),
                    .run_id = fields.text("run_id"),
                    .restart = static_cast<int>(fields.integer("restart", std::numeric_limits<int>::max()))};
  std::set<std::string> names;
  for (const Json& object : fields.array("files")) {
    manifest.files.push_back(parse_file(object, where));
    if (!names.insert(manifest.files.back().name).second) {
      fields.fail("two files have the name " + manifest.files.back().name);
    }
  }
  return manifest;
}

}  // namespace lockstep
