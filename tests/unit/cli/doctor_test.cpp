// `lockstep doctor` and `lockstep system` as a user runs them, with faults that are real where this machine allows it.
#include <filesystem>

#include <gmock/gmock.h>
#include <sys/resource.h>

#include "base/json.h"
#include "cli/doctor/facts.h"
#include "support/fake_driver.h"
#include "support/forwarding_file_system.h"
#include "support/launch_environment.h"
#include "support/listener.h"
#include "support/process.h"
#include "support/requirements.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

class Doctor : public testing::Test {
 protected:
  /// In an empty directory, without variables of a launcher.
  Process::Result run(std::vector<std::string> args, Process::Environment extra = {}) {
    args.insert(args.begin(), {LOCKSTEP_CLI, "doctor"});
    return run_program(args, extra, temp_.path().string());
  }

  /// A finding of the JSON output: "warn: what was found"; "": there is none of this subject that is not OK.
  std::string finding(const std::string& subject, std::vector<std::string> args, Process::Environment extra = {}) {
    args.emplace_back("--json");
    result_ = run(std::move(args), std::move(extra));
    const Json json = parse_json(result_.out);
    for (const Json& found : json["findings"]) {
      if (found["subject"] == subject && found["level"] != "ok") {
        return found["level"].get<std::string>() + ": " + found["found"].get<std::string>();
      }
    }
    return {};
  }

  Process::Environment fake_driver(const std::string& gpus) { return lockstep::fake_driver(temp_.path(), gpus); }

  TempDir temp_;
  Process::Result result_{};
};

TEST_F(Doctor, LeavesNothingInTheRunDirectory) {
  const Process::Result result = run({});
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("\nrun directory\n"));
  EXPECT_THAT(result.out, HasSubstr("\nverdict: "));
  EXPECT_THAT(real_file_system().list(temp_.path()), IsEmpty());
}

TEST_F(Doctor, FailsWithADirectoryThatCannotBeWritten) {
  EXPECT_THAT(finding("writing", {}), IsEmpty());
  EXPECT_THAT(finding("writing", {"--run-dir", "/proc/1"}),
              HasSubstr("fail: /proc/1 (proc): cannot create a directory"));
  EXPECT_EQ(result_.code, 1);
}

TEST_F(Doctor, ChecksTheNearestDirectoryThatExists) {
  const Process::Result result = run({"--json", "--run-dir=runs/first"});
  const Json directory = parse_json(result.out)["directory"];
  EXPECT_EQ(directory["asked"], "runs/first");
  EXPECT_EQ(directory["checked"], std::filesystem::canonical(temp_.path()).string());
  EXPECT_THAT(real_file_system().list(temp_.path()), IsEmpty());
}

TEST_F(Doctor, NamesTheProcessThatHoldsThePort) {
  const Listener listener([](int) {});
  const std::string found = finding("port", {"--port", listener.port()});
  EXPECT_THAT(found, HasSubstr("fail: " + listener.port() + " (--port): "));
  EXPECT_THAT(found, HasSubstr("is held by pid " + std::to_string(getpid()) + " "));
  EXPECT_EQ(result_.code, 1);
  EXPECT_THAT(finding("port", {}, {{"MASTER_PORT", listener.port()}}), HasSubstr("(MASTER_PORT)"));
}

TEST_F(Doctor, FailsWithALimitOfOpenFilesThatIsTooLow) {
  const std::vector<std::string> command{
      "/bin/sh", "-c", std::string("ulimit -n 100 && exec ") + LOCKSTEP_CLI + " doctor --nprocs \"$0\""};
  const auto with_ranks = [&](const std::string& ranks) {
    std::vector<std::string> argv = command;
    argv.push_back(ranks);
    return run_program(argv, {}, temp_.path().string());
  };
  const Process::Result eight = with_ranks("8");
  EXPECT_EQ(eight.code, 1);
  EXPECT_THAT(eight.out, HasSubstr("FAIL  open files    the hard limit is 100, 8 ranks need up to 112"));
  EXPECT_THAT(with_ranks("1").out, Not(HasSubstr("the hard limit is")));
}

TEST_F(Doctor, FailsWithAMasterThatCannotBeResolved) {
  EXPECT_THAT(finding("MASTER_ADDR", {}, {{"MASTER_ADDR", "no-such-host.invalid"}}),
              HasSubstr("fail: no-such-host.invalid cannot be resolved"));
  EXPECT_THAT(finding("MASTER_ADDR", {}, {{"MASTER_ADDR", "127.0.0.1"}}), IsEmpty());
}

TEST_F(Doctor, FailsWithAnInterfaceThatDoesNotExist) {
  EXPECT_THAT(finding("GLOO_SOCKET_IFNAME", {}, {{"GLOO_SOCKET_IFNAME", "nosuch0"}}),
              HasSubstr("fail: nosuch0: this machine has no such interface"));
  EXPECT_THAT(finding("GLOO_SOCKET_IFNAME", {}, {{"GLOO_SOCKET_IFNAME", "lo"}}), IsEmpty());
}

