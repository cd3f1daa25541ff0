#include "checkpoint/contents_files.h"

#include <array>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/empty.h>

#include <lockstep/base/error.h>
#include <lockstep/sampling/distributed_sampler.h>
#include <lockstep/storage/safetensors.h>

#include "base/find_value.h"
#include "base/json.h"
#include "base/text.h"
#include "storage/names.h"
#include "tensor/tensor_bytes.h"
#include "tensor/tensor_views.h"

namespace lockstep {
namespace {

constexpr std::string_view kTensorsSuffix = ".safetensors";
constexpr std::int64_t kMaxRanks = 1 << 20;

std::string rank_file_name(std::size_t rank) { return fmt::format("rng-{}.bin", rank); }

void write_bytes(CheckpointWriter& writer, const std::string& name, std::string_view bytes) {
  writer.add(name, [&](const auto& append) { append(std::as_bytes(std::span(bytes))); });
}

void write_tensors(CheckpointWriter& writer, const std::string& file, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& tied_names) {
  const TensorViews views(tensors, file);
  writer.add(
      file, [&](const auto& append) { views.write(append, tied_names); }, views.byte_size());
}

/// The values that the store adds; numbers in the file.
std::array<std::pair<std::string_view, std::int64_t>, 4> own_values(std::int64_t step, std::int64_t world_size) {
  return {{{"format", kCheckpointFormat}, {"data_order", kDataOrder}, {"step", step}, {kWorldSizeKey, world_size}}};
}

std::string state_text(std::int64_t step, std::size_t world_size, const std::map<std::string, std::string>& values) {
  Json state;
  for (const auto& [name, value] : own_values(step, static_cast<std::int64_t>(world_size))) {
    if (const std::string* given = find_value(values, name); given != nullptr && *given != std::to_string(value)) {
      throw CheckpointError(
          fmt::format("{}: the value {} is {}, but the store writes {}", kStateName, name, *given, value),
          "remove this value; the store adds it");
    }
    state[std::string(name)] = value;
  }
  for (const auto& [name, value] : values) {
    if (!is_utf8(name)) {
      throw CheckpointError(fmt::format("{}: the name '{}' of a value is not UTF-8 text", kStateName, printable(name)),
                            "give each value in CheckpointContents::values a name in UTF-8");
    }
    if (!state.contains(name)) {
      state[name] = exact_json(value);
    }
  }
  return dump_json_pretty(state) + "\n";
}

/// All values as text. Throws: std::runtime_error.
std::map<std::string, std::string> parse_state(std::string_view text) {
  const Json json = parse_json(text);
  if (!json.is_object()) {
    throw std::runtime_error("not a JSON object");
  }
  std::map<std::string, std::string> values;
  for (const auto& [name, value] : json.items()) {
    if (value.is_number_integer()) {
      values.emplace(name, std::to_string(value.get<std::int64_t>()));
    } else if (value.is_string() || value.is_object()) {
      values.emplace(name, exact_text(value, name));
    } else {
      throw std::runtime_error(fmt::format("\"{}\" is neither a string nor a whole number", name));
    }
  }
  return values;
}

/// Throws: std::runtime_error if the store's own values differ from those of this build and the manifest.
std::size_t checked_world_size(const std::map<std::string, std::string>& values, std::int64_t step) {
  const std::string* found = find_value(values, kWorldSizeKey);
  const auto world_size = found != nullptr ? parse_int(*found) : std::nullopt;
  if (world_size.value_or(0) < 1 || *world_size > kMaxRanks) {
    throw std::runtime_error(fmt::format("world_size is missing or not a number from 1 to {}", kMaxRanks));
  }
  for (const auto& [name, value] : own_values(step, *world_size)) {
    const std::string* own = find_value(values, name);
    if (own == nullptr || *own != std::to_string(value)) {
      throw std::runtime_error(fmt::format("found {} {}, expected {}", name, own != nullptr ? *own : "missing", value));
    }
  }
  return static_cast<std::size_t>(*world_size);
}

}  // namespace

std::int64_t byte_size(const CheckpointContents& contents) {
  std::int64_t bytes = 0;
  for (const auto& [file, tensors] : contents.tensors) {
    for (const auto& [name, tensor] : tensors) {
      bytes += static_cast<std::int64_t>(tensor.nbytes());
    }
  }
  return bytes;
}

void write_contents(CheckpointWriter& writer, std::int64_t step, const CheckpointContents& contents,
                    std::span<const std::string> per_rank) {
  for (const auto& [name, tensors] : contents.tensors) {
    write_tensors(writer, name + std::string(kTensorsSuffix), tensors,
                  name == "model" ? contents.tied_names : std::map<std::string, std::string>());
  }
  write_bytes(writer, std::string(kStateName), state_text(step, per_rank.size(), contents.values));
  for (std::size_t rank = 0; rank < per_rank.size(); ++rank) {
    if (!per_rank[rank].empty()) {
      write_bytes(writer, rank_file_name(rank), per_rank[rank]);
    }
  }
}

std::map<std::string, std::string> peek_values(const CheckpointFiles& files) {
  try {
    return parse_state(files.read(std::string(kStateName), kMaxStateBytes));
  } catch (const IoError&) {
    throw;
  } catch (const std::exception&) {
    return {};
  }
}

StoredContents read_contents(const CheckpointFiles& files) {
  std::map<std::string, at::Tensor> file_bytes;  // rows of bytes
  for (const Manifest::File& file : files.manifest().files) {
    at::Tensor& bytes = file_bytes[file.name] = at::empty({file.size}, at::kByte);
    files.read(file, {static_cast<std::byte*>(bytes.mutable_data_ptr()), bytes.nbytes()});
  }
  const auto where = [&](std::string_view name) { return (files.directory().filename() / name).string(); };
  const auto text_of = [&](const std::string& name) {
    const auto found = file_bytes.find(name);
    return found == file_bytes.end() ? std::nullopt : std::optional(std::string(text_of_bytes(found->second)));
  };

  const auto state = text_of(std::string(kStateName));
  if (!state) {
    throw CheckpointError(fmt::format("{}: the file is missing", where(kStateName)));
  }
  StoredContents saved;
  std::size_t world_size = 0;
  try {
    saved.contents.values = parse_state(*state);
    world_size = checked_world_size(saved.contents.values, files.step());
  } catch (const std::runtime_error& error) {
    throw CheckpointError(fmt::format("{}: {}", where(kStateName), error.what()),
                          "use the lockstep version that wrote it, or another checkpoint");
  }
  for (const auto& [name, bytes] : file_bytes) {
    if (name.ends_with(kTensorsSuffix)) {
      saved.contents.tensors[name.substr(0, name.size() - kTensorsSuffix.size())] = view_tensors(bytes, where(name));
    }
  }
  for (std::size_t rank = 0; rank < world_size; ++rank) {
    saved.per_rank.push_back(text_of(rank_file_name(rank)).value_or(""));
  }
  return saved;
}

}  // namespace lockstep
