#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ftw.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>

#include "base/descriptor.h"
#include "base/direct_writer.h"
#include "base/file_lock.h"
#include "base/io_error.h"
#include "base/paths.h"
#include "base/text.h"
#include "base/write_all.h"

namespace lockstep {
namespace {

using Path = std::filesystem::path;

constexpr mode_t kFileMode = 0666;  // the umask removes bits
constexpr mode_t kDirectoryMode = 0777;
constexpr int kAlways =
    O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;  // non-blocking: a pipe in place of a file must not block us

constexpr std::string_view kTemporary = ".tmp.";

/// A unique name beside `path`.
Path temporary_path(const Path& path) {
  Path temporary = path;
  temporary += std::string(kTemporary) + random_id();
  return temporary;
}

/// The error of the file that a user knows, instead of its temporary one.
IoError about_file(const IoError& error, const Path& temporary, const Path& path) {
  std::string text = error.what();
  for (const auto& [found, better] : {std::pair("rename " + temporary.string() + " to", std::string("replace")),
                                      std::pair(printable(temporary.string()), printable(path.string()))}) {
    if (const auto at = text.find(found); at != std::string::npos) {
      text.replace(at, found.size(), better);
    }
  }
  return IoError(text, error.hint(), error.number());
}

/// Calls `work`; if it throws, removes the file or link `temporary`.
template <class Work>
void removing_on_failure(FileSystem& fs, const Path& temporary, const Work& work) {
  try {
    work();
  } catch (...) {
    try {
      fs.remove(temporary);
    } catch (const IoError&) {
      // Report the first failure, not this one.
    }
    throw;
  }
}

int open_file(const Path& path, int flags) {
  return retry([&] { return ::open(path.c_str(), flags | kAlways, kFileMode); });
}

void require_regular(const Descriptor& file, const Path& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    throw_io_error("inspect", path, errno);
  }
  if (S_ISDIR(status.st_mode)) {
    throw_io_error("open", path, EISDIR);
  }
  if (!S_ISREG(status.st_mode)) {
    throw IoError(fmt::format("cannot open {}: not a regular file", path.string()), {}, ENXIO);
  }
}

/// -1 and EEXIST if the file exists.
Descriptor create_new(const Path& path, int access) { return Descriptor(open_file(path, access | O_CREAT | O_EXCL)); }

Descriptor open_or_create(const Path& path, int access) {
  Descriptor created = create_new(path, access);
  if (created.get() >= 0) {
    return created;
  }
  if (errno != EEXIST) {
    throw_io_error("create", path, errno);
  }
  Descriptor existing(open_file(path, access));
  if (existing.get() < 0) {
    throw_io_error("open", path, errno);
  }
  require_regular(existing, path);
  return existing;
}

bool is_at(const Descriptor& file, const Path& path) {
  struct stat opened {};
  struct stat named {};
  if (::fstat(file.get(), &opened) == 0 && ::lstat(path.c_str(), &named) == 0) {
    return opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
  }
  if (errno != ENOENT && errno != ESTALE) {
    throw_io_error("inspect", path, errno);
  }
  return false;
}

class RealWritableFile final : public WritableFile {
 public:
  RealWritableFile(Descriptor file, Path path) : file_(std::move(file)), path_(std::move(path)) {}

  void reserve(std::int64_t bytes) override {
    // Does not change the size, which tells how much was written.
    const auto allocate = [&] { return ::fallocate(file_.get(), FALLOC_FL_KEEP_SIZE, 0, bytes); };
    if (bytes > 0 && retry(allocate) != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
      throw_io_error(fmt::format("reserve {} bytes for", bytes), path_, errno);
    }
    if (bytes >= kLarge && DirectWriter::turn_on(file_.get())) {
      direct_ = std::make_unique<DirectWriter>(file_.get(), path_);
    }
  }

  void append(std::span<const std::byte> bytes) override {
    if (direct_) {
      direct_->append(bytes);
    } else {
      write_all(file_.get(), bytes, path_);
    }
  }

