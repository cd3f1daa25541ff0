// Which NCCL and cuDNN a program on GPUs would load, with libraries that stand in for them.
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>

#include "cli/doctor/facts.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

namespace stdfs = std::filesystem;

class CudaLibrariesTest : public testing::Test {
 protected:
  ~CudaLibrariesTest() override {
    for (const char* name : {"LOCKSTEP_TEST_NCCL", "LOCKSTEP_TEST_CUDNN", "LD_LIBRARY_PATH"}) {
      unsetenv(name);
    }
  }

  /// A copy of a file in the test's directory.
  stdfs::path copy(const stdfs::path& file, const std::string& name) const {
    stdfs::copy_file(file, temp_.path() / name);
    return temp_.path() / name;
  }

  const stdfs::path user_ = LOCKSTEP_FAKE_CUDA_HALF;
  TempDir temp_;
};

TEST_F(CudaLibrariesTest, GiveTheirVersionsAndFiles) {
  const CudaLibraries found = collect_cuda_libraries(user_);
  EXPECT_EQ(found.nccl.version, "2.28.9");
  EXPECT_EQ(found.nccl.file, (user_.parent_path() / "libnccl.so.900").string());
  EXPECT_EQ(found.nccl.problem, "");
  EXPECT_EQ(found.cudnn.version, "9.19.0");
  EXPECT_EQ(found.cudnn.file, (user_.parent_path() / "libcudnn.so.900").string());
  setenv("LOCKSTEP_TEST_NCCL", "2708", 1);
  setenv("LOCKSTEP_TEST_CUDNN", "8902", 1);
  const CudaLibraries old = collect_cuda_libraries(user_);
  EXPECT_EQ(old.nccl.version, "2.7.8");
  EXPECT_EQ(old.cudnn.version, "8.9.2");
}

TEST_F(CudaLibrariesTest, AreFoundWhereAProgramFindsThem) {
  const stdfs::path other = copy(user_.parent_path() / "libnccl.so.900", "libnccl.so.900");
  setenv("LD_LIBRARY_PATH", temp_.path().c_str(), 1);
  const CudaLibraries found = collect_cuda_libraries(user_);
  EXPECT_EQ(found.nccl.file, other.string());
  EXPECT_EQ(found.cudnn.file, (user_.parent_path() / "libcudnn.so.900").string());
}

// /opt/libtorch may be a link, and NCCL lies beside the directory that it leads to: /opt/libtorch/../nvidia is not
// /opt/nvidia.
TEST_F(CudaLibrariesTest, MayBeReachedThroughALink) {
  stdfs::create_directories(temp_.path() / "site/torch");
  const stdfs::path other = copy(user_.parent_path() / "libnccl.so.900", "site/libnccl.so.900");
  stdfs::create_directory_symlink("site/torch", temp_.path() / "libtorch");
  setenv("LD_LIBRARY_PATH", (temp_.path() / "libtorch/..").c_str(), 1);
  const CudaLibraries found = collect_cuda_libraries(user_);
  EXPECT_EQ(found.nccl.file, other.string());
  EXPECT_EQ(found.nccl.version, "2.28.9");
}

TEST_F(CudaLibrariesTest, MayBeMissingOrDamaged) {
  const stdfs::path alone = copy(user_, "user.so");
  EXPECT_EQ(collect_cuda_libraries(alone).nccl.problem, "libnccl.so.900 is not found");
  EXPECT_EQ(collect_cuda_libraries(alone).nccl.file, "");
  std::ofstream(temp_.path() / "libcudnn.so.900") << "cut off";
  EXPECT_THAT(collect_cuda_libraries(alone).cudnn.problem, HasSubstr("libcudnn.so.900: file too short"));
  EXPECT_THAT(collect_cuda_libraries(temp_.path() / "none.so").nccl.problem, HasSubstr("none.so: cannot open"));
  setenv("LOCKSTEP_TEST_NCCL", "0", 1);
  EXPECT_EQ(collect_cuda_libraries(user_).nccl.problem, "it does not give its version");
}

TEST_F(CudaLibrariesTest, MayEndTheProcessThatAsks) {
  setenv("LOCKSTEP_TEST_NCCL", "abort", 1);
  const CudaLibraries found = collect_cuda_libraries(user_);
  EXPECT_EQ(found.nccl.version, "");
  EXPECT_THAT(found.nccl.problem, StartsWith("it ended a process that asked for its version: "));
  EXPECT_EQ(found.cudnn.version, "9.19.0");
  setenv("LOCKSTEP_TEST_NCCL", "exit", 1);
  EXPECT_THAT(collect_cuda_libraries(user_).nccl.problem, HasSubstr("asked for its version: exit code 3"));
}

TEST_F(CudaLibrariesTest, MayBePartsOfLibTorch) {
  const CudaLibraries found = collect_cuda_libraries(LOCKSTEP_FAKE_CUDA);
  EXPECT_EQ(found.nccl.file, "");
  EXPECT_EQ(found.nccl.problem, "");
  EXPECT_THAT(library_text({.cuda = true, .libraries = found}, found.nccl), HasSubstr("a part of LibTorch"));
}

}  // namespace
}  // namespace lockstep
