#include "storage/zip_reader.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/crc32c.h"
#include "support/memory_file_system.h"
#include "support/message_of.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string little(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) {
    text += static_cast<char>(i < 8 ? value >> (8 * i) & 0xff : 0);
  }
  return text;
}

/// An archive with one record, in the 32-bit form. Every number can be changed.
struct Archive {
  std::string name = "top/data.pkl";
  std::string content = "hello";
  std::uint32_t crc32 = crc32_of_zip(std::as_bytes(std::span(content)));
  std::uint64_t method = 0;
  std::uint64_t claimed_size = 5;
  std::uint64_t header = 0;
  std::uint64_t entries = 1;
  std::string extra{};
  bool repeated = false;

  std::string bytes() const {
    const std::string sizes = little(crc32, 4) + little(claimed_size, 4) + little(claimed_size, 4);
    const std::string local = "PK\3\4" + little(20, 2) + little(0, 2) + little(method, 2) + little(0, 4) + sizes +
                              little(name.size(), 2) + little(0, 2) + name + content;
    std::string entry = "PK\1\2" + little(20, 2) + little(20, 2) + little(0, 2) + little(method, 2) + little(0, 4) +
                        sizes + little(name.size(), 2) + little(extra.size(), 2) + little(0, 10) + little(header, 4) +
                        name + extra;
    if (repeated) {
      entry += entry;
    }
    return local + entry + "PK\5\6" + little(0, 6) + little(entries, 2) + little(entry.size(), 4) +
           little(local.size(), 4) + little(0, 2);
  }
};

std::string read(const std::string& bytes, const std::string& record = "data.pkl") {
  MemoryFileSystem fs;
  fs.create("/file")->append(std::as_bytes(std::span(bytes)));
  const ZipReader zip(fs.open("/file"), "file");
  const ZipRecord* found = zip.find(record);
  if (found == nullptr) {
    return "none";
  }
  std::string content(static_cast<std::size_t>(found->size), '\0');
  zip.read(*found, std::as_writable_bytes(std::span(content)));
  return content;
}

std::string fault(const std::string& bytes) {
  return message_of<CheckpointError>([&] { read(bytes); });
}

TEST(ZipReader, ReadsRecordsWithoutTheTopFolder) {
  EXPECT_EQ(read(Archive().bytes()), "hello");
  EXPECT_EQ(read(Archive().bytes(), "top/data.pkl"), "none");
  EXPECT_EQ(read(Archive{.name = "data.pkl"}.bytes()), "hello");
}

TEST(ZipReader, TakesLargeNumbersFromTheExtraField) {
  const std::string zip64 = little(1, 2) + little(16, 2) + little(5, 8) + little(5, 8);
  EXPECT_EQ(read(Archive{.claimed_size = 0xffffffff, .extra = little(9, 2) + little(1, 2) + "x" + zip64}.bytes()),
            "hello");
  const std::string huge = little(1, 2) + little(16, 2) + std::string(16, '\xff');
  EXPECT_THAT(fault(Archive{.claimed_size = 0xffffffff, .extra = huge}.bytes()), HasSubstr("does not fit"));
}

TEST(ZipReader, RefusesWhatDoesNotFit) {
  EXPECT_THAT(fault(Archive{.content = "hellO", .crc32 = 0x3610a686}.bytes()), HasSubstr("expected 3610a686"));
  EXPECT_THAT(fault(Archive{.method = 8}.bytes()),
              AllOf(HasSubstr("file: "), HasSubstr("compressed"), HasSubstr("save the file again with torch.save")));
  EXPECT_THAT(fault(Archive{.claimed_size = 1000}.bytes()), HasSubstr("data.pkl of 1000 bytes does not fit"));
  EXPECT_THAT(fault(Archive{.header = 3}.bytes()), HasSubstr("no record at byte 3"));
  EXPECT_THAT(fault(Archive{.header = 9999}.bytes()), HasSubstr("does not fit"));
  EXPECT_THAT(fault(Archive{.entries = 2}.bytes()), HasSubstr("directory of the archive is damaged"));
  EXPECT_THAT(fault(Archive{.entries = 2, .repeated = true}.bytes()), HasSubstr("found the record data.pkl twice"));
}

TEST(ZipReader, RefusesEveryTruncation) {
  const std::string whole = Archive().bytes();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(fault(whole.substr(0, size)), AllOf(HasSubstr("file: found no end"), HasSubstr("cut off"))) << size;
  }
}

}  // namespace
}  // namespace lockstep
