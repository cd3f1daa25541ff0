#include "storage/torch_pickle.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/mapped.h"
#include "base/text.h"
#include "storage/pickle.h"

namespace lockstep {
namespace {

using Ref = PickleRef;
using Value = PickleValue;
using Kind = PickleValue::Kind;

constexpr std::size_t kMaxPickledDimensions = 64;  // LibTorch's limit
constexpr std::size_t kMaxStorageName = 64;        // torch.save writes a number
constexpr const char* kSaveStateDict =
    "in Python, save the weights alone: torch.save(model.state_dict(), \"weights.pt\")";

/// A class or a function is named as in the pickle: module, line feed, name.
constexpr std::string_view kTensor = "torch._utils\n_rebuild_tensor_v2";
constexpr std::string_view kTensorWithDtype = "torch._utils\n_rebuild_tensor_v3";
constexpr std::string_view kParameter = "torch._utils\n_rebuild_parameter";
constexpr std::string_view kUntypedStorage = "torch.storage\nUntypedStorage";

struct PickledDtype {
  std::string_view name;
  std::string_view storage;  ///< empty: only in an untyped storage
  std::int64_t bytes;
};
constexpr std::array<PickledDtype, 21> kPickledDtypes{{{"float32", "torch\nFloatStorage", 4},
                                                       {"float64", "torch\nDoubleStorage", 8},
                                                       {"float16", "torch\nHalfStorage", 2},
                                                       {"bfloat16", "torch\nBFloat16Storage", 2},
                                                       {"complex64", "torch\nComplexFloatStorage", 8},
                                                       {"complex128", "torch\nComplexDoubleStorage", 16},
                                                       {"int64", "torch\nLongStorage", 8},
                                                       {"int32", "torch\nIntStorage", 4},
                                                       {"int16", "torch\nShortStorage", 2},
                                                       {"int8", "torch\nCharStorage", 1},
                                                       {"uint8", "torch\nByteStorage", 1},
                                                       {"bool", "torch\nBoolStorage", 1},
                                                       {"uint16", "", 2},
                                                       {"uint32", "", 4},
                                                       {"uint64", "", 8},
                                                       {"complex32", "", 4},
                                                       {"float8_e4m3fn", "", 1},
                                                       {"float8_e4m3fnuz", "", 1},
                                                       {"float8_e5m2", "", 1},
                                                       {"float8_e5m2fnuz", "", 1},
                                                       {"float8_e8m0fnu", "", 1}}};

bool is_tensor(const Value& value) {
  return value.kind == Kind::object &&
         (value.text == kTensor || value.text == kTensorWithDtype || value.text == kParameter);
}

/// A tensor of another kind, such as a quantized or a sparse one.
bool is_other_tensor(const Value& value) {
  return value.kind == Kind::object && !is_tensor(value) && value.text.starts_with("torch._utils\n_rebuild");
}

/// "my_module.MyModel"
std::string python_name(std::string_view global) {
  std::string name(global.substr(0, 200));
  std::ranges::replace(name, '\n', '.');
  return printable(name);
}

/// "the Python object my_module.MyModel"
std::string kind_of(const Value& value) {
  switch (value.kind) {
    case Kind::other:
      return "None or a number";
    case Kind::integer:
      return "an integer";
    case Kind::text:
      return "a text";
    case Kind::tuple:
      return "a tuple";
    case Kind::list:
      return "a list";
    case Kind::dictionary:
      return "a dictionary";
    case Kind::storage:
      return "a storage";
    case Kind::global:
    case Kind::object:
      break;
  }
  if (is_tensor(value)) {
    return "a tensor";
  }
  return (value.kind == Kind::global ? "the Python name " : "the Python object ") + python_name(value.text);
}

std::string key_text(const Value& key) { return key.kind == Kind::text ? printable(key.text) : kind_of(key); }

/// The dictionary with the weights in a pickle, or why there is none. A pickle may refer to one dictionary many times:
/// each is looked through once.
class WeightsSearch {
 public:
  explicit WeightsSearch(const Pickle& pickle) : pickle_(pickle), root_(pickle[pickle.root]) {}

