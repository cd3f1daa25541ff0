#include "storage/torch_pickle.h"

#include <limits>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/message_of.h"
#include "support/pickle_text.h"

namespace lockstep {
namespace {

using namespace pickle;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

std::vector<PickledTensor> parse(const std::string& value, const std::string& key = {}) {
  return parse_torch_pickle(whole(value), key);
}

std::string fault(const std::string& value, const std::string& key = {}) {
  return message_of<CheckpointError>([&] { parse(value, key); });
}

std::string fault_of_tensor(const std::string& tensor) { return fault(dictionary({{"w", tensor}}), ""); }

TEST(TorchPickle, DescribesATensor) {
  const auto tensors = parse(dictionary({{"w", tensor(storage("BFloat16Storage", "7", 30), 5, {2, 3}, {10, 1})}}));
  ASSERT_EQ(tensors.size(), 1U);
  const PickledTensor& w = tensors.front();
  EXPECT_EQ(w.name, "w");
  EXPECT_EQ(w.dtype, "bfloat16");
  EXPECT_EQ(w.storage, "7");
  EXPECT_EQ(w.storage_bytes, 60);
  EXPECT_EQ(w.offset, 5);
  EXPECT_THAT(w.shape, ElementsAre(2, 3));
  EXPECT_THAT(w.strides, ElementsAre(10, 1));
}

TEST(TorchPickle, ReadsParametersAndUntypedStorages) {
  const std::string untyped =
      tuple({text("storage"), global("torch.storage", "UntypedStorage"), text("1"), text("cuda:0"), integer(4)}) + "Q";
  const auto hooks = made("collections", "OrderedDict", {});
  const auto tensors = parse(dictionary(
      {{"p", made("torch._utils", "_rebuild_parameter", {two_floats(), "\x88", hooks})},
       {"u", made("torch._utils", "_rebuild_tensor_v3",
                  {untyped, integer(0), integers({2}), integers({1}), "\x89", hooks, global("torch", "uint16")})}}));
  ASSERT_EQ(tensors.size(), 2U);
  EXPECT_EQ(tensors[0].dtype, "float32");
  EXPECT_EQ(tensors[1].dtype, "uint16");
  EXPECT_EQ(tensors[1].storage_bytes, 4);
  for (const std::string dtype : {"complex32", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"}) {
    const std::string tensor =
        made("torch._utils", "_rebuild_tensor_v3",
             {untyped, integer(0), integers({1}), integers({1}), "\x89", hooks, global("torch", dtype)});
    EXPECT_EQ(parse(dictionary({{"t", tensor}})).front().dtype, dtype);
  }
}

TEST(TorchPickle, FindsTheOnlyDictionaryOfTensors) {
  const std::string weights = dictionary({{"w", two_floats()}});
  const std::string options = made("argparse", "Namespace", {}) + dictionary({{"lr", "G" + std::string(8, 0)}}) + "b";
  const std::string optimizer = dictionary({{"state", dictionary({})}, {"lr", integer(1)}});
  const std::string file =
      dictionary({{"args", options}, {"epoch", integer(3)}, {"model", weights}, {"optimizer", optimizer}});
  EXPECT_EQ(parse(file).front().name, "w");
  EXPECT_EQ(parse(file, "model").front().name, "w");
  EXPECT_THAT(parse("}"), IsEmpty());
  EXPECT_THAT(fault(file, "net"),
              HasSubstr("found no key net; the keys are: args (the Python object argparse.Namespace), "
                        "epoch (an integer), model (a dictionary), optimizer (a dictionary)"));
  EXPECT_THAT(fault(file, "epoch"), HasSubstr("epoch: found an integer, expected a dictionary of tensors"));
  EXPECT_THAT(fault(file, "optimizer"),
              HasSubstr("optimizer: found entries that are no tensors: state (a dictionary), lr (an integer)"));
  EXPECT_THAT(fault(dictionary({{"a", weights}, {"b", weights}})),
              AllOf(HasSubstr("found 2 dictionaries of tensors, expected one; the keys are: a (a dictionary)"),
                    HasSubstr("name one: load_tensors(file, \"a\")")));
  EXPECT_THAT(fault(dictionary({{"a", dictionary({{"b", weights}})}})),
              AllOf(HasSubstr("found 0 dictionaries of tensors"),
                    HasSubstr(R"(save that part alone: torch.save(torch.load(old)["a"]["b"], "weights.pt"))")));
}

TEST(TorchPickle, NamesWhatIsNoTensorBesideTheTensors) {
  const std::string state =
      dictionary({{"w", two_floats()}, {"b", two_floats()}, {"_extra_state", "N"}, {"version", integer(2)}});
  const std::string others = "found entries that are no tensors: _extra_state (None or a number), version (an integer)";
  EXPECT_THAT(fault(state),
              AllOf(testing::StartsWith(others),
                    HasSubstr("torch.save({k: v for k, v in model.state_dict().items() if torch.is_tensor(v)}, ")));
  const std::string file = dictionary({{"epoch", integer(3)}, {"rng", two_floats()}, {"state_dict", state}});
  for (const std::string key : {"", "state_dict"}) {
    EXPECT_THAT(fault(file, key),
                AllOf(testing::StartsWith("state_dict: " + others),
                      HasSubstr(R"({k: v for k, v in torch.load(old)["state_dict"].items() if torch.is_tensor(v)})")));
  }
}

// A search through it for each of these names would take minutes.
TEST(TorchPickle, LooksOnceThroughADictionaryThatHasManyNames) {
  constexpr int kCount = 200'000;
  std::string inner;
  std::string outer;
  for (int i = 0; i < kCount; ++i) {
    inner += text("w") + "h\1";
    outer += text("a") + "h\2";
  }
  const std::string first = text("w") + two_floats() + "q\1";
  EXPECT_THAT(fault("}(" + text("b") + "}q\2(" + first + inner + "u" + outer + "u"),
              HasSubstr("found 200001 dictionaries of tensors"));
}

TEST(TorchPickle, NamesPythonObjectsAndMakesNone) {
  const std::string save = "torch.save(model.state_dict()";
  EXPECT_THAT(fault(made("my_module", "MyModel", {}) + "}b"),
              AllOf(HasSubstr("found the Python object my_module.MyModel, expected"), HasSubstr(save)));
  EXPECT_THAT(fault(global("my_module", "MyModel") + ")\x81"), HasSubstr("the Python object my_module.MyModel"));
  EXPECT_THAT(fault(made("os", "system", {text("true")})), HasSubstr("the Python object os.system"));
  EXPECT_THAT(fault(global("os", "system")), HasSubstr("the Python name os.system"));
  EXPECT_THAT(fault(made("evil\x1b[2J", "x", {})), HasSubstr("the Python object evil.x"));
  EXPECT_THAT(
      fault(dictionary(
                {{"model", dictionary({{"w", two_floats()}, {"q", made("torch._utils", "_rebuild_qtensor", {})}})}}),
            "model"),
      AllOf(HasSubstr("model: found entries that are no tensors: q (the Python object torch._utils._rebuild_qtensor)"),
            HasSubstr("save plain tensors")));
  EXPECT_THAT(fault(two_floats()), HasSubstr("found a tensor, expected a dictionary"));
}

TEST(TorchPickle, RefusesElementsOutsideOfTheStorage) {
  const auto of = [](std::int64_t offset, const std::vector<std::int64_t>& shape,
                     const std::vector<std::int64_t>& strides) {
    return fault_of_tensor(tensor(storage("FloatStorage", "0", 6), offset, shape, strides));
  };
  const auto outside = HasSubstr("w: its elements are outside of its storage of 24 bytes");
  EXPECT_EQ(of(0, {2, 3}, {3, 1}), "no error");
  EXPECT_EQ(of(5, {}, {}), "no error");
  EXPECT_EQ(of(6, {0}, {1}), "no error");
  EXPECT_EQ(of(1, {1000}, {0}), "no error") << "an expanded tensor";
  EXPECT_THAT(of(1, {2, 3}, {3, 1}), outside);
  EXPECT_THAT(of(6, {}, {}), outside);
  EXPECT_THAT(of(7, {0}, {1}), outside);
  EXPECT_THAT(of(0, {2}, {kHuge}), outside);
  EXPECT_THAT(of(1, {2}, {kHuge}), outside);
  EXPECT_THAT(of(kHuge, {1}, {1}), outside);
  EXPECT_THAT(of(0, {kHuge, kHuge}, {0, 0}), outside);
  EXPECT_THAT(of(0, {kHuge, kHuge, 0}, {0, 0, 1}), outside);
  const auto no_number = HasSubstr("no number from 0 to 2^63 - 1");
  EXPECT_THAT(of(-1, {1}, {1}), no_number);
  EXPECT_THAT(of(0, {-1}, {1}), no_number);
  EXPECT_THAT(of(5, {2}, {-1}), no_number);
  EXPECT_THAT(of(0, {2, 3}, {1}), HasSubstr("different lengths"));
  EXPECT_THAT(of(0, std::vector<std::int64_t>(65, 1), std::vector<std::int64_t>(65, 1)), HasSubstr("at most 64"));
  EXPECT_THAT(fault_of_tensor(tensor(storage("FloatStorage", "0", kHuge), 0, {1}, {1})), HasSubstr("2^63 bytes"));
}

TEST(TorchPickle, RefusesDamagedDescriptions) {
  EXPECT_THAT(fault_of_tensor(tensor(storage("OddStorage", "0", 2), 0, {2}, {1})),
              HasSubstr("unknown dtype: torch.OddStorage"));
  EXPECT_THAT(fault_of_tensor(tensor(text("0"), 0, {2}, {1})), HasSubstr("w: its storage has no description"));
  EXPECT_THAT(fault_of_tensor(tensor(storage("FloatStorage", std::string(65, '0'), 2), 0, {2}, {1})),
              HasSubstr("w: its storage has no name of at most 64 bytes"));
  EXPECT_THAT(fault_of_tensor(made("torch._utils", "_rebuild_tensor_v2", {})), HasSubstr("w: it has 0 arguments"));
  EXPECT_THAT(fault_of_tensor(made("torch._utils", "_rebuild_parameter", {text("x")})), HasSubstr("found a text"));
  EXPECT_THAT(fault(dictionary({{"w", two_floats()}, {"w", two_floats()}})), HasSubstr("found the key w twice"));
  const std::string lazy = made("torch._utils", "_rebuild_tensor_v2",
                                {storage("ComplexFloatStorage", "0", 2), integer(0), integers({2}), integers({1}),
                                 "\x89", "}", dictionary({{"conj", "\x88"}})});
  EXPECT_THAT(fault_of_tensor(lazy), AllOf(HasSubstr("lazy conjugate"), HasSubstr("resolve_conj()")));
}

TEST(TorchPickle, RefusesWhatIsNoPickleOfTorchSave) {
  const auto raw = [](const std::string& pickle) {
    return message_of<CheckpointError>([&] { parse_torch_pickle(pickle, ""); });
  };
  EXPECT_THAT(raw("\x80\x04}."), AllOf(HasSubstr("not a pickle of protocol 2"), HasSubstr("pickle_protocol")));
  EXPECT_THAT(raw(""), HasSubstr("not a pickle of protocol 2"));
  EXPECT_THAT(fault("i"), HasSubstr("at byte 3: found the opcode 0x69, which torch.save does not write"));
  EXPECT_THAT(fault("h\5"), HasSubstr("found no value with the number 5"));
  EXPECT_THAT(fault("}q\1("), HasSubstr("does not end with one value"));
  EXPECT_THAT(fault("}}"), HasSubstr("does not end with one value"));
  EXPECT_THAT(raw("\x80\2}.}"), HasSubstr("does not end with one value"));
  for (const std::string no_value : {"\x85", "N\x86", "R", "}R", "b", "a", "s", "q\1", "Q", "}(b", "((\x85"}) {
    EXPECT_THAT(fault(no_value), HasSubstr("a value is missing on the stack")) << no_value;
  }
  for (const std::string no_mark : {"t", "e", "u"}) {
    EXPECT_THAT(fault(no_mark), HasSubstr("a mark is missing")) << no_mark;
  }
  EXPECT_THAT(fault("})R"), HasSubstr("a call without a function"));
  EXPECT_THAT(fault("}" + text("key") + "a"), HasSubstr("items for a value that cannot have them"));
  EXPECT_THAT(fault("}(" + text("key") + "u"), HasSubstr("a key without a value"));
  EXPECT_THAT(fault("X\xff\xff\xff\xff"), HasSubstr("cut off"));
}

TEST(TorchPickle, FollowsNoCircles) {
  EXPECT_THAT(fault("}q\1(" + text("me") + "h\1u"), HasSubstr("found 0 dictionaries of tensors"));
  EXPECT_THAT(fault("}q\1(" + text("me") + "h\1u", "me"),
              HasSubstr("me: found entries that are no tensors: me (a dictionary)"));
  EXPECT_THAT(fault("]q\1h\1a"), HasSubstr("found a list"));
  EXPECT_THAT(fault(")" + std::string(100'000, '\x85')), HasSubstr("found a tuple"));
}

TEST(TorchPickle, RefusesEveryTruncation) {
  const std::string pickle = whole(dictionary({{"model", dictionary({{"w", two_floats()}})}, {"epoch", integer(3)}}));
  ASSERT_EQ(parse_torch_pickle(pickle, "").size(), 1U);
  for (std::size_t size = 0; size < pickle.size(); ++size) {
    EXPECT_THROW(parse_torch_pickle(pickle.substr(0, size), ""), CheckpointError) << size;
  }
}

}  // namespace
}  // namespace lockstep
