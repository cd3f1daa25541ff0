#include "environment/cuda_driver.h"

#include <cstdlib>

#include <gmock/gmock.h>

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr const char* kOnes = "11111111-1111-1111-1111-111111111111";
constexpr const char* kTwos = "22222222-2222-2222-2222-222222222222";
constexpr const char* kTens = "aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa";

std::vector<std::string> shown_by(const char* gpus) {
  setenv("LOCKSTEP_TEST_CUDA", gpus, 1);
  auto shown = cuda_gpus(LOCKSTEP_FAKE_CUDA);
  unsetenv("LOCKSTEP_TEST_CUDA");
  return shown;
}

TEST(CudaDriver, ShowsTheGpusInItsOrder) {
  EXPECT_THAT(shown_by("11"), ElementsAre(kOnes));
  EXPECT_THAT(shown_by("aa,11"), ElementsAre(kTens, kOnes));
  EXPECT_THAT(shown_by(""), IsEmpty());
  EXPECT_THAT(shown_by("broken"), IsEmpty());
  EXPECT_THAT(cuda_gpus("libthere-is-no-such-driver.so.1"), IsEmpty());
  EXPECT_THAT(cuda_gpus("libm.so.6"), IsEmpty());
}

TEST(CudaDriver, CountsTheGpusOfAPlanInItsOwnOrder) {
  const std::string ones = std::string("GPU-") + kOnes;
  const std::string twos = std::string("GPU-") + kTwos;
  const std::string instance = std::string("MIG-") + kTens;
  EXPECT_THAT(cuda_indices({ones, twos}, {kOnes, kTwos}), ElementsAre(0, 1));
  EXPECT_THAT(cuda_indices({ones, twos}, {kTens, kTwos, kOnes}), ElementsAre(2, 1)) << "fastest first";
  EXPECT_THAT(cuda_indices({ones, ones}, {kTwos, kOnes}), ElementsAre(1, 1)) << "two ranks on one GPU";
  EXPECT_THAT(cuda_indices({instance}, {kTens}), ElementsAre(0));
}

// The plan then describes other GPUs than CUDA shows. All ranks of a node see this, and use the plan's indices.
TEST(CudaDriver, CountsAllGpusOrNone) {
  const std::string ones = std::string("GPU-") + kOnes;
  EXPECT_THAT(cuda_indices({ones, std::string("GPU-") + kTwos}, {kOnes, kTens}), IsEmpty());
  EXPECT_THAT(cuda_indices({ones}, {}), IsEmpty());
  EXPECT_THAT(cuda_indices({""}, {kOnes}), IsEmpty());
  EXPECT_THAT(cuda_indices({"MIG-GPU-1/0/0"}, {kOnes}), IsEmpty());
  EXPECT_THAT(cuda_indices({}, {kOnes}), IsEmpty());
}

}  // namespace
}  // namespace lockstep
