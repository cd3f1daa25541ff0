#include "storage/manifest.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/crc32c.h"
#include "support/message_of.h"
#include "unit/storage/checkpoint_samples.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

// docs/checkpoint_format.md shows this text. Other programs read it: it changes with the format number only.
constexpr const char* kGolden = R"({
  "format": 1,
  "step": 500,
  "run_id": "7f3a \"night\"",
  "restart": 2,
  "chunk_bytes": 4194304,
  "files": [
    {"name": "model.safetensors", "size": 4194305, "crc32c": ["0badf00d", "00000001"]},
    {"name": "rng-0.bin", "size": 0, "crc32c": []}
  ],
  "crc32c": "4c6d17e6"
}
)";

Manifest golden() {
  return {.step = 500,
          .run_id = "7f3a \"night\"",
          .restart = 2,
          .files = {{.name = "model.safetensors", .size = 4194305, .crc32c = {0x0badf00d, 1}}, {.name = "rng-0.bin"}}};
}

// A manifest with `body` before the checksum, which fits.
std::string sealed(const std::string& body) {
  return body + fmt::format("  \"crc32c\": \"{:08x}\"\n}}\n", crc32c(testing_storage::as_bytes(body)));
}

std::string fault(const std::string& text) {
  return message_of<CheckpointError>([&] { parse_manifest(text, "here"); });
}

TEST(Manifest, HasTheDocumentedText) { EXPECT_EQ(manifest_text(golden()), kGolden); }

TEST(Manifest, ParsesItsOwnText) {
  const Manifest read = parse_manifest(kGolden, "here");
  EXPECT_EQ(manifest_text(read), kGolden);
  EXPECT_EQ(read.files.at(0).crc32c, (std::vector<std::uint32_t>{0x0badf00d, 1}));
  EXPECT_EQ(manifest_text(parse_manifest(manifest_text({}), "here")), manifest_text({}));
}

TEST(Manifest, RejectsOtherTextsWithAValidChecksum) {
  const std::string text = kGolden;
  const std::string body = text.substr(0, text.rfind("  \"crc32c\""));
  ASSERT_EQ(fault(sealed(body)), "no error") << "the control";
  struct Case {
    std::string find, replace, message;
  };
  const std::vector<Case> cases = {
      {"\"format\": 1", "\"format\": 3", "checkpoint format 3, this build reads 1"},
      {"\"format\": 1", "\"format\": \"1\"", "checkpoint format \"1\", this build reads 1"},
      {"\"format\": 1", "\"format\": 1.0", "\"format\" is not an integer"},
      {"\"format\": 1,\n", "", "expected an object of 7 members"},
      {"\"format\": 1", "\"formal\": 1", "\"format\" is missing"},
      {"\"step\": 500", "\"step\": -500", "\"step\" is not an integer"},
      {"\"step\": 500", "\"step\": 500.0", "\"step\" is not an integer"},
      {"\"step\": 500", "\"step\": 9223372036854775808", "\"step\" is not an integer"},
      {"\"step\": 500", "\"step\": 500, \"step\": 501", "twice"},
      {"\"restart\": 2", "\"restart\": 2147483648", "\"restart\" is not an integer"},
      {"\"restart\": 2", "\"restart\": 2, \"more\": 0", "expected an object of 7 members"},
      {"\"run_id\": \"7f3a \\\"night\\\"\"", "\"run_id\": 7", "\"run_id\" is not a string"},
      {"4194304", "4194303", "\"chunk_bytes\" is not 4194304"},
      {"model.safetensors", "../model", "a file name must have 1 to 128 of the characters"},
      {"model.safetensors", "MANIFEST.json", "a file name must have 1 to 128 of the characters"},
      {"model.safetensors", "rng-0.bin", "two files have the name rng-0.bin"},
      {"4194305", "8388609", "found 2 checksums, expected 3"},
      {"4194305", "9223372036854775807", "found 2 checksums, expected"},
      {"0badf00d", "0BADF00D", "eight lower-case hexadecimal digits"},
      {"0badf00d", "badf00d", "eight lower-case hexadecimal digits"},
      {"\"0badf00d\"", "1", "eight lower-case hexadecimal digits"},
      {"[\"0badf00d\", \"00000001\"]", "{}", "\"crc32c\" is not an array"},
      {"\"size\": 0,", "", "expected an object of 3 members"},
      {"{\"name\": \"rng-0.bin\", \"size\": 0, \"crc32c\": []}", "7", "found number, expected an object"},
      {"]}\n  ]", "]}\n  ", "here: "},
      {"]}\n  ]", "]}\n  ]]", "here: "},
      {"\"files\": [", "\"files\": [[[[[[[[[[[[", "deeper"},
  };
  for (const Case& wrong : cases) {
    std::string changed = body;
    const auto at = changed.find(wrong.find);
    ASSERT_NE(at, std::string::npos) << wrong.find;
    changed.replace(at, wrong.find.size(), wrong.replace);
    EXPECT_THAT(fault(sealed(changed)), testing::AllOf(testing::StartsWith("here: "), HasSubstr(wrong.message)))
        << wrong.replace;
  }
}

TEST(Manifest, RejectsTruncatedTexts) {
  for (const std::string& text :
       {std::string(), std::string("{}"), std::string(1000, ' '), std::string(kGolden) + "\n"}) {
    EXPECT_EQ(fault(text), "here: its checksum does not match its text");
  }
  EXPECT_THAT(fault(sealed("")), HasSubstr("here: ")) << "a fitting checksum, no object";
}

}  // namespace
}  // namespace lockstep
