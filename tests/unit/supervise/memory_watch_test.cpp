#include "supervise/memory_watch.h"

#include <map>
#include <string>

#include <gmock/gmock.h>

namespace lockstep {
namespace {

using Files = std::map<std::string, std::string>;

ReadText reader(Files& files) {
  return [&files](const std::string& path) {
    const auto file = files.find(path);
    return file == files.end() ? std::nullopt : std::optional(file->second);
  };
}

struct Case {
  const char* name;
  Files files;
  std::string counter;
  std::int64_t limit;
};

TEST(MemoryWatch, CountsTheKillsOfTheGroup) {
  Case cases[] = {
      {"v2",
       {{"/proc/71/cgroup", "0::/user/job\n"},
        {"/sys/fs/cgroup/user/job/memory.events", "low 0\noom 2\noom_kill 2\n"},
        {"/sys/fs/cgroup/user/job/memory.max", "max\n"},
        {"/sys/fs/cgroup/user/memory.max", "67108864\n"},
        {"/sys/fs/cgroup/user/memory.events", "oom_kill 90\n"}},
       "/sys/fs/cgroup/user/job/memory.events",
       64 << 20},
      {"v1",
       {{"/proc/71/cgroup", "5:cpu:/\n4:memory:/job\n0::/\n"},
        {"/sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"},
        {"/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "67108864\n"},
        {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"}},
       "/sys/fs/cgroup/memory/job/memory.oom_control",
       64 << 20},
  };
  for (Case& c : cases) {
    SCOPED_TRACE(c.name);
    const MemoryWatch watch(71, reader(c.files));
    EXPECT_FALSE(watch.killed_since()) << "kills of before do not count";
    EXPECT_EQ(watch.limit_bytes(), c.limit);
    c.files[c.counter] = "oom_kill 3\n";
    EXPECT_TRUE(watch.killed_since());
  }
}

TEST(MemoryWatch, SaysNothingWhereThereIsNothing) {
  Files none;
  const MemoryWatch watch(71, reader(none));
  EXPECT_FALSE(watch.killed_since());
  EXPECT_FALSE(watch.limit_bytes());
}

}  // namespace
}  // namespace lockstep
