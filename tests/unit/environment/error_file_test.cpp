#include "environment/error_file.h"

#include <fstream>
#include <iterator>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/json.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

TEST(ErrorFile, HasTorchrunsFormatAndIsPrivate) {
  const TempDir dir;
  const std::string path = dir.path() / "error.json";
  const std::string text = "error: cannot decode \"a\"\n  hint: none";
  std::ofstream(path) << "old";
  chmod(path.c_str(), 0644);
  write_error_file(path, text);
  struct stat status {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600U);
  std::ifstream in(path);
  const Json found = parse_json(std::string{std::istreambuf_iterator<char>(in), {}});
  EXPECT_EQ(found["message"]["message"], text);
  EXPECT_EQ(found["message"]["extraInfo"]["py_callstack"], text);
  const auto timestamp = found["message"]["extraInfo"]["timestamp"].get<std::string>();
  EXPECT_EQ(timestamp.find_first_not_of("0123456789"), std::string::npos) << timestamp;
}

TEST(ErrorFile, IgnoresAFailedWrite) {
  write_error_file("", "text");
  write_error_file("/no/such/folder/error.json", "text");
}

}  // namespace
}  // namespace lockstep
