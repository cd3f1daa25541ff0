#include <algorithm>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/environment/hardware.h>

#include "base/json.h"
#include "base/problems.h"
#include "base/text.h"
#include "environment/visible_devices.h"

namespace lockstep {
namespace {

/// Reads the keys of one object, rejects unknown keys, and collects the problems.
class ObjectReader {
 public:
  ObjectReader(const Json& object, std::string where, std::vector<Problem>& problems)
      : object_(object), where_(std::move(where)), problems_(problems) {}

  bool check_keys(std::initializer_list<std::string_view> known) {
    if (!object_.is_object()) {
      problem(fmt::format("found {}, expected an object", object_.type_name()));
      return false;
    }
    const std::vector<std::string> names(known.begin(), known.end());
    for (const auto& item : object_.items()) {
      if (std::ranges::find(names, item.key()) == names.end()) {
        const auto near = closest(item.key(), names);
        problem(fmt::format("unknown key \"{}\"", printable(item.key())),
                near ? fmt::format("did you mean \"{}\"?", *near) : "known keys: " + join(names, ", "));
      }
    }
    return true;
  }

  const Json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }

  const Json* require(const char* key) {
    const Json* value = find(key);
    if (value == nullptr) {
      problem(fmt::format("\"{}\" is missing", key));
    }
    return value;
  }

  void read(const char* key, std::string& out) {
    if (const Json* value = find(key)) {
      value->is_string() ? static_cast<void>(out = value->get<std::string>()) : expected(key, *value, "a text");
    }
  }

  void read(const char* key, bool& out) {
    if (const Json* value = find(key)) {
      value->is_boolean() ? static_cast<void>(out = value->get<bool>()) : expected(key, *value, "true or false");
    }
  }

  void read_bytes(const char* key, std::int64_t& out) {
    const Json* value = find(key);
    if (value == nullptr) {
      return;
    }
    const auto bytes = parse_bytes(value->is_string() ? value->get<std::string>() : dump_json(*value));
    if (bytes && *bytes >= 0) {
      out = *bytes;
    } else {
      expected(key, *value, "a size such as \"80GiB\"");
    }
  }

  void read_positive(const char* key, int& out) {
    const Json* value = require(key);
    if (value == nullptr) {
      return;
    }
    const auto number = parse_int(dump_json(*value));
    if (number && *number >= 1 && *number <= std::numeric_limits<int>::max()) {
      out = static_cast<int>(*number);
    } else {
      expected(key, *value, "a positive number");
    }
  }

  void expected(const char* key, const Json& value, std::string_view what) {
    problem(fmt::format("\"{}\": found {}, expected {}", key, printable(dump_json(value)), what));
  }

 private:
  void problem(const std::string& what, std::string hint = {}) {
    problems_.push_back({fmt::format("{}: {}", where_, what), std::move(hint)});
  }

  const Json& object_;
  std::string where_;
  std::vector<Problem>& problems_;
};

Gpu read_gpu(const Json& json, std::string where, std::vector<Problem>& problems) {
  Gpu gpu{.name = "GPU"};
  ObjectReader reader(json, std::move(where), problems);
  if (reader.check_keys({"name", "uuid", "pci_bus_id", "memory", "free", "usable", "compute_capability"})) {
    reader.read("name", gpu.name);
    reader.read("uuid", gpu.uuid);
    reader.read("pci_bus_id", gpu.pci_bus_id);
    reader.read_bytes("memory", gpu.memory_bytes);
    gpu.free_bytes = gpu.memory_bytes;
    reader.read_bytes("free", gpu.free_bytes);
    reader.read("usable", gpu.usable);
    reader.read("compute_capability", gpu.compute_capability);
  }
  return gpu;
}

Json parse_file(const std::filesystem::path& file) {
  constexpr std::int64_t kMaxBytes = 1 << 20;
  try {
    return parse_json(read_file(real_file_system(), file, kMaxBytes));
  } catch (const IoError& error) {
    throw ConfigError(error.what(), error.hint());
  } catch (const std::runtime_error& error) {
    throw ConfigError(fmt::format("{}: {}", file.string(), error.what()));
  }
}

}  // namespace

Hardware read_hardware(const std::filesystem::path& file) {
  const Json json = parse_file(file);
  std::vector<Problem> problems;
  Hardware hardware{.host = file.stem().string(), .visible_devices = kUnset, .cuda_built = true, .nccl_built = true};
  std::vector<Gpu> gpus;
  ObjectReader reader(json, file.string(), problems);
  if (reader.check_keys({"host", "cores", "memory", "cuda", "nccl", "visible_devices", "gpus"})) {
    reader.read("host", hardware.host);
    reader.read_positive("cores", hardware.cores);
    reader.read_bytes("memory", hardware.memory_bytes);
    reader.read("cuda", hardware.cuda_built);
    reader.read("nccl", hardware.nccl_built);
    reader.read("visible_devices", hardware.visible_devices);
    if (const Json* list = reader.require("gpus"); list != nullptr && list->is_array()) {
      for (const Json& gpu : *list) {
        gpus.push_back(read_gpu(gpu, fmt::format("{}: gpus[{}]", file.string(), gpus.size()), problems));
      }
    } else if (list != nullptr) {
      reader.expected("gpus", *list, "a list of GPUs");
    }
  }
  throw_if_any(std::move(problems));
  if (gpus.empty()) {
    hardware.gpu_note = "the description lists no GPU";
  }
  show_gpus(hardware, std::move(gpus));
  return hardware;
}

}  // namespace lockstep
