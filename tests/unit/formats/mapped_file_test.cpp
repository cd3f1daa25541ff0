#include "formats/mapped_file.h"

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "support/temp_dir.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

std::string message_of(const std::filesystem::path& path) {
  try {
    MappedFile::open(path);
  } catch (const Error& error) {
    return std::string(error.what()) + " | " + error.hint();
  }
  return "no error";
}

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(MappedFile, ShowsTheFilesBytes) {
  const TempDir dir;
  write(dir.path() / "a", "tokens");
  std::filesystem::create_symlink(dir.path() / "a", dir.path() / "link");
  for (const char* name : {"a", "link"}) {
    const auto file = MappedFile::open(dir.path() / name);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size()), "tokens");
  }
}

TEST(MappedFile, SaysWhatIsWrong) {
  const TempDir dir;
  const std::string base = dir.path().string();
  write(dir.path() / "train.gz", "\x1f\x8b");
  write(dir.path() / "packed", "\x1f\x8b and more");
  write(dir.path() / "empty", "");
  EXPECT_THAT(message_of(dir.path() / "none"), HasSubstr("none: no such file"));
  EXPECT_THAT(message_of(dir.path() / "train"),
              HasSubstr(base + "/train.gz: found a gzip file, expected it unpacked | gunzip -k " + base + "/train.gz"));
  EXPECT_THAT(message_of(dir.path() / "packed"), HasSubstr("packed: found a gzip file"));
  EXPECT_THAT(message_of(dir.path() / "empty"), HasSubstr("the file is empty"));
  EXPECT_THAT(message_of(dir.path()), HasSubstr("found a directory or device"));
}

}  // namespace
}  // namespace lockstep
