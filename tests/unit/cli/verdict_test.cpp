// What `lockstep test` recommends, and how it judges the end of a launch.
#include "cli/test/verdict.h"

#include <gmock/gmock.h>

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::Field;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

ProbeOutcome exchange(double small_s, double large_s) {
  return {
      .lines = {{{"measured", "exchange"},
                 {"times", {{{"bytes", 4096}, {"seconds", small_s}}, {{"bytes", 16 << 20}, {"seconds", large_s}}}}}}};
}

ProbeOutcome save(double seconds) {
  return {.lines = {{{"measured", "save"}, {"bytes", 32 << 20}, {"seconds", seconds}}}};
}

TEST(Verdict, RecommendsTheFasterBackend) {
  const auto advice = [](double small_s, double large_s) {
    return advise({.exchanges = {{"gloo", exchange(200e-6, 30e-3)}, {"shm", exchange(small_s, large_s)}}});
  };
  EXPECT_THAT(advice(50e-6, 10e-3), ElementsAre(AllOf(Field(&Advice::what, "--backend shm, the default"),
                                                      Field(&Advice::because, HasSubstr("gloo 200 us, shm 50 us")))));
  EXPECT_THAT(advice(50e-6, 60e-3), ElementsAre(AllOf(Field(&Advice::what, HasSubstr("gloo for larger ones")),
                                                      Field(&Advice::because, HasSubstr("but 16.0 MiB")))));
  EXPECT_THAT(advice(400e-6, 60e-3), ElementsAre(Field(&Advice::what, "--backend gloo")));
  EXPECT_THAT(advice(190e-6, 31e-3), IsEmpty()) << "noise";
  EXPECT_THAT(advise({.exchanges = {{"gloo", exchange(1, 1)}}}), IsEmpty()) << "nothing to compare";
}

TEST(Verdict, RecommendsBackgroundSavesOnASlowOrNetworkDisk) {
  EXPECT_THAT(advise({.directory = {.file_system = "ext4"}, .saved = save(0.05)}), IsEmpty());
  EXPECT_THAT(advise({.directory = {.file_system = "ext4"}, .saved = save(2)}),
              ElementsAre(AllOf(Field(&Advice::what, HasSubstr("--checkpoint.async true")),
                                Field(&Advice::because, HasSubstr("32.0 MiB durable in 2.0 s (16.0 MiB/s) on ext4")))));
  EXPECT_THAT(advise({.directory = {.file_system = "nfs4"}, .saved = save(0.05)}),
              Contains(AllOf(Field(&Advice::what, HasSubstr("--checkpoint.async true")),
                             Field(&Advice::because, HasSubstr("on nfs4, a network file system")))));
  EXPECT_THAT(advise({.directory = {.file_system = "fuse.sshfs"}, .saved = save(0.05)}), SizeIs(2));
  EXPECT_THAT(advise({.directory = {.file_system = "fuseblk"}, .saved = save(0.05)}), IsEmpty()) << "a local disk";
}

TEST(Verdict, RecommendsACacheForDataOnANetworkDisk) {
  const auto advice = [](const char* file_system) {
    return advise({.directory = {.checked = "/mnt/runs", .file_system = file_system}});
  };
  EXPECT_THAT(advice("ext4"), IsEmpty());
  EXPECT_THAT(advice("lustre"),
              ElementsAre(AllOf(Field(&Advice::what, HasSubstr("memory_cache in your program, or disk_cache")),
                                Field(&Advice::because, HasSubstr("/mnt/runs is on lustre, a network file system")))));
}

TEST(Verdict, SaysWhatPairsOfGpusWithoutNvlinkMean) {
  const auto advice = [](std::vector<GpuPair> pairs) {
    const auto copy = [](int from, int to, double seconds) {
      const Json pair = {{"from", from}, {"to", to}, {"seconds", seconds}};
      return Json::array({pair});
    };
    const Json times = Json::array({copy(0, 1, 1.0 / 320), copy(1, 0, 1.0 / 160)});
    return advise({.gpu_pairs = std::move(pairs),
                   .devices = {.lines = {{{"measured", "pairs"}, {"bytes", 64 << 20}, {"times", times}}}}});
  };
  const GpuPair linked{.a = 0, .b = 1, .path = "NVLink", .peer_access = true};
  EXPECT_THAT(advice({}), IsEmpty());
  EXPECT_THAT(advice({linked}), IsEmpty());
  EXPECT_THAT(advice({{.a = 0, .b = 1}}), IsEmpty()) << "the driver does not say what lies between them";
  EXPECT_THAT(advice({linked, {.a = 0, .b = 2, .path = "PIX", .peer_access = true}}),
              ElementsAre(AllOf(Field(&Advice::what, HasSubstr("--dist.compression bf16")),
                                Field(&Advice::because,
                                      "1 of 2 pairs of GPUs without NVLink (PIX): gradients go over "
                                      "the PCI bus; the slowest copy between two GPUs: 10.0 GiB/s"))));
  EXPECT_THAT(
      advice({{.a = 0, .b = 1, .path = "SYS", .peer_access = false}}),
      ElementsAre(Field(&Advice::because, HasSubstr("1 of 1 pair of GPUs without NVLink (SYS): gradients go over "
                                                    "the PCI bus, for 1 pair through the memory of the host;"))));
  EXPECT_THAT(advise({.gpu_pairs = {{.a = 0, .b = 1, .path = "PHB"}}}),
              ElementsAre(Field(&Advice::because, HasSubstr("(PHB): gradients go over the PCI bus"))))
      << "no copy was measured";
}

