#include "environment/process_name.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace lockstep {
namespace {

TEST(ProcessName, TravelsThroughAStore) {
  const ProcessName me = this_process();
  EXPECT_EQ(me.pid, getpid());
  EXPECT_FALSE(me.host.empty());
  EXPECT_NE(me.machine.find("pid:["), std::string::npos) << me.machine;
  EXPECT_EQ(parse_process_name(encode(me)), me);
  EXPECT_EQ(to_string(ProcessName{.pid = 71, .machine = "m", .host = "a"}), "pid 71@a");
}

TEST(ProcessName, OthersTextIsRefused) {
  for (const char* line : {"", "71", "71 machine", "x machine host", "-1 machine host", "99999999999 machine host",
                           "71 machine host more"}) {
    EXPECT_EQ(parse_process_name(line), std::nullopt) << line;
  }
}

}  // namespace
}  // namespace lockstep