  void truncate(std::int64_t bytes) override {
    if (retry([&] { return ::ftruncate(file_.get(), bytes); }) != 0) {
      throw_io_error("shorten", path_, errno);
    }
  }

  void sync() override {
    finish_direct();
    if (retry([&] { return ::fsync(file_.get()); }) != 0) {
      throw_io_error("sync", path_, errno);
    }
  }

  void close() override {
    finish_direct();
    if (file_.close() != 0 && errno != EINTR) {
      throw_io_error("close", path_, errno);
    }
  }

  bool is_in_place() const override { return is_at(file_, path_); }

 private:
  static constexpr std::int64_t kLarge = 16 << 20;

  void finish_direct() {
    if (const auto direct = std::move(direct_)) {
      direct->finish();
    }
  }

  Descriptor file_;
  Path path_;
  std::unique_ptr<DirectWriter> direct_{};  // last member: it writes to file_
};

class RealRandomAccessFile final : public RandomAccessFile {
 public:
  RealRandomAccessFile(Descriptor file, Path path) : file_(std::move(file)), path_(std::move(path)) {}

  std::int64_t size() const override {
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0) {
      throw_io_error("inspect", path_, errno);
    }
    return status.st_size;
  }

  void read(std::int64_t offset, std::span<std::byte> out) const override {
    const std::int64_t first = offset;
    const std::size_t wanted = out.size();
    while (!out.empty()) {
      const ssize_t got = retry([&] { return ::pread(file_.get(), out.data(), out.size(), offset); });
      if (got < 0) {
        throw_io_error("read", path_, errno);
      }
      if (got == 0) {
        throw IoError(fmt::format("cannot read {}: the file ends at byte {}, expected {} bytes at {}", path_.string(),
                                  offset, wanted, first));
      }
      out = out.subspan(static_cast<std::size_t>(got));
      offset += got;
    }
  }

 private:
  Descriptor file_;
  Path path_;
};

/// Whether no file can be created beside `path`, although there is space.
bool has_no_inodes(const Path& path) {
  struct statvfs status {};
  const Path directory = directory_of(path);
  return ::statvfs(directory.c_str(), &status) == 0 && status.f_files > 0 && status.f_favail == 0 &&
         status.f_bavail > 0;
}

class RealFileLock final : public FileLock {
 public:
  RealFileLock(Descriptor file, Path path) : file_(std::move(file)), path_(std::move(path)) {}
  bool is_in_place() const override { return is_at(file_, path_); }
  void touch() noexcept override { ::futimens(file_.get(), nullptr); }

 private:
  Descriptor file_;
  Path path_;
};

class RealFileSystem final : public FileSystem {
 public:
  std::unique_ptr<WritableFile> create(const Path& path) override {
    Descriptor file = create_new(path, O_WRONLY);
    if (file.get() < 0) {
      throw_io_error("create", path, errno);
    }
    return std::make_unique<RealWritableFile>(std::move(file), path);
  }

  std::unique_ptr<WritableFile> open_append(const Path& path) override {
    return std::make_unique<RealWritableFile>(open_or_create(path, O_WRONLY | O_APPEND), path);
  }

  std::unique_ptr<RandomAccessFile> open(const Path& path) override {
    Descriptor file(open_file(path, O_RDONLY));
    if (file.get() < 0) {
      throw_io_error("open", path, errno);
    }
    require_regular(file, path);
    return std::make_unique<RealRandomAccessFile>(std::move(file), path);
  }

  void create_directories(const Path& path) override {
    if (path.empty() || path == path.root_path()) {
      return;
    }
    if (make_directory(path)) {
      return;
    }
    create_directories(path.parent_path());
    if (!make_directory(path)) {
      throw_io_error("create", path, ENOENT);
    }
  }

