#include "base/descriptor.h"

#include <array>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace lockstep {
namespace {

constexpr int kCode = 76;

TEST(StandardDescriptors, ThatAreClosedAreNotGivenToFiles) {
  EXPECT_EXIT(
      {
        for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
          close(fd);
        }
        open_standard_descriptors();
        const int file = open("/dev/zero", O_RDONLY);
        _exit(file > STDERR_FILENO && write(STDERR_FILENO, "x", 1) == 1 ? kCode : 1);
      },
      testing::ExitedWithCode(kCode), "");
}

TEST(StandardDescriptors, ThatAreOpenStayAsTheyAre) {
  std::array<int, 2> before{};
  [[maybe_unused]] const int made = pipe2(before.data(), O_CLOEXEC);
  open_standard_descriptors();
  const int next = open("/dev/zero", O_RDONLY | O_CLOEXEC);
  EXPECT_GT(next, before[1]) << "a descriptor was opened and kept";
  for (const int fd : {before[0], before[1], next}) {
    close(fd);
  }
}

}  // namespace
}  // namespace lockstep
