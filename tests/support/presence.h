// Tells when processes and all that they forked are gone. Torch-free.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <string>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include "base/descriptor.h"
#include "support/temp_dir.h"

namespace lockstep {

inline bool readable_within(int fd, std::chrono::milliseconds limit) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  return poll(&entry, 1, static_cast<int>(limit.count())) == 1;
}

/// A pipe that every launch_child and its children hold open: its end shows that all of them are gone.
class Presence {
 public:
  explicit Presence(const TempDir& directory) : path_(directory.path() / "presence") {
    std::filesystem::remove(path_);
    EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0);
    fd_ = Descriptor(open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  }
  std::map<std::string, std::string> environment() const { return {{"TEST_FIFO", path_.string()}}; }
  bool ends_within(std::chrono::milliseconds limit) const { return readable_within(fd_.get(), limit); }

 private:
  std::filesystem::path path_;
  Descriptor fd_{};
};

}  // namespace lockstep
