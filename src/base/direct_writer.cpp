#include "base/direct_writer.h"

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/io_error.h"
#include "base/write_all.h"

namespace lockstep {
namespace {

constexpr std::size_t kBlockBytes = 4 << 20;
constexpr std::size_t kHugePage = 2 << 20;  // disks require memory, offset and length aligned to 4096 bytes
constexpr std::size_t kWriters = 2;

bool set_direct(int fd, bool on) {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && ::fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

}  // namespace

bool DirectWriter::turn_on(int fd) { return set_direct(fd, true); }

DirectWriter::DirectWriter(int fd, std::filesystem::path path) : fd_(fd), path_(std::move(path)) {
  for (std::size_t i = 0; i < kWriters + 1; ++i) {
    free_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(kHugePage, kBlockBytes)));
    if (free_.back() == nullptr) {
      throw std::bad_alloc();
    }
    ::madvise(free_.back().get(), kBlockBytes, MADV_HUGEPAGE);  // only a hint: less work for the kernel in each write
  }
  filling_ = take_free();
  try {
    while (threads_.size() < kWriters) {
      threads_.emplace_back([this] { write_blocks(); });
    }
  } catch (const std::exception&) {  // one thread writes them all, or append() does
  }
}

DirectWriter::~DirectWriter() {
  {
    const std::lock_guard lock(mutex_);
    full_.clear();
    ended_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void DirectWriter::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const auto part = bytes.first(std::min(bytes.size(), kBlockBytes - filled_));
    std::ranges::copy(part, filling_.get() + filled_);
    filled_ += part.size();
    bytes = bytes.subspan(part.size());
    if (filled_ == kBlockBytes) {
      hand_over();
    }
  }
}

void DirectWriter::finish() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return free_.size() == kWriters; });
    rethrow();
  }
  set_direct(fd_, false);
  write_all_at(fd_, std::span(filling_.get(), filled_), offset_, path_);
  offset_ += static_cast<std::int64_t>(std::exchange(filled_, 0));
  if (::lseek(fd_, offset_, SEEK_SET) < 0) {
    throw_io_error("write", path_, errno);
  }
}

DirectWriter::Block DirectWriter::take_free() {
  Block block = std::move(free_.back());
  free_.pop_back();
  return block;
}

void DirectWriter::rethrow() const {
  if (error_) {
    std::rethrow_exception(error_);
  }
}

// Gives the filled block to a thread and takes a free one.
void DirectWriter::hand_over() {
  std::unique_lock lock(mutex_);
  full_.push_back({.block = std::move(filling_), .offset = offset_});
  offset_ += static_cast<std::int64_t>(std::exchange(filled_, 0));
  changed_.notify_all();
  if (threads_.empty()) {
    write_next(lock);
  }
  changed_.wait(lock, [this] { return !free_.empty(); });
  filling_ = take_free();
  rethrow();
}

void DirectWriter::write_blocks() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ended_ || !full_.empty(); });
    if (ended_) {
      return;
    }
    write_next(lock);
  }
}

// Writes the oldest full block, without the lock meanwhile.
void DirectWriter::write_next(std::unique_lock<std::mutex>& lock) {
  FullBlock next = std::move(full_.front());
  full_.pop_front();
  lock.unlock();
  std::exception_ptr error;
  try {
    write(std::span(next.block.get(), kBlockBytes), next.offset);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  if (!error_) {
    error_ = error;
  }
  free_.push_back(std::move(next.block));
  changed_.notify_all();
}

void DirectWriter::write(std::span<const std::byte> bytes, std::int64_t offset) const {
  const ssize_t written = retry([&] { return ::pwrite(fd_, bytes.data(), bytes.size(), offset); });
  if (written < 0 && errno != EINVAL) {
    throw_io_error("write", path_, errno);
  }
  if (written < static_cast<ssize_t>(bytes.size())) {  // rejected or cut short: write the rest in the ordinary way
    const ssize_t done = std::max<ssize_t>(written, 0);
    set_direct(fd_, false);
    write_all_at(fd_, bytes.subspan(static_cast<std::size_t>(done)), offset + done, path_);
  }
}

}  // namespace lockstep