TEST_F(Doctor, ReportsContradictoryVariablesOfALauncher) {
  EXPECT_THAT(finding("launcher", {}, {{"RANK", "4"}, {"WORLD_SIZE", "four"}, {"LOCAL_RANK", "0"}}),
              HasSubstr("WORLD_SIZE"));
  EXPECT_EQ(result_.code, 1);
}

TEST_F(Doctor, FailsWithSettingsThatEveryProgramRefuses) {
  EXPECT_THAT(finding("settings", {}, {{"LOCKSTEP_CFG_BATCH_SIZE", "x"}, {"LOCKSTEP_CFG_PROGRAM_WIDTH", "64"}}),
              HasSubstr("fail: LOCKSTEP_CFG_BATCH_SIZE=x: "));
  EXPECT_EQ(result_.code, 1);
  EXPECT_THAT(finding("settings", {}, {{"LOCKSTEP_CFG_FOO", "1"}}), HasSubstr("fail: LOCKSTEP_CFG_FOO: unknown"));
  EXPECT_THAT(finding("settings", {}, {{"LOCKSTEP_CFG_BATCH_SIZE", "8"}}), IsEmpty());
}

TEST_F(Doctor, WarnsOfAMasterPortThatIsNone) {
  EXPECT_EQ(finding("MASTER_PORT", {}, {{"MASTER_PORT", "abc"}}), "warn: abc: expected a port from 1 to 65535");
  EXPECT_THAT(finding("MASTER_PORT", {}, {{"MASTER_PORT", "29511"}}), IsEmpty());
}

TEST_F(Doctor, NamesTheBrokenOneOfFourGpus) {
  const auto environment = fake_driver("GPU-a free,GPU-b free,GPU-c lost,GPU-d busy");
  EXPECT_THAT(finding("GPU 2", {}, environment), HasSubstr("fail: it does not answer: GPU is lost"));
  EXPECT_EQ(result_.code, 1);
  const Json json = parse_json(result_.out);
  EXPECT_EQ(json["ranks"], 3);
  EXPECT_THAT(json["system"]["driver"]["gpus"], SizeIs(4));
  EXPECT_EQ(json["gpu_uuids"]["3"], "GPU-d");
  EXPECT_THAT(finding("GPU 3", {}, environment), HasSubstr("used by pid 100 "));
  EXPECT_THAT(finding("GPU 2", {}, fake_driver("GPU-a free,GPU-b free,GPU-c free,GPU-d free")), IsEmpty());
}

TEST_F(Doctor, FindsNoFaultOfAMachineWithFourSoundGpus) {
  const Process::Result result = run({"--json"}, fake_driver("GPU-a free,GPU-b free,GPU-c free,GPU-d free"));
  EXPECT_EQ(result.code, 0) << result.out;
  const Json json = parse_json(result.out);
  EXPECT_EQ(json["failures"], 0) << result.out;
  EXPECT_EQ(json["ranks"], 4);
  EXPECT_THAT(json["system"]["driver"]["gpus"], SizeIs(4));
}

TEST_F(Doctor, FailsWithADriverThatDoesNotMatchItsLibrary) {
  EXPECT_THAT(finding("driver", {}, fake_driver("18")), HasSubstr("fail: the NVIDIA driver does not start: "
                                                                  "Driver/library version mismatch"));
  EXPECT_EQ(result_.code, 1);
}

TEST_F(Doctor, WarnsOfASmallShm) {
  LOCKSTEP_REQUIRE(Requirements().that(run_program({"unshare", "--mount", "true"}).code == 0,
                                       "no mount namespaces: they need root"));
  const auto with_shm = [&](const std::string& size) {
    return run_program({"unshare", "--mount", "sh", "-c",
                        "mount -t tmpfs -o size=" + size + " tmpfs /dev/shm && exec \"$0\" doctor", LOCKSTEP_CLI},
                       fake_driver("GPU-a free,GPU-b free"), temp_.path().string());
  };
  EXPECT_THAT(with_shm("1m").out, HasSubstr("WARN  /dev/shm      1.0 MiB; NCCL connects ranks of one machine over it"));
  EXPECT_THAT(with_shm("1g").out, HasSubstr("OK    /dev/shm      1.0 GiB\n"));
}

TEST_F(Doctor, NamesTheNcclThatAProgramWouldLoad) {
  const auto link = temp_.path() / "libnccl.so.2";
  std::filesystem::create_symlink(LOCKSTEP_FAKE_NCCL, link);
  const Process::Result result =
      run({"--json"}, {{"LD_LIBRARY_PATH", temp_.path().string()}, {"LOCKSTEP_TEST_NCCL", "23456"}});
  const Json json = parse_json(result.out);
  EXPECT_EQ(json["system"]["build"]["nccl_version"], built_with_nccl() ? "2.34.56" : "");
  const std::string found = built_with_nccl() ? "2.34.56 (" + link.string() + ")" : "none: this build uses no CUDA";
  if (built_with_nccl() || !built_with_cuda()) {
    EXPECT_THAT(result.out, HasSubstr(found));
  }
}

