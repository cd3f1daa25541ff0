#include "base/json.h"

#include <limits>
#include <string>
#include <vector>

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

TEST(ExactJson, GivesBackEveryText) {
  for (const std::string& text : {std::string("plain \"text\"\n"), std::string("\xc3\xa9"), std::string("\x80\xff\x07"),
                                  std::string("a\0\xfe", 3), std::string()}) {
    const std::string line = dump_json(Json{{"state", exact_json(text)}});
    EXPECT_EQ(exact_text(parse_json(line).at("state"), "state"), text) << line;
  }
  EXPECT_EQ(dump_json(exact_json("\x80\xff")), R"({"hex":"80ff"})");
  EXPECT_EQ(exact_text(parse_json(R"("\u00e9")"), "state"), "\xc3\xa9") << "a text in UTF-8 is a plain string";
  for (const char* damaged : {R"({"hex": "8"})", R"({"hex": "8x"})", R"({"hex": 8})", R"({"text": ""})", "8"}) {
    EXPECT_THROW(exact_text(parse_json(damaged), "state"), std::runtime_error) << damaged;
  }
}

TEST(ParseJson, StopsAtTheDepthLimit) {
  EXPECT_EQ(failure("[[[1]]]", 3), "no error");
  EXPECT_THAT(failure("[[[[1]]]]", 3), HasSubstr("line 1, column 4: nested deeper than 3 levels"));
  EXPECT_THAT(failure(std::string(100'000, '[')), HasSubstr("nested deeper than 8 levels"));
}

TEST(MemberOfJson, HasItsType) {
  const Json value = parse_json(
      R"({"t": "a", "b": true, "i": -3, "big": 9223372036854775807, "texts": ["a"], "flags": [true, false], "ids": []})");
  EXPECT_EQ(member_as<std::string>(value, "t"), "a");
  EXPECT_TRUE(member_as<bool>(value, "b"));
  EXPECT_EQ(member_as<int>(value, "i"), -3);
  EXPECT_EQ(member_as<std::int64_t>(value, "big"), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(member_as<std::vector<std::string>>(value, "texts"), std::vector<std::string>{"a"});
  EXPECT_EQ(member_as<std::vector<bool>>(value, "flags"), (std::vector<bool>{true, false}));
  EXPECT_EQ(member_as<std::vector<std::int64_t>>(value, "ids"), std::vector<std::int64_t>{});
}

TEST(MemberOfJson, IsNamedIfItIsWrong) {
  const Json value =
      parse_json(R"({"t": "a", "half": 1.5, "huge": 18446744073709551615, "none": null, "mixed": ["a", 1]})");
  const auto message = [&]<class T>(std::string_view name, const T&) {
    return message_of<std::runtime_error>([&] { member_as<T>(value, name); });
  };
  EXPECT_EQ(message("missing", 0), "\"missing\" is missing");
  EXPECT_EQ(message("t", 0), "found \"a\", expected \"t\" to be an integer");
  EXPECT_EQ(message("half", 0), "found 1.5, expected \"half\" to be an integer");
  EXPECT_EQ(message("huge", std::int64_t{0}), "found 18446744073709551615, expected \"huge\" to be an integer");
  EXPECT_EQ(message("none", 0), "found null, expected \"none\" to be an integer");
  EXPECT_EQ(message("none", false), "found null, expected \"none\" to be true or false");
  EXPECT_EQ(message("half", std::string()), "found 1.5, expected \"half\" to be a string");
  EXPECT_EQ(message("mixed", std::vector<std::string>()),
            "found [\"a\",1], expected \"mixed\" to be an array of strings");
  EXPECT_EQ(message_of<std::runtime_error>([] { member(Json(3), "launch"); }),
            "found 3, expected an object with \"launch\"");
  EXPECT_THAT(message_of<std::runtime_error>([] { value_as<bool>(Json(std::string(100'000, 'x')), "b"); }),
              testing::MatchesRegex("found \"x+\\.\\.\\., expected \"b\" to be true or false"))
      << "long values are cut off";
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
