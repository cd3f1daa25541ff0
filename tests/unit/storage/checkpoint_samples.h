// Small checkpoints whose bytes follow from (step, version), for the tests of this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/base/error.h>
#include <lockstep/storage/checkpoint_dir.h>

namespace lockstep::testing_storage {

using Contents = std::map<std::string, std::string>;

inline std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// Three files, one of them empty. `version` tells two savings of the same step apart.
inline Contents sample_contents(std::int64_t step, int version = 0) {
  std::string model;
  for (int i = 0; i < 60; ++i) {
    model += static_cast<char>((step * 31 + version * 17 + i * i) & 0xff);
  }
  return {{"weights.bin", model},
          {"state.json", "{\"step\":" + std::to_string(step) + ",\"version\":" + std::to_string(version) + "}"},
          {"rng-0.bin", ""}};
}

inline void add_file(CheckpointWriter& writer, const std::string& name, std::string_view text) {
  writer.add(
      name,
      [&](const auto& append) {
        append(as_bytes(text.substr(0, text.size() / 3)));
        append(as_bytes(text.substr(text.size() / 3)));
      },
      static_cast<std::int64_t>(text.size()));
}

inline void save(CheckpointDir& directory, std::int64_t step, const Contents& contents) {
  const auto writer = directory.begin(step);
  for (const auto& [name, text] : contents) {
    add_file(*writer, name, text);
  }
  writer->commit();
}

inline std::string read_all(const RandomAccessFile& file) {
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

/// What a reader of this checkpoint gets.
inline Contents load(const CheckpointDir& directory, const Manifest& manifest) {
  Contents contents;
  for (const Manifest::File& file : manifest.files) {
    std::string& text = contents[file.name];
    text.resize(static_cast<std::size_t>(file.size));
    directory.read(manifest.step, file, std::as_writable_bytes(std::span(text)));
  }
  return contents;
}

/// The newest checkpoint that a new process can use; the messages of the damaged ones after it go to `damages`.
inline std::optional<Manifest> newest_valid(const CheckpointDir& directory,
                                            std::vector<std::string>* damages = nullptr) {
  const std::vector<std::int64_t> ascending = directory.steps();
  for (auto step = ascending.rbegin(); step != ascending.rend(); ++step) {
    try {
      return directory.verify(*step);
    } catch (const CheckpointError& error) {
      if (damages != nullptr) {
        damages->emplace_back(error.what());
      }
    }
  }
  return std::nullopt;
}

/// Replaces a file's bytes behind the library's back.
inline void overwrite(FileSystem& fs, const std::filesystem::path& path, std::string_view text) {
  fs.remove_all(path);
  const auto file = fs.create(path);
  file->append(as_bytes(text));
  file->sync();
  file->close();
}

}  // namespace lockstep::testing_storage