TEST(Verdict, RecommendsFewerThreadsIfTheyAreFaster) {
  const auto advice = [](double one_s, double four_s) {
    const Json line = {{"measured", "threads"},
                       {"times", {{{"threads", 4}, {"seconds", four_s}}, {{"threads", 1}, {"seconds", one_s}}}}};
    return advise({.saved = {.lines = {line}}});
  };
  EXPECT_THAT(advice(4e-3, 1e-3), IsEmpty());
  EXPECT_THAT(advice(1e-3, 4e-3), ElementsAre(Field(&Advice::what, "OMP_NUM_THREADS=1")));
}

TEST(Verdict, RecommendsMoreOrFewerDataWorkersIfTheyAreFaster) {
  const auto advice = [](double none_s, double two_s, double four_s) {
    const Json line = {{"measured", "workers"},
                       {"default", 2},
                       {"step_seconds", 1e-3},
                       {"batch_seconds", 4e-3},
                       {"times",
                        {{{"workers", 0}, {"seconds", none_s}},
                         {{"workers", 2}, {"seconds", two_s}},
                         {{"workers", 4}, {"seconds", four_s}}}}};
    return advise({.saved = {.lines = {line}}});
  };
  EXPECT_THAT(advice(5e-3, 2e-3, 1.9e-3), IsEmpty());
  EXPECT_THAT(advice(5e-3, 2e-3, 1e-3),
              ElementsAre(AllOf(Field(&Advice::what, HasSubstr("--data.workers 4 --data.prefetch 4, if")),
                                Field(&Advice::because, HasSubstr("takes 2.0 ms with 2 workers, 1.0 ms with 4")))));
  EXPECT_THAT(advice(1e-3, 2e-3, 2e-3), ElementsAre(Field(&Advice::what, HasSubstr("--data.workers 0, if"))));
}

TEST(Verdict, RecommendsFewerReportsIfTheyTakeMuchOfATinyStep) {
  const auto advice = [](double step_s, double report_s) {
    const Json line = {{"measured", "step"}, {"seconds", step_s}, {"report_seconds", report_s}};
    return advise({.exchanges = {{"gloo", {.lines = {line}}}}});
  };
  EXPECT_THAT(advice(1e-3, 0.2e-3), IsEmpty());
  EXPECT_THAT(advice(1e-3, 5e-3), ElementsAre(AllOf(Field(&Advice::what, HasSubstr("--report.every_steps 100")),
                                                    Field(&Advice::because, HasSubstr("20 % of the time")))));
}

TEST(Verdict, SaysWhereTheBatchSizeOfAGpuComesFrom) {
  EXPECT_THAT(advise({.gpu_memory_bytes = std::int64_t{80} << 30}),
              ElementsAre(AllOf(Field(&Advice::what, HasSubstr("find_batch_size")),
                                Field(&Advice::because, HasSubstr("each GPU has 80.0 GiB or more; lockstep plan")))));
  EXPECT_THAT(advise({}), IsEmpty()) << "CPU ranks";
}

/// The end of a launch in which rank 1 was killed.
ProbeOutcome lost(int code, std::string errors) {
  return {.lines = {{{"measured", "lost"}, {"rank", 1}}}, .errors = std::move(errors), .code = code, .met_s = 0.5};
}

TEST(Verdict, WantsALostRankToBeBlamed) {
  const std::string blame = "error: rank 1 (pid 7) died of signal 9 (Killed)\n  hint: see dmesg\n";
  EXPECT_EQ(judge_lost_rank(2, lost(137, blame)).front().level, FindingLevel::ok);
  const Finding wrong_code = judge_lost_rank(2, lost(1, blame)).front();
  EXPECT_EQ(wrong_code.level, FindingLevel::failure);
  EXPECT_THAT(wrong_code.found, HasSubstr("found exit code 1"));
  const Finding other_rank = judge_lost_rank(2, lost(137, "error: rank 0 (pid 6) died of signal 9 (Killed)\n")).front();
  EXPECT_EQ(other_rank.level, FindingLevel::failure);
  EXPECT_THAT(other_rank.found, HasSubstr("rank 0 (pid 6) died"));
  ProbeOutcome left = lost(137, blame);
  left.left_behind = {7};
  EXPECT_THAT(judge_lost_rank(2, left).front().found, HasSubstr("pid 7 did not end"));
}

