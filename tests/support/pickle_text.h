// Pickles as torch.save writes them, made by hand: so that a test can write what torch.save would not.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::pickle {

inline std::string little_bytes(std::uint64_t value, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += static_cast<char>(value >> (8 * i) & 0xff);
  }
  return text;
}

inline std::string text(std::string_view value) { return "X" + little_bytes(value.size(), 4) + std::string(value); }
inline std::string integer(std::int64_t value) {
  return "\x8a\x08" + little_bytes(static_cast<std::uint64_t>(value), 8);
}
inline std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}

inline std::string tuple(const std::vector<std::string>& items) {
  std::string all = "(";
  for (const std::string& item : items) {
    all += item;
  }
  return all + "t";
}

inline std::string integers(const std::vector<std::int64_t>& values) {
  std::vector<std::string> items;
  for (const std::int64_t value : values) {
    items.push_back(integer(value));
  }
  return tuple(items);
}

inline std::string dictionary(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string all = "}(";
  for (const auto& [key, value] : entries) {
    all += text(key) + value;
  }
  return all + "u";
}

inline std::string storage(const std::string& type, const std::string& key, std::int64_t size) {
  return tuple({text("storage"), global("torch", type), text(key), text("cpu"), integer(size)}) + "Q";
}

/// A call: of `maker` with arguments.
inline std::string made(const std::string& module, const std::string& name, const std::vector<std::string>& arguments) {
  return global(module, name) + tuple(arguments) + "R";
}

inline std::string tensor(const std::string& in, std::int64_t offset, const std::vector<std::int64_t>& shape,
                          const std::vector<std::int64_t>& strides) {
  return made(
      "torch._utils", "_rebuild_tensor_v2",
      {in, integer(offset), integers(shape), integers(strides), "\x89", made("collections", "OrderedDict", {})});
}

/// Two floats in the storage 0.
inline std::string two_floats() { return tensor(storage("FloatStorage", "0", 2), 0, {2}, {1}); }

inline std::string whole(const std::string& value) { return "\x80\x02" + value + "."; }

}  // namespace lockstep::pickle
