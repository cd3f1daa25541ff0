#include "checkpoint/contents_broadcast.h"

#include <string>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>

#include <lockstep/world/world.h>

#include "base/json.h"
#include "checkpoint/main_rank.h"
#include "tensor/tensor_bytes.h"
#include "tensor/tensor_layout.h"

namespace lockstep {
namespace {

/// What the other ranks need before the tensors are sent: names, dtypes and shapes.
std::string describe(const StoredContents& saved) {
  Json values = Json::array();
  for (const auto& [name, value] : saved.contents.values) {
    values.push_back(Json::array({exact_json(name), exact_json(value)}));
  }
  Json files = Json::object();
  for (const auto& [file, tensors] : saved.contents.tensors) {
    files[file] = tensor_layout(tensors);
  }
  Json sizes = Json::array();
  for (const std::string& bytes : saved.per_rank) {
    sizes.push_back(bytes.size());
  }
  Json tied = Json::array();
  for (const auto& [name, first] : saved.contents.tied_names) {
    tied.push_back(Json::array({exact_json(name), exact_json(first)}));
  }
  return dump_json({{"values", values}, {"files", files}, {"per_rank", sizes}, {"tied", tied}});
}

StoredContents from_description(std::string_view text) {
  const Json json = parse_json(text);
  StoredContents saved;
  for (const Json& entry : json.at("values")) {
    saved.contents.values.emplace(exact_text(entry.at(0), "name"), exact_text(entry.at(1), "value"));
  }
  for (const auto& [file, layout] : json.at("files").items()) {
    saved.contents.tensors[file] = empty_tensors(layout, at::kCPU);
  }
  for (const Json& size : json.at("per_rank")) {
    saved.per_rank.emplace_back(size.get<std::size_t>(), '\0');
  }
  for (const Json& entry : json.at("tied")) {
    saved.contents.tied_names.emplace(exact_text(entry.at(0), "name"), exact_text(entry.at(1), "name"));
  }
  return saved;
}

/// This rank's part of the loaded contents.
CheckpointContents take(StoredContents saved, const World& world) {
  if (saved.per_rank.size() == static_cast<std::size_t>(world.size())) {
    const std::string& bytes = saved.per_rank[static_cast<std::size_t>(world.rank())];
    saved.contents.per_rank = bytes.empty() ? at::Tensor() : bytes_tensor(bytes);
  }
  return std::move(saved.contents);
}

}  // namespace

void broadcast_contents(World& world, int source, StoredContents& saved) {
  if (world.size() == 1) {
    return;
  }
  const bool mine = world.rank() == source;
  const auto descriptions = run_on(world, "describing a checkpoint", mine, [&] { return describe(saved); });
  if (!mine) {
    saved = from_description(descriptions[static_cast<std::size_t>(source)]);
  }
  for (auto& [file, tensors] : saved.contents.tensors) {
    for (auto& [name, tensor] : tensors) {
      const at::Tensor staged = tensor.contiguous().to(world.device());
      world.broadcast(staged, source);
      if (!mine) {
        tensor.copy_(staged);
      }
    }
  }
  for (std::string& bytes : saved.per_rank) {
    bytes = world.broadcast_bytes(bytes, source);
  }
}

CheckpointContents load_on(World& world, int source, const std::function<StoredContents()>& read) {
  StoredContents saved;
  run_on(world, "loading a checkpoint", world.rank() == source, [&] { saved = read(); });
  broadcast_contents(world, source, saved);
  return take(std::move(saved), world);
}

}  // namespace lockstep
