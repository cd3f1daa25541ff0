#include "base/event_log.h"

#include <regex>

#include <gtest/gtest.h>

#include <lockstep/base/file_system.h>

#include "base/json.h"
#include "base/text.h"
#include "support/memory_file_system.h"

namespace lockstep {
namespace {

std::vector<std::string> lines(FileSystem& fs) { return split(read_file(fs, "/events.jsonl"), '\n'); }

TEST(EventLog, WritesOneVersionedLinePerEvent) {
  MemoryFileSystem fs;
  EventLog log(fs, "/events.jsonl");
  const int before = fs.operations();
  log.write("save", {{"step", std::int64_t{500}}, {"path", "a \"b\"\n"}, {"seconds", 0.5}, {"final", false}});
  EXPECT_EQ(fs.operations(), before + 1) << "a line is one write";
  log.write("stop");
  const auto found = lines(fs);
  ASSERT_EQ(found.size(), 3U);  // the last one is empty
  const Json save = parse_json(found[0]);
  EXPECT_EQ(save["v"], 1);
  EXPECT_EQ(save["event"], "save");
  EXPECT_EQ(save["step"], 500);
  EXPECT_EQ(save["path"], "a \"b\"\n");
  EXPECT_EQ(save["seconds"], 0.5);
  EXPECT_EQ(save["final"], false);
  EXPECT_TRUE(std::regex_match(save["time"].get<std::string>(),
                               std::regex(R"(20\d\d-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-6]\d\.\d{3}Z)")))
      << save["time"];
  EXPECT_EQ(parse_json(found[1])["event"], "stop");
}

TEST(EventLog, StartsANewLineAfterATruncatedOne) {
  MemoryFileSystem fs;
  write_file(fs, "/events.jsonl", "{\"v\":1,\"event\":\"start\"}\n{\"v\":1,\"ev");
  EventLog log(fs, "/events.jsonl");
  log.write("resume");
  const auto found = lines(fs);
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(found[1], "{\"v\":1,\"ev");
  EXPECT_EQ(parse_json(found[2])["event"], "resume");
}

}  // namespace
}  // namespace lockstep
