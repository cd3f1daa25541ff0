// Writing a large file past the page cache. Torch-free.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace lockstep {

/// Writes in large blocks past the page cache (O_DIRECT). Two threads of the file write two blocks at a time while the
/// next one is filled, so that the disk always has work.
class DirectWriter {
 public:
  /// False: the file system does not support it.
  static bool turn_on(int fd);

  /// `path` is for messages.
  DirectWriter(int fd, std::filesystem::path path);
  ~DirectWriter();
  DirectWriter(const DirectWriter&) = delete;
  DirectWriter& operator=(const DirectWriter&) = delete;

  /// Throws: IoError, also of an earlier block.
  void append(std::span<const std::byte> bytes);
  /// Writes the rest; from now on the file is written in the ordinary way. Throws: as append().
  void finish();

 private:
  struct Free {
    void operator()(std::byte* bytes) const noexcept { std::free(bytes); }
  };
  using Block = std::unique_ptr<std::byte[], Free>;
  struct FullBlock {
    Block block;
    std::int64_t offset;
  };

  Block take_free();
  void rethrow() const;
  void hand_over();
  void write_blocks();
  void write_next(std::unique_lock<std::mutex>& lock);
  void write(std::span<const std::byte> bytes, std::int64_t offset) const;

  int fd_;
  std::filesystem::path path_;
  Block filling_{};
  std::size_t filled_ = 0;
  std::int64_t offset_ = 0;  // of the block that is being filled
  std::mutex mutex_{};       // of everything below
  std::condition_variable changed_{};
  std::vector<Block> free_{};
  std::deque<FullBlock> full_{};
  std::exception_ptr error_{};
  bool ended_ = false;
  std::vector<std::thread> threads_{};
};

}  // namespace lockstep
