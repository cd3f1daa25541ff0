#include "base/text.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using testing::ElementsAre;

TEST(Text, WritesVersionsOfLibraries) {
  EXPECT_EQ(library_version(22809), "2.28.9");
  EXPECT_EQ(library_version(2708), "2.7.8");
  EXPECT_EQ(library_version(91002), "9.10.2");
  EXPECT_EQ(library_version(8902), "8.9.2");
}

TEST(Text, TrimsSplitsAndJoins) {
  EXPECT_EQ(trim(" \t a b \n"), "a b");
  EXPECT_EQ(trim("   "), "");
  EXPECT_THAT(split("a,,b,", ','), ElementsAre("a", "", "b", ""));
  EXPECT_THAT(split("", ','), ElementsAre(""));
  EXPECT_EQ(join(split("a,b,c", ','), " or "), "a or b or c");
  EXPECT_EQ(join_or(split("a,b,c", ',')), "a, b or c");
  EXPECT_EQ(join_or(split("a,b", ',')), "a or b");
  EXPECT_EQ(join_or(split("a", ',')), "a");
  EXPECT_EQ(join_or({}), "");
  EXPECT_EQ(to_lower("AbC-É"), "abc-É");
}

TEST(ParseInt, TakesWholeNumbersOnly) {
  EXPECT_EQ(parse_int("42"), 42);
  EXPECT_EQ(parse_int("-7"), -7);
  EXPECT_EQ(parse_int("9223372036854775807"), INT64_MAX);
  for (const char* text : {"", " 1", "1 ", "+1", "1.0", "1e3", "0x10", "--1", "-", "1,000", "9223372036854775808"}) {
    EXPECT_EQ(parse_int(text), std::nullopt) << text;
  }
}

TEST(ParseDouble, TakesFiniteNumbersOnly) {
  EXPECT_EQ(parse_double("3e-4"), 3e-4);
  EXPECT_EQ(parse_double("-0.5"), -0.5);
  for (const char* text : {"", " 1", "+1", "nan", "inf", "1e999", "1.2.3", "0,5"}) {
    EXPECT_EQ(parse_double(text), std::nullopt) << text;
  }
}

TEST(ParseSeconds, KnowsUnitsAndClocks) {
  const std::pair<const char*, double> cases[] = {
      {"90", 90},
      {"0", 0},
      {"-1", -1},
      {"1e3", 1000},
      {"90s", 90},
      {"0.5s", 0.5},
      {"30min", 1800},
      {"30m", 1800},
      {"2h", 7200},
      {"1.5h", 5400},
      {"1d", 86400},
      {"1:30:00", 5400},
      {"00:00:05", 5},
      {"100:00:00", 360000},
      {"00:12:00:00", 43200},
      {"2:00:00:01", 172801},
  };
  for (const auto& [text, seconds] : cases) {
    EXPECT_EQ(parse_seconds(text), seconds) << text;
  }
  for (const char* text : {"",         "s",        "h",          ":",       "1:30",
                           "1:2:3",    "1:60:00",  "0:25:00:00", "1:30:60", "1:30:-1",
                           "1:30:0.5", "-1h",      "1e3s",       "2 h",     " 2h",
                           "2h ",      "2H",       "1h30min",    "2w",      "1.2.3s",
                           ".s",       "5:00:00s", "nan",        "inf",     "99999999999:00:00"}) {
    EXPECT_EQ(parse_seconds(text), std::nullopt) << text;
  }
}

TEST(ParseBytes, KnowsBinaryAndDecimalUnits) {
  EXPECT_EQ(parse_bytes("1000"), 1000);
  EXPECT_EQ(parse_bytes("8GiB"), std::int64_t{8} << 30);
  EXPECT_EQ(parse_bytes("512 mib"), std::int64_t{512} << 20);
  EXPECT_EQ(parse_bytes("1.5G"), std::int64_t{3} << 29);
  EXPECT_EQ(parse_bytes("2MB"), 2'000'000);
  for (const char* text : {"", "GiB", "-1GiB", "8 apples", "1.5", "1..5GiB", "9e9GiB", "99999999999GiB"}) {
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
  }
}

