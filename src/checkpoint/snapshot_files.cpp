#include "checkpoint/snapshot_files.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <ATen/ops/empty.h>

#include <lockstep/base/error.h>
#include <lockstep/sampling/distributed_sampler.h>
#include <lockstep/storage/safetensors.h>

#include "base/json.h"
#include "base/text.h"
#include "checkpoint/dtype_names.h"

namespace lockstep {
namespace {

constexpr std::string_view kTensorsSuffix = ".safetensors";
constexpr std::string_view kStateName = "state.json";
constexpr std::int64_t kMaxRanks = 1 << 20;

std::string rank_file_name(std::size_t rank) { return fmt::format("rng-{}.bin", rank); }

void write_bytes(CheckpointWriter& writer, const std::string& name, std::string_view bytes) {
  writer.add(name, [&](const auto& append) { append(std::as_bytes(std::span(bytes))); });
}

void write_tensors(CheckpointWriter& writer, const std::string& file, const NamedTensors& tensors) {
  std::vector<at::Tensor> held;
  std::vector<TensorView> views;
  for (const auto& [name, tensor] : tensors) {
    const auto dtype = dtype_name(tensor.scalar_type());
    if (!dtype) {
      throw CheckpointError(fmt::format("{}: {} has dtype {}, expected one that safetensors can hold", file, name,
                                        c10::toString(tensor.scalar_type())),
                            "convert it before saving");
    }
    const at::Tensor& host = held.emplace_back(tensor.detach().to(at::kCPU).contiguous());
    views.push_back({.name = name,
                     .dtype = std::string(*dtype),
                     .shape = host.sizes().vec(),
                     .bytes = {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()}});
  }
  const auto bytes = std::accumulate(
      views.begin(), views.end(), std::int64_t{0},
      [](std::int64_t sum, const auto& view) { return sum + static_cast<std::int64_t>(view.bytes.size()); });
  writer.add(
      file,
      [&](const auto& append) {
        write_safetensors(views, {{"format", "pt"}}, append);
      },
      bytes);
}

NamedTensors read_tensors(const SafetensorsReader& reader, const std::string& file) {
  NamedTensors tensors;
  for (const TensorEntry& entry : reader.entries()) {
    const auto dtype = dtype_of(entry.dtype);
    if (!dtype) {
      throw CheckpointError(
          fmt::format("{}: {} has dtype {}, expected one that LibTorch has", file, entry.name, entry.dtype));
    }
    at::Tensor tensor = at::empty(entry.shape, *dtype);
    reader.read(entry, {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
    tensors.emplace_back(entry.name, std::move(tensor));
  }
  return tensors;
}

std::string read_bytes(const RandomAccessFile& file) {
  std::string bytes(static_cast<std::size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

/// The store's own values, numbers in the file.
std::array<std::pair<std::string_view, std::int64_t>, 4> own_values(std::int64_t step, std::int64_t world_size) {
  return {{{"format", kCheckpointFormat}, {"data_order", kDataOrder}, {"step", step}, {"world_size", world_size}}};
}

std::string state_text(std::int64_t step, std::size_t world_size, const std::map<std::string, std::string>& values) {
  Json state;
  for (const auto& [name, value] : own_values(step, static_cast<std::int64_t>(world_size))) {
    if (const auto given = values.find(std::string(name));
        given != values.end() && given->second != std::to_string(value)) {
      throw CheckpointError(
          fmt::format("{}: found {} {} among the values, expected {}", kStateName, name, given->second, value),
          "the store writes it, leave it out");
    }
    state[std::string(name)] = value;
  }
  for (const auto& [name, value] : values) {
    if (!state.contains(name)) {
      state[name] = value;
    }
  }
  return dump_json_pretty(state) + "\n";
}

/// All values as text. Throws: std::runtime_error.
std::map<std::string, std::string> parse_state(std::string_view text) {
  const Json json = parse_json(text);
  if (!json.is_object()) {
    throw std::runtime_error("found no object, expected one");
  }
  std::map<std::string, std::string> values;
  for (const auto& [name, value] : json.items()) {
    if (value.is_number_integer()) {
      values.emplace(name, std::to_string(value.get<std::int64_t>()));
    } else if (value.is_string()) {
      values.emplace(name, value.get<std::string>());
    } else {
      throw std::runtime_error(fmt::format("\"{}\" is neither a string nor a whole number", name));
    }
  }
  return values;
}

/// Throws: std::runtime_error when the store's own values are not what this build and the manifest say.
std::size_t checked_world_size(const std::map<std::string, std::string>& values, std::int64_t step) {
  const auto found = values.find("world_size");
  const auto world_size = found == values.end() ? std::nullopt : parse_int(found->second);
  if (world_size.value_or(0) < 1 || *world_size > kMaxRanks) {
    throw std::runtime_error(fmt::format("found no world_size from 1 to {}, expected one", kMaxRanks));
  }
  for (const auto& [name, value] : own_values(step, *world_size)) {
    const auto own = values.find(std::string(name));
    if (own == values.end() || own->second != std::to_string(value)) {
      throw std::runtime_error(
          fmt::format("found {} {}, expected {}", name, own == values.end() ? "missing" : own->second, value));
    }
  }
  return static_cast<std::size_t>(*world_size);
}

}  // namespace

std::int64_t byte_size(const Snapshot& snapshot) {
  std::int64_t bytes = 0;
  for (const auto& [file, tensors] : snapshot.tensors) {
    for (const auto& [name, tensor] : tensors) {
      bytes += static_cast<std::int64_t>(tensor.nbytes());
    }
  }
  return bytes;
}

void write_snapshot(CheckpointWriter& writer, std::int64_t step, const Snapshot& snapshot,
                    std::span<const std::string> per_rank) {
  for (const auto& [name, tensors] : snapshot.tensors) {
    write_tensors(writer, name + std::string(kTensorsSuffix), tensors);
  }
  write_bytes(writer, std::string(kStateName), state_text(step, per_rank.size(), snapshot.values));
  for (std::size_t rank = 0; rank < per_rank.size(); ++rank) {
    if (!per_rank[rank].empty()) {
      write_bytes(writer, rank_file_name(rank), per_rank[rank]);
    }
  }
}

SavedSnapshot read_snapshot(const CheckpointDir& directory, const Manifest& manifest) {
  const auto has = [&](std::string_view name) {
    return std::any_of(manifest.files.begin(), manifest.files.end(),
                       [&](const auto& file) { return file.name == name; });
  };
  const auto where = [&](std::string_view name) { return (directory.path(manifest.step).filename() / name).string(); };

  if (!has(kStateName)) {
    throw CheckpointError(fmt::format("{}: found no such file, expected one", where(kStateName)));
  }
  SavedSnapshot saved;
  std::size_t world_size = 0;
  const std::string text = read_bytes(*directory.open(manifest.step, std::string(kStateName)));
  try {
    saved.snapshot.values = parse_state(text);
    world_size = checked_world_size(saved.snapshot.values, manifest.step);
  } catch (const std::runtime_error& error) {
    throw CheckpointError(fmt::format("{}: {}", where(kStateName), error.what()),
                          "use the lockstep version that wrote it, or another checkpoint");
  }
  for (const Manifest::File& file : manifest.files) {
    if (file.name.ends_with(kTensorsSuffix)) {
      const SafetensorsReader reader(directory.open(manifest.step, file.name), where(file.name));
      saved.snapshot.tensors[file.name.substr(0, file.name.size() - kTensorsSuffix.size())] =
          read_tensors(reader, where(file.name));
    }
  }
  for (std::size_t rank = 0; rank < world_size; ++rank) {
    const std::string name = rank_file_name(rank);
    saved.per_rank.push_back(has(name) ? read_bytes(*directory.open(manifest.step, name)) : std::string());
  }
  return saved;
}

}  // namespace lockstep