  const Value& find(const std::string& key) {
    if (root_.kind != Kind::dictionary) {
      throw CheckpointError(fmt::format("found {}, expected a dictionary of tensors", kind_of(root_)), kSaveStateDict);
    }
    return key.empty() ? find_only() : find_named(key);
  }

 private:
  /// A dictionary in the content, and the keys that lead to it.
  struct Part {
    Ref dictionary;
    std::vector<std::string_view> keys;
  };

  const Value& find_named(const std::string& key) {
    std::vector<Ref> found;
    for (std::size_t i = 0; i < root_.items.size(); i += 2) {
      if (pickle_[root_.items[i]].text == key) {
        found.push_back(root_.items[i + 1]);
      }
    }
    if (found.size() != 1) {
      throw CheckpointError(fmt::format("found no key {}; the keys are: {}", key, entries_of(root_)));
    }
    const Value& named = pickle_[found.front()];
    if (named.kind != Kind::dictionary) {
      throw CheckpointError(fmt::format("{}: found {}, expected a dictionary of tensors", key, kind_of(named)));
    }
    if (!has_only_tensors(found.front())) {
      const Part part{.dictionary = found.front(), .keys = {key}};
      throw CheckpointError(others_in(part), hint_to_save(best_part(part)));
    }
    return named;
  }

  const Value& find_only() {
    if (has_only_tensors(pickle_.root)) {
      return root_;
    }
    std::vector<std::pair<std::string_view, Ref>> found;
    for (std::size_t i = 0; i < root_.items.size(); i += 2) {
      const Ref value = root_.items[i + 1];
      if (has_only_tensors(value) && !pickle_[value].items.empty()) {
        found.emplace_back(pickle_[root_.items[i]].text, value);
      }
    }
    if (found.size() == 1) {
      return pickle_[found.front().second];
    }
    const std::string count = fmt::format("found {} dictionaries of tensors, expected one; the keys are: {}",
                                          found.size(), entries_of(root_));
    if (!found.empty()) {
      throw CheckpointError(count, fmt::format("name one: load_tensors(file, \"{}\")", printable(found.front().first)));
    }
    const Part best = best_part({.dictionary = pickle_.root, .keys = {}});
    const bool is_mixed = tensors_in(best.dictionary) > 0 && !has_only_tensors(best.dictionary);
    throw CheckpointError(is_mixed ? others_in(best) : count, hint_to_save(best));
  }

  /// "model: found entries that are no tensors: epoch (an integer)"
  std::string others_in(const Part& part) const {
    std::string path;
    for (const std::string_view key : part.keys) {
      path += fmt::format("{}: ", printable(key.substr(0, 200)));
    }
    return fmt::format("{}found entries that are no tensors: {}", path,
                       entries_of(pickle_[part.dictionary], /*without_tensors=*/true));
  }

  /// How many entries of a dictionary are tensors with a name; 0 for any other value.
  std::size_t tensors_in(Ref ref) {
    const Value& value = pickle_[ref];
    if (value.kind != Kind::dictionary) {
      return 0;
    }
    const auto [known, is_new] = tensors_.try_emplace(ref, 0);
    for (std::size_t i = 0; is_new && i < value.items.size(); i += 2) {
      if (pickle_[value.items[i]].kind == Kind::text && is_tensor(pickle_[value.items[i + 1]])) {
        ++known->second;
      }
    }
    return known->second;
  }

  bool has_only_tensors(Ref ref) {
    const Value& value = pickle_[ref];
    return value.kind == Kind::dictionary && 2 * tensors_in(ref) == value.items.size();
  }

  /// "epoch (an integer), model (a dictionary)"
  std::string entries_of(const Value& dictionary, bool without_tensors = false) const {
    constexpr std::size_t kShown = 20;
    std::vector<std::string> entries;
    for (std::size_t i = 0; i < dictionary.items.size(); i += 2) {
      const Value& key = pickle_[dictionary.items[i]];
      const Value& value = pickle_[dictionary.items[i + 1]];
      if (without_tensors && key.kind == Kind::text && is_tensor(value)) {
        continue;
      }
      if (entries.size() == kShown) {
        entries.emplace_back("...");
        break;
      }
      entries.push_back(fmt::format("{} ({})", key_text(key), kind_of(value)));
    }
    return join(entries, ", ");
  }

