#include "storage/torch_pickle.h"

#include <algorithm>
#include <array>
#include <cstddef>
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
constexpr std::array<PickledDtype, 17> kPickledDtypes{{{"float32", "torch\nFloatStorage", 4},
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
                                                       {"float8_e4m3fn", "", 1},
                                                       {"float8_e5m2", "", 1}}};

bool is_tensor(const Value& value) {
  return value.kind == Kind::object &&
         (value.text == kTensor || value.text == kTensorWithDtype || value.text == kParameter);
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
  std::string name(value.text.substr(0, 200));
  std::ranges::replace(name, '\n', '.');
  return (value.kind == Kind::global ? "the Python name " : "the Python object ") + printable(name);
}

std::string key_text(const Value& key) { return key.kind == Kind::text ? printable(key.text) : kind_of(key); }

bool has_only_tensors(const Pickle& pickle, const Value& value) {
  if (value.kind != Kind::dictionary) {
    return false;
  }
  for (std::size_t i = 0; i < value.items.size(); i += 2) {
    if (pickle[value.items[i]].kind != Kind::text || !is_tensor(pickle[value.items[i + 1]])) {
      return false;
    }
  }
  return true;
}

/// "epoch (an integer), model (a dictionary)"
std::string keys_of(const Pickle& pickle, const Value& dictionary) {
  constexpr std::size_t kShown = 20;
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < std::min(dictionary.items.size(), 2 * kShown); i += 2) {
    keys.push_back(
        fmt::format("{} ({})", key_text(pickle[dictionary.items[i]]), kind_of(pickle[dictionary.items[i + 1]])));
  }
  if (dictionary.items.size() > 2 * kShown) {
    keys.emplace_back("...");
  }
  return join(keys, ", ");
}

const Value& find_weights(const Pickle& pickle, const std::string& key) {
  const Value& root = pickle[pickle.root];
  if (root.kind != Kind::dictionary) {
    throw CheckpointError(fmt::format("found {}, expected a dictionary of tensors", kind_of(root)), kSaveStateDict);
  }
  if (key.empty() && has_only_tensors(pickle, root)) {
    return root;
  }
  std::vector<std::pair<std::string_view, Ref>> found;
  for (std::size_t i = 0; i < root.items.size(); i += 2) {
    const std::string_view name = pickle[root.items[i]].text;
    const Value& value = pickle[root.items[i + 1]];
    if (key.empty() ? has_only_tensors(pickle, value) && !value.items.empty() : name == key) {
      found.emplace_back(name, root.items[i + 1]);
    }
  }
  if (found.size() == 1) {
    return pickle[found.front().second];
  }
  if (!key.empty()) {
    throw CheckpointError(fmt::format("found no key {}; the keys are: {}", key, keys_of(pickle, root)));
  }
  throw CheckpointError(fmt::format("found {} dictionaries of tensors, expected one; the keys are: {}", found.size(),
                                    keys_of(pickle, root)),
                        found.empty()
                            ? kSaveStateDict
                            : fmt::format("name one: load_tensors(file, \"{}\")", printable(found.front().first)));
}

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
      fail(fmt::format("found {}, expected a tensor", kind_of(*made)), kSaveStateDict);
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
    if (known == kPickledDtypes.end() || pickle_[storage[2]].kind != Kind::text) {
      fail("found an unknown dtype: " + printable(dtype.substr(0, 200)), "convert the tensor before saving");
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
    return pickle_[storage.items[0]].items;
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
  const Value& weights = find_weights(pickle, key);
  if (weights.kind != Kind::dictionary) {
    throw CheckpointError(fmt::format("{}: found {}, expected a dictionary of tensors", key, kind_of(weights)));
  }
  std::vector<PickledTensor> tensors;
  std::unordered_set<std::string_view> names;
  for (std::size_t i = 0; i < weights.items.size(); i += 2) {
    const Value& name = pickle[weights.items[i]];
    if (name.kind != Kind::text || !names.insert(name.text).second) {
      throw CheckpointError(fmt::format("found the key {} twice, or it is no text", key_text(name)));
    }
    tensors.push_back(TensorDescription(pickle, name.text).read(pickle[weights.items[i + 1]]));
  }
  return tensors;
}

}  // namespace lockstep