TEST(Verdict, SaysWhyALaunchFailed) {
  const auto start = [](ProbeOutcome outcome) { return judge_exchange("gloo", outcome).back(); };
  const Finding named =
      start({.errors = "rank 0 of 2\nerror: no room\n  hint: make some\n  exit code 74\n", .code = 74});
  EXPECT_EQ(named.subject, "start");
  EXPECT_EQ(named.found, "no room");
  EXPECT_EQ(named.fix, "make some");
  const Finding loader =
      start({.errors = "[rank0]: lockstep-probe: error while loading shared libraries: libtorch_cpu.so: cannot open\n"
                       "error: rank 0 finished with code 127\n",
             .code = 127});
  EXPECT_EQ(loader.found, "no rank can start: libtorch_cpu.so: cannot open");
  EXPECT_THAT(loader.fix, HasSubstr("/opt/libtorch"));
  EXPECT_THAT(start({.errors = "libx.so: cannot open\n", .code = 127}).found,
              AllOf(HasSubstr("exit code 127"), HasSubstr("libx.so: cannot open")));
  EXPECT_THAT(start({.timed_out = true}).found, HasSubstr("time limit"));
}

TEST(Verdict, JudgesTheGpusOfEachRank) {
  const auto check = [](const char* name, const char* problem) {
    return Json{{"check", name}, {"seconds", 2e-3}, {"problem", problem}};
  };
  const auto judged = [](std::vector<Json> lines) {
    return judge_devices({.lines = std::move(lines), .code = 0, .met_s = 0.5});
  };
  EXPECT_THAT(judged({}), IsEmpty());
  const auto right = judged({check("kernel", ""), check("copy", ""), check("pairs", "")});
  EXPECT_THAT(right, ElementsAre(AllOf(Field(&Finding::group, "GPUs"), Field(&Finding::subject, "kernel"),
                                       Field(&Finding::found, "a matrix product equals that of the CPU (2.0 ms)")),
                                 Field(&Finding::subject, "copy"), Field(&Finding::subject, "pairs")));
  EXPECT_THAT(right, Each(Field(&Finding::level, FindingLevel::ok)));
  const auto wrong = judged({check("kernel", ""), check("copy", "rank 1: 3 bytes differ"), check("pairs", "0 to 1")});
  EXPECT_THAT(wrong, ElementsAre(Field(&Finding::level, FindingLevel::ok),
                                 AllOf(Field(&Finding::level, FindingLevel::failure),
                                       Field(&Finding::found, "rank 1: 3 bytes differ"),
                                       Field(&Finding::fix, HasSubstr("--devices"))),
                                 AllOf(Field(&Finding::level, FindingLevel::failure),
                                       Field(&Finding::fix, HasSubstr("NCCL_P2P_DISABLE=1")))));
}

TEST(Verdict, ReportsTheSpeedsOfGpusAndPairs) {
  const auto pair = [](int from, int to, double seconds) {
    return Json{{"from", from}, {"to", to}, {"seconds", seconds}};
  };
  const Json copy = {
      {"measured", "copy"}, {"bytes", 64 << 20}, {"to_device_seconds", 1.0 / 16}, {"to_host_seconds", 1.0 / 8}};
  const auto judged = [&](Json times) {
    const Json pairs = {{"measured", "pairs"}, {"bytes", 64 << 20}, {"times", std::move(times)}};
    return judge_devices({.lines = {copy, pairs}, .code = 0, .met_s = 0.5});
  };
  const Json none = Json::array();
  EXPECT_THAT(judged(Json::array({none, none})),
              ElementsAre(AllOf(Field(&Finding::subject, "speed"),
                                Field(&Finding::found, "rank 0: 1.0 GiB/s to its GPU, 512.0 MiB/s back"))))
      << "no rank can reach another GPU";
  EXPECT_THAT(judged(Json::array({Json::array({pair(0, 1, 1.0 / 16)}), Json::array({pair(1, 0, 1.0 / 8)})})),
              ElementsAre(Field(&Finding::subject, "speed"),
                          AllOf(Field(&Finding::subject, "pair speed"),
                                Field(&Finding::found, "0 to 1 1.0 GiB/s, 1 to 0 512.0 MiB/s"))));
}

TEST(Verdict, SaysWhichGpusCouldNotBeTried) {
  const auto last = [](ProbeOutcome outcome) { return judge_devices(outcome).back(); };
  const Finding start = last({.errors = "error: no CUDA device\n  hint: run nvidia-smi\n", .code = 69});
  EXPECT_EQ(start.level, FindingLevel::failure);
  EXPECT_EQ(start.subject, "start");
  EXPECT_EQ(start.found, "no CUDA device");
  EXPECT_EQ(start.fix, "run nvidia-smi");
  EXPECT_EQ(last({.errors = "error: a kernel failed\n", .code = 1, .met_s = 0.5}).subject, "end");
  EXPECT_THAT(last({.met_s = 0.5, .left_behind = {7}}).found, HasSubstr("pid 7 did not end"));
}

TEST(Verdict, WantsTheBitsOfGlooFromSharedMemory) {
  const auto training = [](const char* weights) {
    return ProbeOutcome{.lines = {{{"measured", "training"}, {"weights", weights}}}};
  };
  EXPECT_EQ(judge_same_weights(training("1a"), training("1a")).front().level, FindingLevel::ok);
  EXPECT_EQ(judge_same_weights(training("1a"), training("1b")).front().level, FindingLevel::failure);
}

}  // namespace
}  // namespace lockstep
