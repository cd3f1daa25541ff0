// Several ranks: what they compute together is what one rank computes. On the GPU two ranks share one, over NCCL and
// over Gloo.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/plan/plan.h>

#include "gpu/device_tests.h"
#include "gpu/shared_gpu.h"
#include "support/fake_hardware.h"

namespace lockstep {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

/// Both ranks end well; returns the text of rank 0.
std::string expect_success(const std::vector<std::unique_ptr<Process>>& ranks, const std::string& backend) {
  for (const auto& rank : ranks) {
    const auto result = rank->wait();
    EXPECT_EQ(result.code, 0) << result.err << result.out;
    EXPECT_THAT(result.err, Not(HasSubstr("destroy_process_group")));
  }
  EXPECT_THAT(ranks[0]->err(), ContainsRegex("backend +" + backend));
  return ranks[0]->err();
}

struct Case {
  ComputeSetup where;
  std::string backend;
};

std::vector<Case> cases(ComputeSetup where) {
  if (where == ComputeSetup::cpu) {
    return {{where, "gloo"}};
  }
  return {{where, "nccl"}, {where, "gloo"}};
}

void expect_checks_pass(ComputeSetup where, const std::string& what) {
  for (const auto& [device, backend] : cases(where)) {
    LOCKSTEP_REQUIRE(Requirements().that(backend != "nccl" || probe_hardware().nccl_built, "this build has no NCCL"));
    const TempDir dir;
    const auto program =
        with(command(RANKS_PROGRAM, dir.path() / "run", {"--backend", backend, what}), on_device(device));
    expect_success(two_ranks(program), backend);
    EXPECT_FALSE(testing::Test::HasFailure()) << what << " with " << backend;
  }
}

LOCKSTEP_DEVICE_TEST(Ranks, CallEveryCollective) { expect_checks_pass(where, "collectives"); }

LOCKSTEP_DEVICE_TEST(Ranks, HaveTheGradientsOfTheWholeBatch) { expect_checks_pass(where, "gradients"); }

LOCKSTEP_DEVICE_TEST(Ranks, NormaliseWithTheSamplesOfAll) { expect_checks_pass(where, "batch_norm"); }

LOCKSTEP_DEVICE_TEST(Ranks, MayShareTheOptimizerState) { expect_checks_pass(where, "shards"); }

void expect_no_waits(ComputeSetup where, const std::string& backend) {
  const TempDir dir;
  expect_success(
      two_ranks(with(command(RANKS_PROGRAM, dir.path() / "run", {"--backend", backend, "steady"}), on_device(where))),
      backend);
}

// Not with Gloo on a GPU: it copies to the host.
TEST(RanksOnGpu, DoNotWaitInASteadyStep) {
  LOCKSTEP_REQUIRE(Requirements().gpus(1).nccl());
  expect_no_waits(ComputeSetup::gpu, "nccl");
}
TEST(RanksOnCpu, DoNotWaitInASteadyStep) { expect_no_waits(ComputeSetup::cpu, "gloo"); }

class Learning {
 public:
  explicit Learning(ComputeSetup where) : where_(where) {}

  std::vector<double> of_two_ranks(const std::string& name, const std::vector<std::string>& more) {
    expect_success(two_ranks(program(name, more)), more.at(1));
    return losses(name);
  }
  std::vector<double> of_one_rank(const std::string& name, const std::vector<std::string>& more = {}) {
    const auto result = run_program(program(name, more), one_gpu_only());
    EXPECT_EQ(result.code, 0) << result.err;
    return losses(name);
  }

 private:
  // With SGD: Adam would not notice a common factor of the gradients.
  std::vector<std::string> program(const std::string& name, const std::vector<std::string>& more) const {
    return with(with(command(TRAIN_PROGRAM, dir_.path() / name,
                             {"--dropout", "0", "--max_steps", "50", "--max_epochs", "0", "--global_batch_size", "12",
                              "--optimizer", "sgd", "--optim.lr", "0.01"}),
                     on_device(where_)),
                more);
  }
  std::vector<double> losses(const std::string& name) const {
    std::vector<double> all;
    for (const auto& [step, loss] : metric(dir_.path() / name, "loss")) {
      all.push_back(loss);
    }
    EXPECT_EQ(all.size(), 50U) << name;
    return all;
  }

  ComputeSetup where_;
  TempDir dir_;
};

TEST(RanksOnGpu, LearnWhatOneRankLearns) {
  LOCKSTEP_REQUIRE(Requirements().gpus(1).nccl());
  Learning learning(ComputeSetup::gpu);
  const auto one = learning.of_one_rank("one");
  EXPECT_GT(worst_difference(learning.of_one_rank("other", {"--seed", "7"}), one), 1e-2);  // the control
  for (const std::string backend : {"nccl", "gloo"}) {
    EXPECT_LE(worst_difference(learning.of_two_ranks(backend, {"--backend", backend}), one), 1e-4) << backend;
  }
  EXPECT_LE(worst_difference(learning.of_two_ranks("accumulated", {"--backend", "nccl", "--batch_size", "3"}), one),
            1e-4);
}

// With one rank there is no process group, whatever --backend says.
TEST(RanksOnGpu, OfAWorldOfOneNeedNoNccl) {
  LOCKSTEP_REQUIRE(Requirements().gpus(1).nccl());
  Learning learning(ComputeSetup::gpu);
  const auto one = learning.of_one_rank("one");
  EXPECT_EQ(worst_difference(learning.of_one_rank("nccl", {"--backend", "nccl"}), one), 0);
}

// The launch of the tests above has a plan on every machine with a GPU.
TEST(TwoRanksOnOneGpu, HaveAPlan) {
  const Hardware hardware = seen_through(eight_gpus(), "0");
  for (const Backend backend : {Backend::nccl, Backend::gloo}) {
    for (const int rank : {0, 1}) {
      const Plan plan = resolve({.compute_setup = ComputeSetup::gpu, .backend = backend}, hardware, launched(rank, 2));
      ASSERT_EQ(plan.local_devices.size(), 2U);
      EXPECT_EQ(plan.local_devices[0].id, (DeviceId{.gpu = true, .index = 0}));
      EXPECT_EQ(plan.local_devices[1].id, plan.local_devices[0].id);
      const Plan alone =
          resolve({.compute_setup = ComputeSetup::gpu, .backend = backend}, hardware, launched(rank, 2, /*nodes=*/2));
      EXPECT_EQ(alone.local_devices[0].id, plan.local_devices[0].id);
      EXPECT_EQ(alone.config.backend, backend);
    }
  }
}

}  // namespace
}  // namespace lockstep