  /// The dictionary with the most tensors: `outer`, one in it, or one in these.
  Part best_part(Part outer) {
    constexpr std::size_t kMaxKeys = 2;
    std::vector<Part> parts{std::move(outer)};
    std::unordered_set<Ref> seen{parts.front().dictionary};
    std::size_t best = 0;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      if (tensors_in(parts[part].dictionary) > tensors_in(parts[best].dictionary)) {
        best = part;
      }
      const std::vector<std::string_view> keys = parts[part].keys;
      const std::vector<Ref>& items = pickle_[parts[part].dictionary].items;
      for (std::size_t i = 0; keys.size() < kMaxKeys && i < items.size(); i += 2) {
        const Value& key = pickle_[items[i]];
        if (key.kind == Kind::text && pickle_[items[i + 1]].kind == Kind::dictionary &&
            seen.insert(items[i + 1]).second) {
          parts.push_back({.dictionary = items[i + 1], .keys = keys});
          parts.back().keys.push_back(key.text);
        }
      }
    }
    return parts[best];
  }

  std::string hint_to_save(const Part& part) {
    const std::vector<Ref>& items = pickle_[part.dictionary].items;
    if (std::ranges::any_of(items, [this](Ref item) { return is_other_tensor(pickle_[item]); })) {
      return "in Python, save plain tensors, which tensor.dequantize(), to_dense() and detach().clone() make";
    }
    if (tensors_in(part.dictionary) == 0) {
      return kSaveStateDict;
    }
    std::string python = part.keys.empty() ? "model.state_dict()" : "torch.load(old)";
    for (const std::string_view key : part.keys) {
      python += fmt::format("[\"{}\"]", printable(key.substr(0, 200)));
    }
    if (has_only_tensors(part.dictionary)) {
      return fmt::format("in Python, save that part alone: torch.save({}, \"weights.pt\")", python);
    }
    return fmt::format(
        "in Python, save the tensors alone: torch.save({{k: v for k, v in {}.items() if torch.is_tensor(v)}}, "
        "\"weights.pt\")",
        python);
  }

  const Pickle& pickle_;
  const Value& root_;
  std::unordered_map<Ref, std::size_t> tensors_{};  // of the dictionaries that were looked through
};

/// Reads the description of one tensor; messages begin with its name.
class TensorDescription {
 public:
  TensorDescription(const Pickle& pickle, std::string_view name) : pickle_(pickle), name_(name) {}

  PickledTensor read(const Value& value) const {
    const Value* made = &value;
    if (made->kind == Kind::object && made->text == kParameter) {
      made = &pickle_[arguments(*made, 1)[0]];
    }
    if (!is_tensor(*made) || made->text == kParameter) {
      fail(fmt::format("found {}, expected a tensor", kind_of(*made)));
    }
    // storage, offset, shape, strides, requires_grad, backward_hooks, (dtype,) and bits for lazy operations
    const bool has_dtype = made->text == kTensorWithDtype;
    const std::size_t fixed = has_dtype ? 7 : 6;
    const std::vector<Ref>& items = arguments(*made, fixed);
    if (items.size() > fixed && !pickle_[items[fixed]].items.empty()) {
      fail("it is a lazy conjugate or negation", "save tensor.resolve_conj().resolve_neg()");
    }
    PickledTensor tensor{
        .name = std::string(name_), .offset = size(items[1]), .shape = sizes(items[2]), .strides = sizes(items[3])};
    const std::vector<Ref>& storage = storage_items(items[0]);
    const std::string_view storage_type = pickle_[storage[1]].text;
    const bool is_untyped = storage_type == kUntypedStorage;
    const std::string_view dtype = is_untyped && has_dtype ? pickle_[items[6]].text : storage_type;
    const auto known = std::ranges::find_if(kPickledDtypes, [&](const PickledDtype& each) {
      return is_untyped ? dtype == "torch\n" + std::string(each.name) : dtype == each.storage;
    });
    if (known == kPickledDtypes.end()) {
      fail("found an unknown dtype: " + python_name(dtype), "convert the tensor before saving");
    }
    tensor.dtype = known->name;
    tensor.storage = pickle_[storage[2]].text;
    if (__builtin_mul_overflow(size(storage[4]), is_untyped ? 1 : known->bytes, &tensor.storage_bytes)) {
      fail("the storage has more than 2^63 bytes");
    }
    check_bounds(tensor, known->bytes);
    return tensor;
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& hint = {}) const {
    throw CheckpointError(printable(name_.substr(0, 1000)) + ": " + what, hint);
  }

