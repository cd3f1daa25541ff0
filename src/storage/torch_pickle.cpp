#include "storage/torch_pickle.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/text.h"
#include "storage/little_endian.h"

namespace lockstep {
namespace {

constexpr std::size_t kMaxPickleBytes = 64 << 20;
constexpr std::size_t kMaxPickledValues = 4'000'000;
constexpr std::size_t kMaxPickledDimensions = 64;  // LibTorch's limit
constexpr const char* kSaveStateDict =
    "in Python, save the weights alone: torch.save(model.state_dict(), \"weights.pt\")";

/// A class or a function is named as in the pickle: module, line feed, name.
constexpr std::string_view kOrderedDict = "collections\nOrderedDict";
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

using Ref = std::uint32_t;  // the index of a value

struct Value {
  enum class Kind : std::uint8_t { other, integer, text, tuple, list, dictionary, global, storage, object };

  Kind kind = Kind::other;   ///< other: None, a truth value, a fraction, a large integer
  std::int64_t integer = 0;  ///< of an integer
  std::string_view text{};   ///< of a text; of a global; what made an object
  std::vector<Ref> items{};  ///< of a tuple or a list; key, value, key, value, ...; the arguments of an object
};
using Kind = Value::Kind;

/// All values of a pickle. Values refer to others by index, also in circles; nothing here follows them further than a
/// known number of steps.
struct Pickle {
  std::vector<Value> values{};
  Ref root = 0;

  const Value& operator[](Ref ref) const { return values[ref]; }
};

class PickleParser {
 public:
  explicit PickleParser(std::string_view text) : text_(text), rest_(text) {}

