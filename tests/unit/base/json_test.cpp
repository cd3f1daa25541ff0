#include "base/json.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/message_of.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

std::string failure(std::string_view text, int max_depth = 8) {
  return message_of<std::runtime_error>([&] { parse_json(text, max_depth); });
}

TEST(ParseJson, KeepsTheOrderOfKeys) {
  const Json value = parse_json(R"({"z": 1, "a": [true, null, 2.5], "m": {"x": "é"}})");
  EXPECT_EQ(dump_json(value), R"({"z":1,"a":[true,null,2.5],"m":{"x":"é"}})");
}

TEST(ParseJson, RejectsInvalidJson) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "line 1, column 1"},
      {"{} x", "line 1, column 4"},
      {"{}\n{}", "line 2, column 1"},
      {"{\"a\": 1,}", "line 1, column 9"},
      {"{\n  \"a\": nan\n}", "line 2, column"},
      {"{\"a\": 1, \"b\": 2, \"a\": 3}", "key \"a\" appears twice"},
      {"{\"o\": {\"k\": 1, \"k\": 1}}", "key \"k\" appears twice"},
      {"// comment\n{}", "line 1, column"},
      {"\"\xff\"", "line 1, column"},
      {"[1e999]", "line 1, column"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_THAT(failure(text), HasSubstr(expected)) << text;
    EXPECT_THAT(failure(text), testing::Not(HasSubstr("json.exception"))) << text;
  }
  EXPECT_EQ(failure("{\"o\": {\"k\": 1}, \"p\": {\"k\": 1}}"), "no error") << "the same key in two objects is fine";
  EXPECT_THAT(failure("{\n \"a\": 1,\n \"a\": 2}"), HasSubstr("line 3"));
}

TEST(ParseJson, StopsAtTheDepthLimit) {
  EXPECT_EQ(failure("[[[1]]]", 3), "no error");
  EXPECT_THAT(failure("[[[[1]]]]", 3), HasSubstr("line 1, column 4: nested deeper than 3 levels"));
  EXPECT_THAT(failure(std::string(100'000, '[')), HasSubstr("nested deeper than 8 levels"));
}

TEST(DumpJson, WritesNumbersThatAreNotFiniteAsText) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Json value{{"loss", std::numeric_limits<double>::quiet_NaN()}, {"list", {infinity, -infinity, 1.5}}};
  EXPECT_EQ(dump_json(value), R"({"loss":"NaN","list":["Infinity","-Infinity",1.5]})");
}

TEST(DumpJson, ReplacesInvalidUtf8) { EXPECT_EQ(dump_json(Json("a\xff")), "\"a\xef\xbf\xbd\""); }

TEST(DumpJson, PrettyIsReadBack) {
  const Json value{{"a", {1, 2}}, {"b", {{"c", "d"}}}};
  EXPECT_EQ(parse_json(dump_json_pretty(value)), value);
  EXPECT_THAT(dump_json_pretty(value), HasSubstr("\n  \"a\": ["));
}

}  // namespace
}  // namespace lockstep