  const std::vector<Ref>& arguments(const Value& object, std::size_t least) const {
    const std::vector<Ref>& items = pickle_[object.items[0]].items;
    if (items.size() < least) {
      fail(fmt::format("it has {} arguments, expected at least {}", items.size(), least));
    }
    return items;
  }

  // ("storage", type, key, device, number of elements)
  const std::vector<Ref>& storage_items(Ref ref) const {
    const Value& storage = pickle_[ref];
    if (storage.kind != Kind::storage || pickle_[storage.items[0]].items.size() != 5) {
      fail("its storage has no description");
    }
    const std::vector<Ref>& items = pickle_[storage.items[0]].items;
    if (const Value& name = pickle_[items[2]]; name.kind != Kind::text || name.text.size() > kMaxStorageName) {
      fail(fmt::format("its storage has no name of at most {} bytes", kMaxStorageName));
    }
    return items;
  }

  std::int64_t size(Ref ref) const {
    const Value& value = pickle_[ref];
    if (value.kind != Kind::integer || value.integer < 0) {
      fail("found a size, a stride or an offset that is no number from 0 to 2^63 - 1");
    }
    return value.integer;
  }

  std::vector<std::int64_t> sizes(Ref ref) const {
    const Value& tuple = pickle_[ref];
    if (tuple.kind != Kind::tuple || tuple.items.size() > kMaxPickledDimensions) {
      fail(fmt::format("its shape or its strides are no tuple of at most {} numbers", kMaxPickledDimensions));
    }
    return mapped(tuple.items, [this](Ref item) { return size(item); });
  }

  // The last element must be inside of the storage, and the number of bytes a number, even if a dimension is 0.
  void check_bounds(const PickledTensor& tensor, std::int64_t item_bytes) const {
    if (tensor.shape.size() != tensor.strides.size()) {
      fail("shape and strides have different lengths");
    }
    std::int64_t bytes = item_bytes;
    std::int64_t last = tensor.offset;
    bool is_huge = false;
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      const std::int64_t extent = std::max<std::int64_t>(tensor.shape[i], 1);
      std::int64_t distance = 0;
      is_huge = is_huge || __builtin_mul_overflow(bytes, extent, &bytes) ||
                __builtin_mul_overflow(extent - 1, tensor.strides[i], &distance) ||
                __builtin_add_overflow(last, distance, &last);
    }
    const bool is_empty = std::ranges::count(tensor.shape, 0) > 0;
    const std::int64_t elements = tensor.storage_bytes / item_bytes;
    if (is_huge || (is_empty ? tensor.offset > elements : last >= elements)) {
      fail(fmt::format("its elements are outside of its storage of {} bytes", tensor.storage_bytes));
    }
  }

  const Pickle& pickle_;
  std::string_view name_;
};

}  // namespace

std::vector<PickledTensor> parse_torch_pickle(std::string_view text, const std::string& key) {
  const Pickle pickle = parse_pickle(text);
  const Value& weights = WeightsSearch(pickle).find(key);
  std::vector<PickledTensor> tensors;
  std::unordered_set<std::string_view> names;
  for (std::size_t i = 0; i < weights.items.size(); i += 2) {
    const Value& name = pickle[weights.items[i]];
    if (!names.insert(name.text).second) {
      throw CheckpointError(fmt::format("found the key {} twice", key_text(name)));
    }
    tensors.push_back(TensorDescription(pickle, name.text).read(pickle[weights.items[i + 1]]));
  }
  return tensors;
}

}  // namespace lockstep
