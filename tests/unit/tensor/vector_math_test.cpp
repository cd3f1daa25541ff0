// Every way to a World settles oneMKL's functions before there are threads that compute.
#include <array>
#include <functional>
#include <set>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include <ATen/record_function.h>

#include <lockstep/run.h>
#include <lockstep/session.h>

#include "support/temp_dir.h"

namespace lockstep {
namespace {

std::set<std::string>& called() {
  static std::set<std::string> functions;
  return functions;
}

std::unique_ptr<at::ObserverContext> note(const at::RecordFunction& function) {
  called().insert(function.name());
  return nullptr;
}

bool is_settled() { return called().contains("aten::exp") && called().contains("aten::tanh"); }

/// In a process that has no World yet; ends it with 0 if it is settled.
[[noreturn]] void follow(const std::function<void()>& way) {
  at::addGlobalCallback(at::RecordFunctionCallback(&note));
  if (is_settled()) {
    _exit(2);
  }
  way();
  _exit(is_settled() ? 0 : 1);
}

class VectorMathDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  void TearDown() override { GTEST_FLAG_SET(death_test_style, "fast"); }
};

TEST_F(VectorMathDeathTest, IsSettledByRunBeforeTheWorkerFunction) {
  const TempDir dir;
  EXPECT_EXIT(follow([&] {
                std::array words{std::string("train"), std::string("--nprocs"), std::string("1"),
                                 "--run_dir=" + (dir.path() / "run").string()};
                std::array<char*, words.size()> argv{};
                for (std::size_t i = 0; i < words.size(); ++i) {
                  argv[i] = words[i].data();
                }
                run({.compute_setup = ComputeSetup::cpu}, static_cast<int>(argv.size()), argv.data(),
                    [](Session&) { _exit(is_settled() ? 0 : 1); });
              }),
              testing::ExitedWithCode(0), "");
}

TEST_F(VectorMathDeathTest, IsSettledByASession) {
  EXPECT_EXIT(follow([] { Session::single({.compute_setup = ComputeSetup::cpu}); }), testing::ExitedWithCode(0), "");
  EXPECT_EXIT(follow([] { Session::connect({.compute_setup = ComputeSetup::cpu}); }), testing::ExitedWithCode(0), "");
}

TEST_F(VectorMathDeathTest, IsSettledByAWorldOfOne) {
  EXPECT_EXIT(follow([] { World::single(c10::Device(c10::kCPU)); }), testing::ExitedWithCode(0), "");
}

TEST_F(VectorMathDeathTest, IsNotSettledWithoutAWorld) {  // the control
  EXPECT_EXIT(follow([] {}), testing::ExitedWithCode(1), "");
}

}  // namespace
}  // namespace lockstep