TEST_F(Doctor, RejectsInvalidArguments) {
  EXPECT_EQ(run({"--nprocs"}).code, 2);
  EXPECT_EQ(run({"--nprocs", "0"}).code, 2);
  EXPECT_EQ(run({"--port", "65536"}).code, 2);
  EXPECT_EQ(run({"--run-dir="}).code, 2);
  const Process::Result unknown = run({"--ranks", "2"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("--ranks: unknown flag"));
  const Process::Result help = run({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr("usage: lockstep doctor [--run-dir DIR]"));
}

TEST(System, PrintsFactsAndNoUnknownVariables) {
  const Process::Environment extra{{"MY_SECRET_TOKEN", "hunter2"}, {"NCCL_DEBUG", "INFO"}};
  const Process::Result text = run_program({LOCKSTEP_CLI, "system"}, extra);
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, HasSubstr("variables  "));
  EXPECT_THAT(text.out, HasSubstr("NCCL_DEBUG=INFO"));
  EXPECT_THAT(text.out, HasSubstr("\ncuDNN      "));
  EXPECT_THAT(text.out, Not(HasSubstr("hunter2")));
  EXPECT_THAT(text.out, Not(HasSubstr("SECRET")));
  const Process::Result json = run_program({LOCKSTEP_CLI, "system", "--json"}, extra);
  EXPECT_EQ(parse_json(json.out)["variables"]["NCCL_DEBUG"], "INFO");
  EXPECT_THAT(json.out, Not(HasSubstr("hunter2")));
  EXPECT_EQ(run_program({LOCKSTEP_CLI, "system", "--all"}).code, 2);
  EXPECT_EQ(run_program({LOCKSTEP_CLI, "system", "--help"}).code, 0);
}

TEST(System, LeavesOutTheUuidsOfVisibleGpus) {
  const auto shown = [](const std::string& visible) {
    const Process::Environment extra{{"CUDA_VISIBLE_DEVICES", visible}};
    const Process::Result text = run_program({LOCKSTEP_CLI, "system"}, extra);
    EXPECT_THAT(text.out, Not(HasSubstr("1234abcd")));
    return parse_json(run_program({LOCKSTEP_CLI, "system", "--json"}, extra).out)["variables"]["CUDA_VISIBLE_DEVICES"];
  };
  EXPECT_EQ(shown("GPU-1234abcd-0000-1111-2222-333344445555,GPU-1234abcd"), "GPU-(uuid),GPU-(uuid)");
  EXPECT_EQ(shown("MIG-1234abcd-0000-1111-2222-333344445555"), "MIG-(uuid)");
  EXPECT_EQ(shown("MIG-GPU-1234abcd-0000-1111-2222-333344445555/1/0"), "MIG-(uuid)");
  EXPECT_EQ(shown("0,3"), "0,3") << "the control";
}

TEST(DoctorFacts, HaveTheLauncherAndItsJob) {
  const LauncherFacts task = collect_launcher_facts(Variables(recorded("srun_N2_n4_task3")));
  EXPECT_THAT(task.problems, IsEmpty());
  ASSERT_TRUE(task.identity);
  EXPECT_EQ(task.identity->launcher, "Slurm");
  EXPECT_EQ(task.identity->rank, 3);
  EXPECT_NE(task.job, "");
  const LauncherFacts body = collect_launcher_facts(Variables(recorded("sbatch_body")));
  ASSERT_TRUE(body.identity);
  EXPECT_THAT(body.identity->hints, SizeIs(1)) << "srun is missing";
  const LauncherFacts none = collect_launcher_facts(Variables());
  EXPECT_FALSE(none.identity);
  EXPECT_EQ(none.job, "");
}

/// A file system without locks, or one that grants every lock.
class OddLocks : public ForwardingFileSystem {
 public:
  explicit OddLocks(bool refuse) : ForwardingFileSystem(real_file_system()), refuse_(refuse) {}
  std::unique_ptr<FileLock> try_lock(const Path& path, const std::string& my_text, std::string& owner) override {
    if (refuse_) {
      throw IoError("cannot lock " + path.string() + ": No locks available", {}, ENOLCK);
    }
    return ForwardingFileSystem::try_lock(path.string() + std::to_string(++locks_), my_text, owner);
  }

 private:
  bool refuse_;
  int locks_ = 0;
};

TEST(DoctorFacts, NoticeAFileSystemWithoutLocks) {
  const TempDir temp;
  OddLocks refusing(true);
  EXPECT_THAT(collect_directory_facts(refusing, temp.path()).lock_problem, HasSubstr("No locks available"));
  OddLocks granting(false);
  EXPECT_THAT(collect_directory_facts(granting, temp.path()).lock_problem, HasSubstr("granted at once"));
  const DirectoryFacts healthy = collect_directory_facts(real_file_system(), temp.path());
  EXPECT_EQ(healthy.lock_problem, "");
  EXPECT_EQ(healthy.failed, "");
  EXPECT_EQ(healthy.clock_skew_s, 0);
  EXPECT_GT(healthy.sync_s, 0);
  EXPECT_GT(healthy.free_bytes, 0);
  EXPECT_THAT(real_file_system().list(temp.path()), IsEmpty());
}

}  // namespace
}  // namespace lockstep
