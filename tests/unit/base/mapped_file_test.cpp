#include "base/mapped_file.h"

#include <cstddef>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "support/message_of.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFile, ShowsTheFilesBytes) {
  const TempDir dir;
  write_text(dir.path() / "a", "tokens");
  std::filesystem::create_symlink(dir.path() / "a", dir.path() / "link");
  for (const char* name : {"a", "link"}) {
    const auto file = MappedFile::open(dir.path() / name);
    EXPECT_EQ(text_of(*file), "tokens");
  }
}

TEST(MappedFile, RefusesAPipeThatNobodyWrites) {
  const TempDir dir;
  ASSERT_EQ(::mkfifo((dir.path() / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(message_of([&] { MappedFile::open(dir.path() / "pipe"); }), HasSubstr("is not a regular file"));
}

TEST(MappedFile, IsPrivateWhenWrittenAndMayBeEmpty) {
  const TempDir dir;
  write_text(dir.path() / "a", "tokens");
  write_text(dir.path() / "empty", "");
  const auto one = MappedFile::open(dir.path() / "a");
  const auto other = MappedFile::open(dir.path() / "a");
  one->bytes()[0] = std::byte{'T'};
  EXPECT_EQ(text_of(*one), "Tokens");
  EXPECT_EQ(text_of(*other), "tokens");
  EXPECT_TRUE(MappedFile::open(dir.path() / "empty")->bytes().empty());
}

TEST(MappedFile, MayBeLargerThanTheMemory) {
  const TempDir dir;
  write_text(dir.path() / "sparse", "begin");
  std::filesystem::resize_file(dir.path() / "sparse", std::uintmax_t{1} << 40);
  EXPECT_EQ(MappedFile::open(dir.path() / "sparse")->bytes().size(), std::size_t{1} << 40);
}

TEST(MappedFile, ReportsErrors) {
  const TempDir dir;
  EXPECT_THAT(message_of([&] { MappedFile::open(dir.path() / "none"); }), HasSubstr("none: No such file"));
  EXPECT_THAT(message_of([&] { MappedFile::open(dir.path()); }), HasSubstr("it is not a regular file"));
}

}  // namespace
}  // namespace lockstep