  void sync_directory(const Path& path) override {
    const Descriptor directory(
        retry([&] { return ::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
    if (directory.get() < 0) {
      if (errno == EACCES) {
        return;  // a user may enter a directory that he may not read, and only an open one can be synced
      }
      throw_io_error("open", path, errno);
    }
    // EINVAL: this file system cannot sync directories.
    if (retry([&] { return ::fsync(directory.get()); }) != 0 && errno != EINVAL) {
      throw_io_error("sync", path, errno);
    }
  }

  void rename(const Path& from, const Path& to) override {
    const auto no_replace = [&] {
      return ::syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
    };
    if (retry(no_replace) == 0) {
      return;
    }
    if (errno != EINVAL && errno != ENOSYS) {
      throw_rename_error(from, to, errno);
    }
    if (exists(to)) {  // some network file systems cannot rename without replacement in one step
      throw_rename_error(from, to, EEXIST);
    }
    replace(from, to);
  }

  void replace(const Path& from, const Path& to) override {
    if (retry([&] { return ::rename(from.c_str(), to.c_str()); }) != 0) {
      throw_rename_error(from, to, errno);
    }
  }

  void replace_link(const Path& link, const Path& target) override {
    if (exists(link) && !read_link(link)) {
      throw_io_error("create the link", link, EEXIST);
    }
    const Path temporary = temporary_path(link);
    if (::symlink(target.c_str(), temporary.c_str()) != 0) {
      throw_io_error("create the link", link, errno);
    }
    removing_on_failure(*this, temporary, [&] { replace(temporary, link); });
  }

  std::optional<Path> read_link(const Path& path) override {
    std::error_code error;
    Path target = std::filesystem::read_symlink(path, error);
    // EINVAL: not a link.
    if (error && error != std::errc::invalid_argument && error != std::errc::no_such_file_or_directory) {
      throw_io_error("inspect", path, error.value());
    }
    return error ? std::nullopt : std::optional(std::move(target));
  }

  void remove(const Path& path) override {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
      throw_io_error("remove", path, errno);
    }
  }

  void remove_all(const Path& path) override {
    // Not std::filesystem::remove_all: libtorch.so exports one that was compiled with another version of libstdc++, and
    // a program that links it would crash here.
    constexpr int kMostDescriptors = 16;
    const auto remove_one = [](const char* name, const struct stat*, int, FTW*) {
      return ::remove(name) == 0 || errno == ENOENT ? 0 : -1;
    };
    if (::nftw(path.c_str(), remove_one, kMostDescriptors, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT) {
      throw_io_error("remove", path, errno);
    }
  }

  bool exists(const Path& path) override {
    struct stat status {};
    if (::lstat(path.c_str(), &status) == 0) {
      return true;
    }
    if (errno == ENOENT || errno == ENOTDIR) {
      return false;
    }
    throw_io_error("inspect", path, errno);
  }

  std::vector<std::string> list(const Path& path) override {
    std::error_code error;
    std::filesystem::directory_iterator entry(path.empty() ? Path(".") : path, error);
    std::vector<std::string> names;
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
      names.push_back(entry->path().filename().string());
    }
    if (error && error != std::errc::no_such_file_or_directory) {
      throw_io_error("list", path, error.value());
    }
    std::ranges::sort(names);
    return names;
  }

  std::int64_t free_bytes(const Path& path) override {
    struct statvfs status {};
    if (retry([&] { return ::statvfs(path.c_str(), &status); }) != 0) {
      throw_io_error("inspect the file system of", path, errno);
    }
    return static_cast<std::int64_t>(status.f_bavail) * static_cast<std::int64_t>(status.f_frsize);
  }

  std::unique_ptr<FileLock> try_lock(const Path& path, const std::string& my_text, std::string& owner) override {
    Descriptor file = open_or_create(path, O_RDWR);
    bool locked = take_file_lock(file.get());
    while (locked &&
           !is_at(file, path)) {  // the directory was renamed meanwhile: this lock belongs to another directory now
      file = open_or_create(path, O_RDWR);
      locked = take_file_lock(file.get());
    }
    if (!locked) {
      if (errno != EAGAIN && errno != EACCES) {
        throw_lock_error(path, errno);
      }
      std::array<char, 4096> text{};
      const ssize_t got = retry([&] { return ::pread(file.get(), text.data(), text.size(), 0); });
      owner.assign(text.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
      return nullptr;
    }
    // The text is only information for people: on a full disk the lock is still granted.
    if (retry([&] { return ::ftruncate(file.get(), 0); }) == 0) {
      [[maybe_unused]] const ssize_t written =
          retry([&] { return ::write(file.get(), my_text.data(), my_text.size()); });
    }
    return std::make_unique<RealFileLock>(std::move(file), path);
  }

 private:
  /// False if the parent is no directory; true if the directory exists now.
  static bool make_directory(const Path& path) {
    if (::mkdir(path.c_str(), kDirectoryMode) == 0) {
      return true;
    }
    const int error = errno;
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) {  // mkdir may report EROFS or EACCES instead of EEXIST
      return true;
    }
    if (error == ENOENT || error == ENOTDIR || error == ELOOP) {
      return false;
    }
    if (error == EEXIST) {
      const Path itself = path.has_filename() ? path : path.parent_path();  // "link/" is what the link leads to
      const Path target = std::filesystem::read_symlink(itself, ignored);
      throw IoError(fmt::format("cannot create the directory {}: {}", printable(path.string()),
                                target.empty() ? "it exists, and is no directory"
                                               : fmt::format("it is a link to {}, and no directory is there",
                                                             printable(target.string()))),
                    "move it away, or use another directory", error);
    }
    throw_io_error("create", path, error);
  }

  [[noreturn]] static void throw_lock_error(const Path& path, int error) {
    if (error == ENOLCK || error == ENOSYS || error == EOPNOTSUPP) {
      throw IoError(fmt::format("cannot lock {}: {}", printable(path.string()), std::generic_category().message(error)),
                    kNoLocksHint, error);
    }
    throw_io_error("lock", path, error);
  }

  [[noreturn]] static void throw_rename_error(const Path& from, const Path& to, int error) {
    throw_io_error("rename " + from.string() + " to", to, error);
  }
};

}  // namespace

void throw_io_error(std::string_view verb, const Path& path, int error) {
  std::string hint;
  if (error == ENOSPC && has_no_inodes(path)) {
    hint = "the file system has no free inode (df -i): remove files there, or write to another file system";
  } else if (error == ENOSPC || error == EDQUOT) {
    hint = "free space there, or write to another file system";
  } else if (error == EFBIG) {
    hint = "the file exceeds the size limit of this process: see ulimit -f";
  } else if (error == EACCES || error == EPERM) {
    hint = "check the permissions of the path and of the directories above it";
  }
  throw IoError(fmt::format("cannot {} {}: {}", verb, printable(path.string()), std::generic_category().message(error)),
                hint, error);
}

FileSystem& real_file_system() noexcept {
  static RealFileSystem files;
  return files;
}

std::string read_file(FileSystem& fs, const Path& path, std::int64_t max_bytes) {
  const auto file = fs.open(path);
  const std::int64_t size = file->size();
  if (size > max_bytes) {
    throw IoError(
        fmt::format("cannot read {}: it has {} bytes, the limit is {}", printable(path.string()), size, max_bytes));
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  file->read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_file(FileSystem& fs, const Path& path, const std::function<void(WritableFile&)>& produce) {
  const Path temporary = temporary_path(path);
  try {
    const auto file = fs.create(temporary);
    removing_on_failure(fs, temporary, [&] {
      produce(*file);
      file->sync();
      file->close();
      fs.replace(temporary, path);
    });
  } catch (const IoError& error) {
    throw about_file(error, temporary, path);
  }
  fs.sync_directory(directory_of(path));
}

void remove_leftovers(FileSystem& fs, const Path& path) {
  const Path directory = directory_of(path);
  const std::string prefix = path.filename().string() + std::string(kTemporary);
  for (const std::string& name : fs.list(directory)) {
    if (name.starts_with(prefix) && is_random_id(std::string_view(name).substr(prefix.size()))) {
      fs.remove(directory / name);
    }
  }
}

void write_file(FileSystem& fs, const Path& path, std::string_view text) {
  write_file(fs, path, [&](WritableFile& file) { file.append(std::as_bytes(std::span(text))); });
}

}  // namespace lockstep
