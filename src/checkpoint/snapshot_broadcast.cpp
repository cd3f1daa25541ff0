#include "checkpoint/snapshot_broadcast.h"

#include <map>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include <ATen/ops/empty.h>

#include <lockstep/base/error.h>
#include <lockstep/world/world.h>

#include "base/json.h"
#include "checkpoint/main_rank.h"
#include "world/dtype_names.h"

namespace lockstep {
namespace {

/// What the others must know before tensors are sent: everything but their contents.
std::string describe(const SavedSnapshot& saved) {
  Json files = Json::object();
  for (const auto& [file, tensors] : saved.snapshot.tensors) {
    Json& list = files[file] = Json::array();
    for (const auto& [name, tensor] : tensors) {
      const auto dtype = dtype_name(tensor.scalar_type());
      if (!dtype) {
        throw CheckpointError(fmt::format("{}: {} has dtype {}, expected one that safetensors can hold", file, name,
                                          c10::toString(tensor.scalar_type())),
                              "convert it before saving");
      }
      list.push_back({{"name", name}, {"dtype", *dtype}, {"shape", tensor.sizes().vec()}});
    }
  }
  Json sizes = Json::array();
  for (const std::string& bytes : saved.per_rank) {
    sizes.push_back(bytes.size());
  }
  return dump_json({{"values", saved.snapshot.values}, {"files", files}, {"per_rank", sizes}});
}

SavedSnapshot from_description(std::string_view text) {
  const Json json = parse_json(text);
  SavedSnapshot saved;
  saved.snapshot.values = json.at("values").get<std::map<std::string, std::string>>();
  for (const auto& [file, list] : json.at("files").items()) {
    NamedTensors& tensors = saved.snapshot.tensors[file];
    for (const Json& entry : list) {
      const auto shape = entry.at("shape").get<std::vector<std::int64_t>>();
      const auto dtype = dtype_of(entry.at("dtype").get<std::string>());
      tensors.emplace_back(entry.at("name").get<std::string>(), at::empty(shape, *dtype));
    }
  }
  for (const Json& size : json.at("per_rank")) {
    saved.per_rank.emplace_back(size.get<std::size_t>(), '\0');
  }
  return saved;
}

}  // namespace

void broadcast_snapshot(World& world, int source, SavedSnapshot& saved) {
  if (world.size() == 1) {
    return;
  }
  const bool mine = world.rank() == source;
  const auto descriptions = run_on(world, "describing a checkpoint", mine, [&] { return describe(saved); });
  if (!mine) {
    saved = from_description(descriptions[static_cast<std::size_t>(source)]);
  }
  for (auto& [file, tensors] : saved.snapshot.tensors) {
    for (auto& [name, tensor] : tensors) {
      if (tensor.numel() == 0) {
        continue;
      }
      // As bytes: not every backend sends every dtype.
      const at::Tensor bytes = tensor.contiguous().view({-1}).view(at::kByte);
      const at::Tensor staged = bytes.to(world.device());
      world.broadcast(staged, source);
      if (!mine) {
        bytes.copy_(staged);
      }
    }
  }
  for (std::string& bytes : saved.per_rank) {
    bytes = world.broadcast_bytes(bytes, source);
  }
}

}  // namespace lockstep
