#include <type_traits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/config/device_spec.h>
#include <lockstep/config/train_config.h>

#include "support/device_texts.h"

namespace lockstep {
namespace {

using Kind = DeviceSpec::Kind;
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

// A loop over what a temporary has must not outlive it.
static_assert(!std::is_reference_v<decltype(DeviceSpec("2").problems())>);
static_assert(!std::is_reference_v<decltype(DeviceSpec("2").indices())>);
static_assert(!std::is_reference_v<decltype(DeviceSpec("2").text())>);

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
  for (const auto& [text, expected] : kValidDevices) {
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
  for (const InvalidDevices& row : kInvalidDevices) {
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
