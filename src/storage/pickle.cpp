#include "storage/pickle.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/little_endian.h"

namespace lockstep {
namespace {

using Ref = PickleRef;
using Value = PickleValue;
using Kind = PickleValue::Kind;

constexpr std::size_t kMaxPickleBytes = 64 << 20;
constexpr std::size_t kMaxPickledValues = 4'000'000;
constexpr std::string_view kOrderedDict = "collections\nOrderedDict";

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

}  // namespace

Pickle parse_pickle(std::string_view text) { return PickleParser(text).parse(); }

}  // namespace lockstep