TEST(HumanText, IsShort) {
  EXPECT_EQ(five_digits(2.123456), "2.1235");
  EXPECT_EQ(short_number(1.0 / 3), "0.333333");
  EXPECT_EQ(short_number(-1'234'567), "-1234567");
  EXPECT_EQ(short_number(1e15), "1e+15");
  EXPECT_EQ(short_number(HUGE_VAL), "Infinity");
  EXPECT_EQ(five_digits(-std::nan("")), "NaN");
  EXPECT_EQ(five_digits(-HUGE_VAL), "-Infinity");
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.0 KiB");
  EXPECT_EQ(human_bytes((std::int64_t{1} << 20) - 1), "1.0 MiB");
  EXPECT_EQ(human_bytes(5046586573), "4.7 GiB");
  EXPECT_EQ(human_duration(12), "00:12");
  EXPECT_EQ(human_duration(59.6), "01:00");
  EXPECT_EQ(human_duration(3723), "1:02:03");
  EXPECT_EQ(human_duration(NAN), "--:--");
  EXPECT_EQ(human_duration(-1), "--:--");
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(0, "step"), "0 steps");
  EXPECT_EQ(counted(2, "micro-batch"), "2 micro-batches");
  EXPECT_EQ(first_line("what\nwhere"), "what");
  EXPECT_EQ(first_line("what"), "what");
  EXPECT_THAT(utc_time(), testing::MatchesRegex("20..-..-..T..:..:..[.]...Z"));
}

TEST(Closest, FindsTypingErrorsOnly) {
  const std::vector<std::string> names{"batch_size", "max_steps", "seed", "lr"};
  EXPECT_EQ(closest("batch_szie", names), "batch_size");
  EXPECT_EQ(closest("Batch-Size", names), "batch_size");
  EXPECT_EQ(closest("max_step", names), "max_steps");
  EXPECT_EQ(closest("sed", names), "seed");
  EXPECT_EQ(closest("l", names), "lr");
  EXPECT_EQ(closest("GPU", std::vector<std::string>{"auto", "cpu", "gpu"}), "gpu") << "another case is no difference";
  EXPECT_EQ(closest("hidden", names), std::nullopt);
  EXPECT_EQ(closest("x", names), std::nullopt);
  EXPECT_EQ(closest("seed", {}), std::nullopt);
  EXPECT_EQ(closest("batch_sizzes", names), "batch_size");
  EXPECT_EQ(closest("batch_sizzes", names, 1), std::nullopt);
  EXPECT_EQ(closest("batch_sizes", names, 1), "batch_size");
}

TEST(FormatRanges, JoinsNeighbours) {
  const std::vector<int> indices{0, 1, 2, 3, 7, 9, 10};
  EXPECT_EQ(format_ranges(indices), "0-3,7,9-10");
  EXPECT_EQ(format_ranges({}), "");
}

TEST(Printable, ReplacesInvalidUtf8) {
  const std::string bad = "\xef\xbf\xbd";
  EXPECT_EQ(printable("a\xff z"), "a" + bad + " z");
  EXPECT_EQ(printable("\x9b[31mred"), bad + "[31mred") << "a control character of 8-bit terminals";
  EXPECT_EQ(printable("\xc0\x9b"), bad + bad) << "longer than needed";
  EXPECT_EQ(printable("\xed\xa0\x80"), bad + bad + bad) << "a surrogate";
  EXPECT_EQ(printable("\xe2\x82"), bad + bad) << "cut";
  EXPECT_EQ(printable(std::string("a\0b", 3)), "ab");
  EXPECT_EQ(printable("\xe2\x82\xac \xf0\x9f\x98\x80"), "\xe2\x82\xac \xf0\x9f\x98\x80");
}

TEST(Printable, DropsEscapesAndControls) {
  EXPECT_EQ(printable("a\x1b[31mred\x1b[0m\tb\r\n"), "ared\tb");
  EXPECT_EQ(printable("\x1b]0;title\x07text\x1b]8;;x\x1b\\link"), "textlink");
  EXPECT_EQ(printable("\x1b(Bx\x1b"), "x");
  EXPECT_EQ(printable("\x1b["), "");
  EXPECT_EQ(printable("caf\xc3\xa9 \xc2\x9b"
                      "31m \xc2\xa0"),
            "caf\xc3\xa9 31m \xc2\xa0");
}

}  // namespace
}  // namespace lockstep
