#include <type_traits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/config/device_spec.h>
#include <lockstep/config/train_config.h>

namespace lockstep {
namespace {

using Kind = DeviceSpec::Kind;
using testing::ElementsAre;
using testing::HasSubstr;

static_assert(!std::is_constructible_v<DeviceSpec, bool>);
static_assert(!std::is_constructible_v<DeviceSpec, float>);
static_assert(!std::is_constructible_v<DeviceSpec, double>);
static_assert(!std::is_constructible_v<DeviceSpec, std::nullptr_t>);
static_assert(!std::is_constructible_v<DeviceSpec, std::vector<bool>>);
static_assert(!std::is_constructible_v<DeviceSpec, std::vector<std::string>>);
static_assert(!std::is_constructible_v<DeviceSpec, std::initializer_list<bool>>);
static_assert(!std::is_constructible_v<DeviceSpec, std::initializer_list<const char*>>);
static_assert(std::is_constructible_v<DeviceSpec, int>);
static_assert(std::is_convertible_v<int, DeviceSpec> && std::is_convertible_v<const char*, DeviceSpec>);
static_assert(std::is_convertible_v<std::vector<int>, DeviceSpec>);

template <class T>
concept BracedAs = requires(T value) {
  DeviceSpec{value};
};
static_assert(!BracedAs<bool> && !BracedAs<double> && BracedAs<int>);

std::string found(const DeviceSpec& spec) {
  if (!spec.problems().empty()) {
    return "refused";
  }
  switch (spec.kind()) {
    case Kind::automatic:
      return "auto";
    case Kind::cpu:
      return "cpu";
    case Kind::all:
      return "all";
    case Kind::count:
      return "first " + std::to_string(spec.count());
    case Kind::usable:
      return "usable " + std::to_string(spec.count());
    case Kind::most_free:
      return "free " + std::to_string(spec.count()) + " " + std::to_string(spec.min_free_bytes());
    case Kind::indices: {
      std::string text = "gpus";
      for (const int index : spec.indices()) {
        text += " " + std::to_string(index);
      }
      return text;
    }
  }
  return "unknown";
}

TEST(DeviceSpec, ParsesEveryText) {
  const std::pair<const char*, const char*> cases[] = {
      {"auto", "auto"},
      {" AUTO ", "auto"},
      {"cpu", "cpu"},
      {"1", "first 1"},
      {"3", "first 3"},
      {" 3 ", "first 3"},
      {"16", "first 16"},
      {"17", "first 17"},
      {"-1", "all"},
      {" -1 ", "all"},
      {"1,3", "gpus 1 3"},
      {"1, 3", "gpus 1 3"},
      {"3,1", "gpus 3 1"},
      {"2,", "gpus 2"},
      {"0,", "gpus 0"},
      {"0,2,", "gpus 0 2"},
      {"1,2,19", "gpus 1 2 19"},
      {"[0]", "gpus 0"},
      {"[3]", "gpus 3"},
      {"[1,3]", "gpus 1 3"},
      {"[1, 3]", "gpus 1 3"},
      {"(1,3)", "gpus 1 3"},
      {"{1,3}", "gpus 1 3"},
      {"(2,)", "gpus 2"},
      {"0-3", "gpus 0 1 2 3"},
      {"2-2", "gpus 2"},
      {"0 - 2", "gpus 0 1 2"},
      {"5,0-2", "gpus 5 0 1 2"},
      {"cuda:0", "gpus 0"},
      {"cuda:1", "gpus 1"},
      {"CUDA:0,2-3", "gpus 0 2 3"},
      {"cuda:0,cuda:1", "gpus 0 1"},
      {"usable:2", "usable 2"},
      {"free:2", "free 2 0"},
      {"free:2@8GiB", "free 2 8589934592"},
      {"free:1@512 MiB", "free 1 536870912"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(found(DeviceSpec(text)), expected) << '"' << text << '"';
  }
  EXPECT_EQ(DeviceSpec("0-1023").indices().size(), 1024U);
}

TEST(DeviceSpec, AcceptsValuesInCode) {
  EXPECT_EQ(found(DeviceSpec()), "auto");
  EXPECT_EQ(found(4), "first 4");
  EXPECT_EQ(found(1), "first 1");
  EXPECT_EQ(found(-1), "all");
  EXPECT_EQ(found({0, 2}), "gpus 0 2");
  EXPECT_EQ(found({3, 1}), "gpus 3 1");
  EXPECT_EQ(found(DeviceSpec{2}), "gpus 2");
  EXPECT_EQ(found(std::vector<int>{0}), "gpus 0");
  const TrainConfig config{.devices = {0, 2}};
  EXPECT_EQ(found(config.devices), "gpus 0 2");
  EXPECT_EQ(found(TrainConfig{.devices = 2}.devices), "first 2");
  EXPECT_EQ(found(TrainConfig{.devices = "free:1"}.devices), "free 1 0");

  EXPECT_EQ(found(0), "refused");
  EXPECT_EQ(found(-2), "refused");
  EXPECT_EQ(found(-16), "refused");
  EXPECT_EQ(found({0, 0}), "refused");
  EXPECT_EQ(found({-1, 0}), "refused");
  EXPECT_EQ(found(std::vector<int>{}), "refused");
}

TEST(DeviceSpec, RejectsInvalidTextsWithAHint) {
  struct Case {
    const char* text;
    const char* why;
    const char* hint;
  };
  const char* const nothing = "this requests no device";
  const char* const all_or_one = "use auto or -1 for all GPUs, \"0,\" for GPU 0";
  const char* const examples = "use auto, a number of devices such as 2, or GPU indices such as 0,2 or 0-3";
  const Case cases[] = {
      {"0", nothing, all_or_one},
      {" 0 ", nothing, all_or_one},
      {"", nothing, all_or_one},
      {"  ", nothing, all_or_one},
      {"[]", nothing, all_or_one},
      {"()", nothing, all_or_one},
      {"{}", nothing, all_or_one},
      {"[ ]", nothing, all_or_one},
      {",", nothing, all_or_one},
      {"none", nothing, all_or_one},
      {"-2", "found -2, expected a number of devices", "use -1 for all GPUs"},
      {"-16", "found -16, expected a number of devices", "use -1 for all GPUs"},
      {"-1,", "found -1, expected a GPU index of 0 or more", "use -1 alone for all GPUs"},
      {"[-1]", "found -1, expected a GPU index of 0 or more", "use -1 alone for all GPUs"},
      {"0,-2", "found -2, expected a GPU index of 0 or more", "use -1 alone for all GPUs"},
      {"0,0", "GPU 0 appears twice", "list every GPU once; each GPU runs one rank"},
      {"0-3,2", "GPU 2 appears twice", "list every GPU once; each GPU runs one rank"},
      {"1,,3", "empty entry in the list", "use 1,3"},
      {"1, ,3", "empty entry in the list", "use 1,3"},
      {",1", "empty entry in the list", "use 1,"},
      {"1,,", "empty entry in the list", "use 1,"},
      {",,", "empty entry in the list", examples},
      {"+1", "found +1, expected a number without a sign", "use 1"},
      {"1.0", "found 1.0, expected a whole number", examples},
      {"0.1", "found 0.1, expected a whole number", examples},
      {"a", "found \"a\", expected GPU indices", examples},
      {"true", "found \"true\", expected GPU indices", examples},
      {"['0']", "found \"'0'\", expected GPU indices", examples},
      {"0x1", "found \"0x1\", expected GPU indices", examples},
      {"[0", "found \"[0\", expected GPU indices", examples},
      {"-", "found \"-\", expected GPU indices", examples},
      {"1;2", "found \"1;2\", expected a list with commas", "use 1,2"},
      {"1 2", "found \"1 2\", expected a list with commas", "use 1,2"},
      {"3-1", "range 3-1 is descending", "use 1-3"},
      {"2-", "found \"2-\", expected GPU indices", examples},
      {"0--3", "found \"0--3\", expected GPU indices", examples},
      {"0-2147483647", "range 0-2147483647 contains 2147483648 GPUs, the limit is 1024", "use -1 for all GPUs"},
      {"0-1023,2000-2010", "more than 1024 GPUs are listed", "use -1 for all GPUs"},
      {"99999999999", "the number of devices is out of range", examples},
      {"99999999999999999999", "the number of devices is out of range", examples},
      {"gpu", "expected GPUs by number", "use -1 for all GPUs, 1 for the first, \"0,\" for GPU 0"},
      {"gpu:0", "expected GPU indices", "use cuda:0"},
      {"cuda:", "found \"\", expected GPU indices", examples},
      {"cpu:2", "CPU ranks have no indices", "use --compute_setup cpu --devices 2 for two CPU ranks"},
      {"usable", "expected a number of GPUs", "use for example usable:2"},
      {"usable:0", "expected a number of GPUs of 1 or more after the colon", "use for example usable:2"},
      {"usable:-1", "expected a number of GPUs of 1 or more after the colon", "use for example usable:2"},
      {"usable:2@8GiB", "usable does not accept a memory size", "use free:2@8gib"},
      {"free:", "expected a number of GPUs of 1 or more after the colon", "use for example free:2 or free:2@8GiB"},
      {"free:2@", "found \"\", expected a memory size", "use for example free:2@8GiB"},
      {"free:2@8apples", "found \"8apples\", expected a memory size", "use for example free:2@8GiB"},
  };
  for (const Case& row : cases) {
    const DeviceSpec spec(row.text);
    ASSERT_EQ(spec.problems().size(), 1U) << '"' << row.text << '"';
    EXPECT_THAT(spec.problems()[0].what, testing::EndsWith(std::string(": ") + row.why)) << '"' << row.text << '"';
    EXPECT_EQ(spec.problems()[0].hint, row.hint) << '"' << row.text << '"';
  }
  EXPECT_EQ(DeviceSpec("1,,3").problems()[0].what, "--devices 1,,3: empty entry in the list");
  EXPECT_EQ(DeviceSpec("").problems()[0].what, "--devices \"\": this requests no device");
  EXPECT_EQ(DeviceSpec({0, 0}).problems()[0].what, "--devices 0,0: GPU 0 appears twice");
  EXPECT_EQ(DeviceSpec(std::vector<int>{-1}).problems()[0].what,
            "--devices -1,: found -1, expected a GPU index of 0 or more");
  EXPECT_THAT(DeviceSpec("\x1b[31m!").problems()[0].what, HasSubstr("--devices !: "))
      << "no escape reaches the terminal";
}

TEST(DeviceSpec, ComparesTheMeaning) {
  EXPECT_EQ(DeviceSpec("0, 2"), DeviceSpec({0, 2}));
  EXPECT_EQ(DeviceSpec("0-2"), DeviceSpec("cuda:0,1,2"));
  EXPECT_EQ(DeviceSpec("4"), DeviceSpec(4));
  EXPECT_NE(DeviceSpec("2"), DeviceSpec("2,"));
  EXPECT_NE(DeviceSpec("0,2"), DeviceSpec("2,0"));
  EXPECT_NE(DeviceSpec("free:2"), DeviceSpec("free:2@8GiB"));
  EXPECT_NE(DeviceSpec(""), DeviceSpec());
  EXPECT_NE(DeviceSpec("a"), DeviceSpec("b"));
}

TEST(DeviceSpec, TextReadsBackAsTheSame) {
  for (const DeviceSpec& spec : {DeviceSpec(), DeviceSpec(4), DeviceSpec(-1), DeviceSpec({0, 2}), DeviceSpec{3},
                                 DeviceSpec(" cuda:0,2-3 "), DeviceSpec("free:2@8GiB")}) {
    EXPECT_EQ(DeviceSpec(spec.text()), spec) << spec.text();
    EXPECT_TRUE(spec.problems().empty()) << spec.text();
  }
  EXPECT_THAT(DeviceSpec(" 0, 2 ").text(), "0, 2");
}

}  // namespace
}  // namespace lockstep