  Pickle parse() {
    if (text_.size() > kMaxPickleBytes) {
      throw CheckpointError(fmt::format("found {} bytes, expected at most {}", text_.size(), kMaxPickleBytes));
    }
    constexpr std::string_view kProtocol2 = "\x80\x02";
    if (!text_.starts_with(kProtocol2)) {
      throw CheckpointError("it is not a pickle of protocol 2", "save it again without the argument pickle_protocol");
    }
    rest_.remove_prefix(kProtocol2.size());
    while (step(take(1).front())) {
    }
    if (stack_.size() != 1 || !marks_.empty() || !rest_.empty()) {
      fail("it does not end with one value");
    }
    pickle_.root = stack_.front();
    return std::move(pickle_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw CheckpointError(fmt::format("at byte {}: {}", text_.size() - rest_.size(), what),
                          "the file is damaged, or it was not written by torch.save");
  }

  std::string_view take(std::uint64_t size) {
    if (size > rest_.size()) {
      fail("the pickle is cut off");
    }
    const std::string_view taken = rest_.substr(0, static_cast<std::size_t>(size));
    rest_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view take_line() {
    const std::string_view line = take(std::min(rest_.find('\n'), rest_.size()));
    take(1);
    return line;
  }

  void push(Value value) {
    if (pickle_.values.size() == kMaxPickledValues) {
      fail(fmt::format("found more than {} values", kMaxPickledValues));
    }
    stack_.push_back(static_cast<Ref>(pickle_.values.size()));
    pickle_.values.push_back(std::move(value));
  }
  void push_integer(std::int64_t value) { push({.kind = Kind::integer, .integer = value}); }

  // The place in the stack above the last mark: a value below it cannot be taken.
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  Ref top() const {
    if (stack_.size() <= floor()) {
      fail("a value is missing on the stack");
    }
    return stack_.back();
  }

  Ref pop() {
    const Ref ref = top();
    stack_.pop_back();
    return ref;
  }

  std::vector<Ref> pop_several(std::size_t count) {
    if (stack_.size() - floor() < count) {
      fail("a value is missing on the stack");
    }
    const auto begin = stack_.end() - static_cast<std::ptrdiff_t>(count);
    std::vector<Ref> values(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    return values;
  }

  std::vector<Ref> pop_to_mark() {
    if (marks_.empty()) {
      fail("a mark is missing");
    }
    std::vector<Ref> values = pop_several(stack_.size() - marks_.back());
    marks_.pop_back();
    return values;
  }

  void remember(std::uint64_t number) { memo_[number] = top(); }

  void recall(std::uint64_t number) {
    const auto found = memo_.find(number);
    if (found == memo_.end()) {
      fail(fmt::format("found no value with the number {}", number));
    }
    stack_.push_back(found->second);
  }

  // Adds to a list or a dictionary. An object is not made, so it keeps nothing.
  void extend(Kind kind, const std::vector<Ref>& items) {
    Value& target = pickle_.values[top()];
    if (target.kind == kind) {
      target.items.insert(target.items.end(), items.begin(), items.end());
    } else if (target.kind != Kind::object) {
      fail("items for a value that cannot have them");
    }
    if (kind == Kind::dictionary && items.size() % 2 != 0) {
      fail("a key without a value");
    }
  }

  // Where Python would call a function or make an object: an ordered dictionary is a dictionary, all else is an object
  // of which only the maker and the arguments are known.
  void make_object() {
    const Ref arguments = pop();
    const Value& maker = pickle_[pop()];
    if (pickle_[arguments].kind != Kind::tuple || (maker.kind != Kind::global && maker.kind != Kind::object)) {
      fail("a call without a function or without arguments");
    }
    if (maker.text == kOrderedDict && pickle_[arguments].items.empty()) {
      push({.kind = Kind::dictionary});
    } else {
      push({.kind = Kind::object, .text = maker.text, .items = {arguments}});
    }
  }

  // Executes one opcode, named as in Python's pickletools; false: it was the last.
  bool step(char opcode) {
    switch (static_cast<unsigned char>(opcode)) {
      case 'N':   // NONE
      case 0x88:  // NEWTRUE
      case 0x89:  // NEWFALSE
        push({});
        break;
      case 'G':  // BINFLOAT
        take(8);
        push({});
        break;
      case 'K':  // BININT1
        push_integer(static_cast<std::int64_t>(little_endian(take(1))));
        break;
      case 'M':  // BININT2
        push_integer(static_cast<std::int64_t>(little_endian(take(2))));
        break;
      case 'J':  // BININT
        push_integer(signed_little_endian(take(4)));
        break;
      case 0x8a: {  // LONG1
        const std::string_view bytes = take(little_endian(take(1)));
        bytes.size() <= 8 ? push_integer(signed_little_endian(bytes)) : push({});
        break;
      }
      case 'X':  // BINUNICODE
        push({.kind = Kind::text, .text = take(little_endian(take(4)))});
        break;
      case 'c': {  // GLOBAL
        const std::string_view module = take_line();
        const std::string_view name = take_line();
        push({.kind = Kind::global, .text = {module.data(), module.size() + 1 + name.size()}});
        break;
      }
      case '(':  // MARK
        marks_.push_back(stack_.size());
        break;
      case ')':  // EMPTY_TUPLE
        push({.kind = Kind::tuple});
        break;
      case 0x85:  // TUPLE1
        push({.kind = Kind::tuple, .items = pop_several(1)});
        break;
      case 0x86:  // TUPLE2
        push({.kind = Kind::tuple, .items = pop_several(2)});
        break;
      case 0x87:  // TUPLE3
        push({.kind = Kind::tuple, .items = pop_several(3)});
        break;
      case 't':  // TUPLE
        push({.kind = Kind::tuple, .items = pop_to_mark()});
        break;
      case ']':  // EMPTY_LIST
        push({.kind = Kind::list});
        break;
      case 'a':  // APPEND
        extend(Kind::list, pop_several(1));
        break;
      case 'e':  // APPENDS
        extend(Kind::list, pop_to_mark());
        break;
      case '}':  // EMPTY_DICT
        push({.kind = Kind::dictionary});
        break;
      case 's':  // SETITEM
        extend(Kind::dictionary, pop_several(2));
        break;
      case 'u':  // SETITEMS
        extend(Kind::dictionary, pop_to_mark());
        break;
      case 'q':  // BINPUT
        remember(little_endian(take(1)));
        break;
      case 'r':  // LONG_BINPUT
        remember(little_endian(take(4)));
        break;
      case 'h':  // BINGET
        recall(little_endian(take(1)));
        break;
      case 'j':  // LONG_BINGET
        recall(little_endian(take(4)));
        break;
      case 'Q':  // BINPERSID
        push({.kind = Kind::storage, .items = {pop()}});
        break;
      case 'R':   // REDUCE
      case 0x81:  // NEWOBJ
        make_object();
        break;
      case 'b':  // BUILD: attributes, such as the version numbers of a state dict
        pop();
        top();
        break;
      case '.':  // STOP
        return false;
      default:
        fail(fmt::format("found the opcode {:#04x}, which torch.save does not write",
                         static_cast<unsigned char>(opcode)));
    }
    return true;
  }

  std::string_view text_;
  std::string_view rest_;
  Pickle pickle_{};
  std::vector<Ref> stack_{};
  std::vector<std::size_t> marks_{};  // sizes of the stack
  std::unordered_map<std::uint64_t, Ref> memo_{};
};

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
    std::vector<std::int64_t> result;
    for (const Ref item : tuple.items) {
      result.push_back(size(item));
    }
    return result;
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
  const Pickle pickle = PickleParser(text).parse();
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
