#include <array>
#include <csignal>
#include <cstring>
#include <system_error>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>

#include "support/memory_file_system.h"
#include "support/message_of.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::span<const std::byte> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

mode_t mode_of(const std::filesystem::path& path) {
  struct stat status {};
  EXPECT_EQ(::lstat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777;
}

/// The in-memory file system behaves like the real one; tests of storage rely on it.
class AnyFileSystem : public testing::TestWithParam<bool> {
 protected:
  AnyFileSystem() { fs().create_directories(root()); }
  FileSystem& fs() { return GetParam() ? static_cast<FileSystem&>(memory_) : real_file_system(); }
  std::filesystem::path root() const { return directory_.path() / "root"; }

 private:
  TempDir directory_;
  MemoryFileSystem memory_;
};

TEST_P(AnyFileSystem, ReadsWrittenBytes) {
  const auto path = root() / "a";
  const auto file = fs().create(path);
  file->append(bytes("hello "));
  file->append(bytes("world"));
  file->sync();
  file->close();
  EXPECT_EQ(read_file(fs(), path), "hello world");
  std::array<std::byte, 5> tail{};
  fs().open(path)->read(6, tail);
  EXPECT_EQ(std::memcmp(tail.data(), "world", 5), 0);
  EXPECT_EQ(message_of<IoError>([&] { fs().open(path)->read(7, tail); }),
            "cannot read " + path.string() + ": the file ends at byte 11, expected 5 bytes at 7");
}

TEST_P(AnyFileSystem, ReservesWithoutChangingTheFile) {
  const auto path = root() / "a";
  const auto file = fs().create(path);
  file->reserve(1 << 20);
  file->append(bytes("short"));
  file->sync();
  file->close();
  EXPECT_EQ(read_file(fs(), path), "short");
}

TEST_P(AnyFileSystem, AppendsToAnExistingFile) {
  const auto path = root() / "log";
  fs().open_append(path)->append(bytes("one\n"));
  fs().open_append(path)->append(bytes("two\n"));
  EXPECT_EQ(read_file(fs(), path), "one\ntwo\n");
}

TEST_P(AnyFileSystem, NeverCreatesOverAFile) {
  const auto path = root() / "a";
  fs().create(path);
  EXPECT_EQ(message_of<IoError>([&] { fs().create(path); }), "cannot create " + path.string() + ": File exists");
}

TEST_P(AnyFileSystem, RenamesOnlyToAFreeName) {
  write_file(fs(), root() / "a", "A");
  write_file(fs(), root() / "b", "B");
  EXPECT_EQ(message_of<IoError>([&] { fs().rename(root() / "a", root() / "b"); }),
            "cannot rename " + (root() / "a").string() + " to " + (root() / "b").string() + ": File exists");
  EXPECT_EQ(read_file(fs(), root() / "b"), "B");
  fs().rename(root() / "a", root() / "c");
  EXPECT_THAT(fs().list(root()), ElementsAre("b", "c"));
  fs().replace(root() / "c", root() / "b");
  EXPECT_EQ(read_file(fs(), root() / "b"), "A");
}

TEST_P(AnyFileSystem, RenamesDirectoriesOnlyToAFreeName) {
  fs().create_directories(root() / "x/inner");
  fs().create_directories(root() / "empty");
  EXPECT_THAT(message_of<IoError>([&] { fs().rename(root() / "x", root() / "empty"); }), HasSubstr("File exists"));
  fs().rename(root() / "x", root() / "y");
  EXPECT_TRUE(fs().exists(root() / "y/inner"));
  EXPECT_FALSE(fs().exists(root() / "x"));
}

TEST_P(AnyFileSystem, ListsSortedAndRemovesTrees) {
  fs().create_directories(root() / "tree/deep");
  write_file(fs(), root() / "tree/z", "");
  write_file(fs(), root() / "tree/b", "");
  EXPECT_THAT(fs().list(root() / "tree"), ElementsAre("b", "deep", "z"));
  EXPECT_TRUE(fs().list(root() / "missing").empty());
  fs().remove_all(root() / "tree");
  fs().remove_all(root() / "tree");
  EXPECT_FALSE(fs().exists(root() / "tree"));
}

TEST_P(AnyFileSystem, NamesMissingFiles) {
  const auto path = root() / "missing";
  EXPECT_EQ(message_of<IoError>([&] { fs().open(path); }),
            "cannot open " + path.string() + ": No such file or directory");
  EXPECT_EQ(message_of<IoError>([&] { fs().create(path / "a"); }),
            "cannot create " + (path / "a").string() + ": No such file or directory");
  EXPECT_THAT(message_of<IoError>([&] { fs().open(root()); }), HasSubstr("Is a directory"));
  EXPECT_THAT(message_of<IoError>([&] { fs().sync_directory(path); }), HasSubstr("No such file or directory"));
}

TEST_P(AnyFileSystem, LetsOneOwnerHoldALock) {
  const auto path = root() / "lock";
  std::string owner;
  auto first = fs().try_lock(path, "pid 1 on here", owner);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(fs().try_lock(path, "pid 2", owner), nullptr);
  EXPECT_EQ(owner, "pid 1 on here");
  first.reset();
  EXPECT_NE(fs().try_lock(path, "2", owner), nullptr);
  EXPECT_EQ(read_file(fs(), path), "2");
}

TEST_P(AnyFileSystem, KnowsWhetherALockIsStillInPlace) {
  const auto directory = root() / "run";
  fs().create_directories(directory);
  std::string owner;
  const auto lock = fs().try_lock(directory / "lock", "1", owner);
  EXPECT_TRUE(lock->is_in_place());
  fs().rename(directory, root() / "aside");
  EXPECT_FALSE(lock->is_in_place());
  fs().create_directories(directory);
  fs().create(directory / "lock")->close();
  EXPECT_FALSE(lock->is_in_place()) << "another file has the name";
}

TEST_P(AnyFileSystem, ReplacesLinksAndNothingElse) {
  const auto link = root() / "best";
  EXPECT_EQ(fs().read_link(link), std::nullopt);
  fs().replace_link(link, "step-1");
  fs().replace_link(link, "step-2");
  EXPECT_EQ(fs().read_link(link), "step-2");
  EXPECT_TRUE(fs().exists(link)) << "also when what it names is missing";
  EXPECT_THAT(fs().list(root()), ElementsAre("best"));
  EXPECT_THAT(message_of<IoError>([&] { fs().open(link); }), HasSubstr("cannot open"));

  write_file(fs(), root() / "mine", "text");
  fs().create_directories(root() / "folder");
  for (const char* taken : {"mine", "folder"}) {
    EXPECT_EQ(fs().read_link(root() / taken), std::nullopt);
    EXPECT_EQ(message_of<IoError>([&] { fs().replace_link(root() / taken, "step-1"); }),
              "cannot create the link " + (root() / taken).string() + ": File exists");
  }
  EXPECT_EQ(read_file(fs(), root() / "mine"), "text");
  fs().remove_all(link);
  EXPECT_FALSE(fs().exists(link));
}

TEST_P(AnyFileSystem, RemovesAFileOrALinkAndNoDirectory) {
  write_file(fs(), root() / "file", "text");
  fs().replace_link(root() / "link", "file");
  fs().create_directories(root() / "folder");
  fs().remove(root() / "link");
  EXPECT_THAT(fs().list(root()), ElementsAre("file", "folder"));
  fs().remove(root() / "file");
  fs().remove(root() / "missing");
  EXPECT_EQ(message_of<IoError>([&] { fs().remove(root() / "folder"); }),
            "cannot remove " + (root() / "folder").string() + ": Is a directory");
  EXPECT_THAT(fs().list(root()), ElementsAre("folder"));
}

TEST_P(AnyFileSystem, ShortensAFileThatIsAppendedTo) {
  const auto path = root() / "log";
  const auto file = fs().open_append(path);
  file->append(bytes("one\ntw"));
  file->truncate(4);
  file->append(bytes("three\n"));
  EXPECT_EQ(read_file(fs(), path), "one\nthree\n");
}

TEST_P(AnyFileSystem, WriteFileLeavesFilesOfOthersAlone) {
  const auto path = root() / "model";
  fs().create_directories(root() / "model.tmp" / "mine");
  write_file(fs(), path, "one");
  fs().replace_link(root() / "best", "model");
  EXPECT_THAT(fs().list(root()), ElementsAre("best", "model", "model.tmp"));
  EXPECT_THAT(fs().list(root() / "model.tmp"), ElementsAre("mine"));
}

TEST_P(AnyFileSystem, RemovesTheLeftoversOfOneFileOnly) {
  const std::vector<std::string> others{"model", "model.tmp", "model.tmp.0123", "model.tmp.0123456789abcdeg",
                                        "model2.tmp.0123456789abcdef"};
  for (const std::string& name : others) {
    fs().create(root() / name);
  }
  fs().create(root() / "model.tmp.0123456789abcdef");
  remove_leftovers(fs(), root() / "model");
  EXPECT_THAT(fs().list(root()), testing::UnorderedElementsAreArray(others));
}

TEST_P(AnyFileSystem, WriteFileReplacesAndLeavesNothingElse) {
  const auto path = root() / "state.json";
  write_file(fs(), path, "one");
  write_file(fs(), path, "two");
  EXPECT_EQ(read_file(fs(), path), "two");
  EXPECT_THAT(fs().list(root()), ElementsAre("state.json"));
  EXPECT_EQ(message_of<IoError>([&] { read_file(fs(), path, 2); }),
            "cannot read " + path.string() + ": it has 3 bytes, the limit is 2");
}

TEST_P(AnyFileSystem, WriteFileNamesTheFileInItsErrors) {
  const auto path = root() / "none" / "state.json";
  const std::string message = message_of<IoError>([&] { write_file(fs(), path, "one"); });
  EXPECT_THAT(message, testing::HasSubstr(path.string() + ": No such file or directory"));
  fs().create_directories(path / "folder");
  EXPECT_EQ(message_of<IoError>([&] { write_file(fs(), path, "one"); }),
            "cannot replace " + path.string() + ": Is a directory");
}

INSTANTIATE_TEST_SUITE_P(Disk, AnyFileSystem, testing::Values(false));
INSTANTIATE_TEST_SUITE_P(Memory, AnyFileSystem, testing::Values(true));

TEST(RealFileSystem, SyncsADirectoryThatMayBeEnteredButNotRead) {
  constexpr uid_t kOther = 65534;
  const TempDir directory;
  std::filesystem::permissions(directory.path(), std::filesystem::perms{0311});
  const bool is_root = ::geteuid() == 0;  // who may read everything
  ASSERT_TRUE(!is_root || ::seteuid(kOther) == 0);
  EXPECT_NO_THROW(real_file_system().sync_directory(directory.path()));
  ASSERT_TRUE(!is_root || ::seteuid(0) == 0);
  std::filesystem::permissions(directory.path(), std::filesystem::perms::owner_all);
}

TEST(RealFileSystem, LeavesPermissionsToTheUmask) {
  const TempDir directory;
  FileSystem& fs = real_file_system();
  for (const mode_t mask : {077U, 022U, 0U}) {
    const mode_t old = ::umask(mask);
    const auto top = directory.path() / std::to_string(mask);
    fs.create_directories(top / "run/checkpoints");
    fs.create(top / "file");
    fs.open_append(top / "log");
    std::string owner;
    const auto lock = fs.try_lock(top / "lock", "", owner);
    ::umask(old);
    EXPECT_EQ(mode_of(top / "run"), 0777U & ~mask);
    EXPECT_EQ(mode_of(top / "run/checkpoints"), 0777U & ~mask);
    EXPECT_EQ(mode_of(top / "file"), 0666U & ~mask);
    EXPECT_EQ(mode_of(top / "log"), 0666U & ~mask);
    EXPECT_EQ(mode_of(top / "lock"), 0666U & ~mask);
  }
}

TEST(RealFileSystem, FollowsNoSymbolicLink) {
  const TempDir directory;
  FileSystem& fs = real_file_system();
  write_file(fs, directory.path() / "target", "secret");
  std::filesystem::create_symlink(directory.path() / "target", directory.path() / "link");
  EXPECT_THAT(message_of<IoError>([&] { fs.open(directory.path() / "link"); }), HasSubstr("cannot open"));
  EXPECT_THAT(message_of<IoError>([&] { fs.open_append(directory.path() / "link"); }), HasSubstr("cannot open"));
  EXPECT_THAT(message_of<IoError>([&] { fs.create(directory.path() / "link"); }), HasSubstr("File exists"));
  EXPECT_EQ(read_file(fs, directory.path() / "target"), "secret");
}

TEST(RealFileSystem, DoesNotWaitForAPipe) {
  const TempDir directory;
  ASSERT_EQ(::mkfifo((directory.path() / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(message_of<IoError>([&] { real_file_system().open(directory.path() / "pipe"); }),
            "cannot open " + (directory.path() / "pipe").string() + ": not a regular file");
}

TEST(RealFileSystem, NamesPathAndReasonOfAShortWrite) {
  // A file size limit is the portable way to make write(2) fail half way; in a child, because it cannot be raised
  // again.
  const TempDir directory;
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto path = directory.path() / "big";
    const auto file = real_file_system().create(path);
    const std::string text(10'000, 'x');
    const bool right = message_of<IoError>([&] {
                         file->append(bytes(text));
                       }).starts_with("cannot write " + path.string() + ": File too large");
    ::_exit(right && std::filesystem::file_size(path) == 4096 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Large files with a known size are written in another way, in blocks of 4 MiB.
TEST(RealFileSystem, WritesLargeFilesByteForByte) {
  constexpr std::size_t kBlock = 4 << 20;
  std::string text(5 * kBlock + 12'345, '\0');
  std::uint32_t random = 1;
  for (char& c : text) {
    random = random * 1'664'525 + 1'013'904'223;
    c = static_cast<char>(random >> 24);
  }
  const TempDir disk;
  const std::filesystem::path memory = "/dev/shm/" + disk.path().filename().string();  // may refuse O_DIRECT
  std::filesystem::create_directory(memory);
  for (const auto& directory : {disk.path(), memory}) {
    for (const std::size_t size : {text.size(), 4 * kBlock, 4 * kBlock + 4096, std::size_t{100}, std::size_t{0}}) {
      for (const std::size_t piece : {std::size_t{1'000'003}, kBlock, text.size()}) {
        const auto path = directory / "large";
        real_file_system().remove_all(path);
        const auto file = real_file_system().create(path);
        file->reserve(16 << 20);
        for (std::string_view left = std::string_view(text).substr(0, size); !left.empty();
             left.remove_prefix(std::min(piece, left.size()))) {
          file->append(bytes(left.substr(0, piece)));
        }
        file->sync();
        file->append(bytes("after"));
        file->close();
        EXPECT_TRUE(read_file(real_file_system(), path) == text.substr(0, size) + "after") << size << " " << piece;
      }
    }
  }
  std::filesystem::remove_all(memory);
}

TEST(RealFileSystem, WritesLargeFilesWithoutThreads) {
  const TempDir directory;
  const pid_t child = ::fork();
  if (child == 0) {
    pthread_attr_t attributes;
    ::pthread_getattr_default_np(&attributes);
    ::pthread_attr_setstacksize(&attributes, std::size_t{1} << 46);  // no thread can be created any more
    ::pthread_setattr_default_np(&attributes);
    bool has_thread = true;
    try {
      std::thread([] {}).join();
    } catch (const std::system_error&) {
      has_thread = false;
    }
    const std::string text(17 << 20, 'x');
    const auto path = directory.path() / "large";
    const auto file = real_file_system().create(path);
    file->reserve(static_cast<std::int64_t>(text.size()));
    file->append(bytes(text));
    file->sync();
    file->close();
    ::_exit(!has_thread && read_file(real_file_system(), path) == text ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(RealFileSystem, ReportsErrorsOfLargeFiles) {
  const TempDir directory;
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const auto path = directory.path() / "big";
    const auto file = real_file_system().create(path);
    file->reserve(32 << 20);
    const rlimit limit{10 << 20, 10 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const std::string text(32 << 20, 'x');
    const std::string message = message_of<IoError>([&] {
      file->append(bytes(text));
      file->sync();
    });
    ::_exit(message.starts_with("cannot write " + path.string() + ": File too large") ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(RealFileSystem, ReportsFreeBytes) {
  const TempDir directory;
  EXPECT_GT(real_file_system().free_bytes(directory.path()), 0);
  EXPECT_THAT(message_of<IoError>([&] { real_file_system().free_bytes(directory.path() / "missing"); }),
              HasSubstr("No such file"));
}

TEST(RealFileSystem, RefusesADirectoryWhereAFileIs) {
  const TempDir directory;
  const auto at = [&](const std::string& name) { return directory.path() / name; };
  const auto message = [](const std::filesystem::path& path) {
    return message_of<IoError>([&] { real_file_system().create_directories(path); });
  };
  write_file(real_file_system(), at("file"), "");
  std::filesystem::create_symlink("nowhere", at("dangling"));
  std::filesystem::create_symlink("loop", at("loop"));
  std::filesystem::create_directory(at("folder"));
  std::filesystem::create_symlink("folder", at("good"));
  for (const char* below : {"", "x", "x/y"}) {
    const auto what = [&](const std::string& name, const std::string& reason) {
      EXPECT_THAT(message(at(name) / below), testing::StartsWith("cannot create the directory " + at(name).string()))
          << below;
      EXPECT_THAT(message(at(name) / below),
                  testing::EndsWith(": " + reason + " | move it away, or use another directory"))
          << below;
    };
    what("file", "it exists, and is no directory");
    what("dangling", "it is a link to nowhere, and no directory is there");
    what("loop", "it is a link to loop, and no directory is there");
    EXPECT_EQ(message(at("good") / below), "no error");
  }
  EXPECT_NO_THROW(real_file_system().create_directories(directory.path()));
}

}  // namespace
}  // namespace lockstep
