// The guided ways in as a user meets them: config, plan, completion, start, and the list of commands.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <lockstep/base/file_system.h>

#include "base/json.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/launch/shell_words.h"
#include "support/process.h"
#include "support/requirements.h"
#include "support/temp_dir.h"
#include "support/terminal.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

Process::Result lockstep(std::vector<std::string> args, const std::string& directory = ".",
                         Process::Environment environment = {}) {
  args.insert(args.begin(), LOCKSTEP_CLI);
  environment.insert({"CUDA_VISIBLE_DEVICES", "-1"});  // the same answers on a machine with GPUs
  return run_program(args, environment, directory);
}

std::string name_of(const Command& command) { return std::string(command.name); }

TEST(Commands, AreListedAndExplainThemselves) {
  const std::string usage = lockstep({"help"}).out;
  EXPECT_EQ(lockstep({}).out, usage);
  EXPECT_EQ(lockstep({"--help"}).out, usage);
  for (const Command* command : commands()) {
    EXPECT_THAT(usage, HasSubstr(fmt::format("\n  {}", command->name)));
    const auto help = lockstep({"help", name_of(*command)});
    EXPECT_EQ(help.code, 0) << command->name << help.err;
    EXPECT_THAT(help.out, StartsWith("usage: lockstep " + name_of(*command)));
    EXPECT_THAT(help.out, HasSubstr("\nexit code: "));
    for (const FlagRow& flag : command->flags) {
      EXPECT_THAT(help.out, HasSubstr(fmt::format("--{}", flag.name)));
    }
    for (const char* flag : {"--help", "-h"}) {
      EXPECT_EQ(lockstep({name_of(*command), flag}).out, help.out) << "whatever else is wrong or missing";
    }
  }
}

TEST(Commands, RefuseWhatTheyDoNotKnow) {
  for (const Command* command : commands()) {
    const auto near = lockstep({name_of(*command), "--hepl"});
    EXPECT_EQ(near.code, 2) << command->name;
    EXPECT_THAT(near.err, HasSubstr("--hepl: unknown flag\n  hint: did you mean --help?")) << command->name;
    EXPECT_EQ(near.out, "");
    const auto far = lockstep({name_of(*command), "--zebra"});
    EXPECT_EQ(far.code, 2) << command->name;
    EXPECT_THAT(far.err, HasSubstr("--zebra: unknown flag\n  hint: see ")) << command->name;
  }
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"paln"}, {"help", "paln"}, {"help", "--man", "paln"}}) {
    const auto wrong = lockstep(words);
    EXPECT_EQ(wrong.code, 2);
    EXPECT_EQ(wrong.err, "error: paln: unknown command\n  hint: did you mean lockstep plan?\n");
  }
}

TEST(Commands, AnEmptyOneIsNamed) { EXPECT_THAT(lockstep({""}).err, HasSubstr("error: \"\": unknown command")); }

TEST(Commands, SayWhichWordIsWrong) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"verify"}, "verify: DIR is missing\n  hint: usage: lockstep verify [--json] DIR\n"},
      {{"compare"}, "compare: A is missing\n  hint: usage: lockstep compare [--json] A [B]\n"},
      {{"top", ""}, "top: found an empty word, expected RUN\n  hint: usage: lockstep top RUN\n"},
      {{"compare", "a", ""},
       "compare: found an empty word, expected B\n  hint: usage: lockstep compare [--json] A [B]\n"},
      {{"top", "a", "b"}, "top: unexpected argument \"b\"\n  hint: usage: lockstep top RUN\n"},
      {{"completion", "fish"},
       "completion: found fish, expected bash or zsh\n  hint: see lockstep completion --help\n"},
      {{"completion", "bahs"}, "completion: found bahs, expected bash or zsh\n  hint: did you mean bash?\n"},
      {{"report", "a", "--out"}, "--out: expected a value\n  hint: use --out FILE\n"},
      {{"report", "a", "--out="}, "--out: expected a value\n  hint: use --out FILE\n"},
      {{"list", "--json=yes"}, "--json=yes: takes no value\n  hint: use --json\n"},
      {{"doctor", "--port", "0"}, "--port 0: expected a whole number from 1 to 65535\n  hint: --port P: "},
      {{"plan", "--parameters", "many"},
       "--parameters many: expected a number such as 124M, 7B or 350000\n  hint: --parameters N: "},
      {{"plan", "--parameters", "7B", "--optimizer", "adamv"}, "--optimizer adamv: unknown optimizer\n  hint: did you"},
      {{"plan", "--optimizer", "adamw"}, "plan: --optimizer belongs to --parameters\n  hint: add --parameters"},
      {{"plan", "--nodes", "many"}, "--nodes many: expected a whole number from 0 to 65536\n  hint: --nodes N: "},
      {{"plan", "./train"},
       "unexpected argument \"./train\"\n  hint: plan describes settings and hardware; PROGRAM --dry-run prints the "
       "plan of a program\n"},
      {{"config", "--check", "a", "--migrate", "a"}, "config: found --check and --migrate, expected one of them"},
      {{"config", "--check", "a", "--check=b"},
       "--check=b: found --check twice, expected it once\n  hint: give one of them, or use lockstep config once for "
       "each\n"},
      {{"plan", "--parameters", ""}, "--parameters \"\": expected a number such as 124M, 7B or 350000\n"},
      {{"plan", "--nodes", "2", "--nprocs", "1"},
       "--nprocs 1: found 2 nodes (--nodes), expected a rank on each\n  hint: use --nprocs 2 or more, or fewer "
       "nodes\n"},
  };
  for (const auto& [words, message] : cases) {
    const auto result = lockstep(words);
    EXPECT_EQ(result.code, 2) << words[0];
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, StartsWith("error: " + message)) << words[0];
  }
  EXPECT_EQ(lockstep({"doctor", "--run-dir", ""}).err,
            "error: --run-dir: expected a value\n  hint: use --run-dir DIR\n");
  const auto all = lockstep({"verify", "--jsno", "--zebra=1"});
  EXPECT_THAT(all.err, AllOf(HasSubstr("--jsno: unknown flag"), HasSubstr("--zebra: unknown flag")));
}

TEST(Commands, TakeNamesThatLookLikeFlags) {
  const TempDir temp;
  const auto result = lockstep({"verify", "--", "--json"}, temp.path().string());
  EXPECT_THAT(result.err, HasSubstr("--json: no such directory"));
  std::filesystem::create_directory(temp.path() / "--json");
  EXPECT_THAT(lockstep({"verify", "--", "--json"}, temp.path().string()).out, HasSubstr("no valid checkpoint in"));
}

/// Without the escapes of man.
std::string readable(std::string page) {
  for (std::size_t at = page.find("\\-"); at != std::string::npos; at = page.find("\\-", at)) {
    page.replace(at, 2, "-");
  }
  return page;
}

TEST(ManualPage, NamesEveryCommandAndFlag) {
  const std::string page = lockstep({"help", "--man"}).out;
  EXPECT_THAT(page, StartsWith(".TH LOCKSTEP 1 "));
  const std::string text = readable(page);
  for (const Command* command : commands()) {
    EXPECT_THAT(text, HasSubstr("\n.SS " + usage_of(*command) + "\n"));
    for (const FlagRow& flag : command->flags) {
      EXPECT_THAT(text, HasSubstr(fmt::format("\\fB{}\\fR\n{}\n", flag_text(flag), flag.help)));
    }
  }
}

TEST(ManualPage, OfTheConverterHasTheFlagsOfTheScript) {
  const std::string page = readable(lockstep({"help", "--man", "lockstep-convert"}).out);
  EXPECT_THAT(page, StartsWith(".TH LOCKSTEP-CONVERT 1 "));
  std::istringstream script(read_text(LOCKSTEP_CONVERTER));
  const std::regex flag(R"re(add_argument\("--([a-z]+)".*help="([^"]*)"\))re");
  int flags = 0;
  std::smatch found;
  for (std::string line; std::getline(script, line);) {
    if (std::regex_search(line, found, flag)) {
      ++flags;
      EXPECT_THAT(page, ContainsRegex("fB--" + found[1].str() + "( [A-Za-z_|]+)?.fR\n" + found[2].str() + "\n"));
    }
  }
  EXPECT_EQ(flags, 4);
}

TEST(ManualPage, IsWhatManUnderstands) {
  LOCKSTEP_REQUIRE(Requirements().that(run_program({"sh", "-c", "command -v groff"}).code == 0, "no groff"));
  const TempDir temp;
  const auto warnings = [&](const std::string& page) {
    std::ofstream(temp.path() / "lockstep.1") << page;
    return run_program({"groff", "-man", "-Tascii", "-ww", "-z", (temp.path() / "lockstep.1").string()}).err;
  };
  const std::string page = lockstep({"help", "--man"}).out;
  EXPECT_EQ(warnings(page), "");
  EXPECT_EQ(warnings(lockstep({"help", "--man", "lockstep-convert"}).out), "");
  EXPECT_NE(warnings(page + ".nonsense\n"), "") << "the control";
}

class Config : public testing::Test {
 protected:
  void write(const std::string& text) const { std::ofstream(file_) << text; }

  TempDir temp_;
  std::filesystem::path file_ = temp_.path() / "a.toml";
};

TEST_F(Config, TheTemplateIsAValidFileThatChangesNothing) {
  write(lockstep({"config"}).out);
  const auto result = lockstep({"config", "--check", file_.string()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, file_.string() + ": 0 settings, no problem\n");
}

TEST_F(Config, CheckReportsAllProblemsWithTheirLines) {
  write("batch_size = -1\nseed = 1\n[optim]\nlearning_rate = 0.1\nlr = \"a\"\n[dist]\nbackend = \"mpi\"\nzzz = 1\n");
  const auto result = lockstep({"config", "--check", file_.string()});
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.out, "");
  const std::string name = file_.string();
  for (const std::string& part :
       {name + ":1: batch_size = -1: expected a whole number", name + ":4: optim.learning_rate: unknown setting",
        std::string("hint: use [optim] lr = X"), name + ":5: optim.lr = \"a\": expected a number",
        name + ":7: dist.backend: unknown setting\n  hint: did you mean backend?", name + ":8: dist.zzz: unknown"}) {
    EXPECT_THAT(result.err, HasSubstr(part));
  }
  write("seed = 3\n[optim]\nlr = 0.1\n");
  EXPECT_EQ(lockstep({"config", "--check", name}).out, name + ": 2 settings, no problem\n");
  write("run_name = \"a\"\n[program]\nwidth = 3\n");
  EXPECT_EQ(lockstep({"config", "--check", name}).out, name + ": 1 setting, no problem\n")
      << "run_name also decides run_dir; the program's own flags are not checked";
  const auto missing = lockstep({"config", "--check", name + "x"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_EQ(missing.err, "error: cannot open " + name + "x: No such file or directory\n");
}

TEST_F(Config, MigrateRenamesKeepsTheOldFileAndChecks) {
  const std::string old = "epochs = 3 # three\n[memory]\nkeep = false\n";
  write(old);
  const std::string name = file_.string();
  const auto result = lockstep({"config", "--migrate", name});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, name + ": epochs is now max_epochs\n" + name + ": memory.keep is now memory.keep_freed\n" +
                            name + ": the old file is " + name + ".old\n" + name + ": 2 settings, no problem\n");
  EXPECT_EQ(read_text(file_), "max_epochs = 3 # three\n[memory]\nkeep_freed = false\n");
  EXPECT_EQ(read_text(name + ".old"), old);
  EXPECT_EQ(lockstep({"config", "--migrate", name}).out,
            name + ": nothing to rename\n" + name + ": 2 settings, no problem\n");
}

TEST_F(Config, MigrateKeepsModeOwnerAndLink) {
  write("epochs = 3\n");
  const auto mode = std::filesystem::perms(0600);
  std::filesystem::permissions(file_, mode);
  const auto link = temp_.path() / "link.toml";
  std::filesystem::create_symlink("a.toml", link);
  const bool root = getuid() == 0;
  constexpr uid_t kOther = 12345;
  if (root) {
    ASSERT_EQ(chown(file_.c_str(), kOther, kOther), 0);
  }
  const auto result = lockstep({"config", "--migrate", link.string()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(read_text(file_), "max_epochs = 3\n");
  for (const std::string& path : {file_.string(), file_.string() + ".old"}) {
    struct stat status {};
    ASSERT_EQ(stat(path.c_str(), &status), 0) << path;
    EXPECT_EQ(status.st_mode & 07777U, 0600U) << path;
    EXPECT_EQ(status.st_uid, root ? kOther : getuid()) << path;
  }
  EXPECT_EQ(real_file_system().list(temp_.path()), (std::vector<std::string>{"a.toml", "a.toml.old", "link.toml"}));
}

TEST_F(Config, MigrateOverwritesNoFileAndReportsWhatIsLeft) {
  const std::string old = "epochs = 3\nzebra = 1\n";
  write(old);
  const std::string name = file_.string();
  std::ofstream(name + ".old") << "mine";
  EXPECT_EQ(lockstep({"config", "--migrate", name}).code, 2);
  EXPECT_EQ(read_text(file_), old);
  EXPECT_EQ(read_text(name + ".old"), "mine");
  std::filesystem::remove(name + ".old");
  const auto result = lockstep({"config", "--migrate", name});
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(read_text(file_), "max_epochs = 3\nzebra = 1\n");
  EXPECT_THAT(result.err, HasSubstr(":2: zebra: unknown setting"));
}

TEST(PlanCommand, PrintsThePlanAndARowPerRank) {
  const auto result = lockstep({"plan", "--nprocs", "3", "--global_batch_size", "32"});
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* part :
       {"launch       this program starts 3 ranks\n", "batch        32 over 3 ranks (11 or 10 each)",
        "\nrank  node  local rank  device  samples per step\n", "\n2     0     2           cpu     10\n"}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
  const auto wrong = lockstep({"plan", "--devices", "zero", "--nodes=-1", "--batch_sise", "4"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("did you mean --batch_size?"));
  EXPECT_EQ(lockstep({"plan", "--nodes=-1"}).code, 2);
}

TEST(PlanCommand, PlansForOtherMachinesAndNodes) {
  const TempDir temp;
  const std::string file = (temp.path() / "dgx.json").string();
  std::ofstream(file) << R"({"cores": 64, "gpus": [{"name": "G", "uuid": "GPU-1", "memory": "80GiB"},
                                                   {"name": "G", "uuid": "GPU-2", "memory": "80GiB"}]})";
  const auto result = lockstep({"plan", "--hardware", file, "--nodes", "2", "--batch_size", "8"});
  EXPECT_EQ(result.code, 0) << result.err;
  for (const char* part :
       {"launch       any launcher, one process per node on 2 nodes", "backend      nccl\n",
        "batch        32 = 8 per rank x 1 micro-batch x 4 ranks\n", "\n3     1     1           cuda:1 G  8\n"}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
  const Json json = parse_json(lockstep({"plan", "--hardware", file, "--nodes=2", "--json"}).out);
  EXPECT_EQ(json["world_size"], 4);
  EXPECT_EQ(json["ranks"].size(), 4U);
  EXPECT_EQ(json["ranks"][2]["node"], 1);
  EXPECT_EQ(json["ranks"][3]["device"]["uuid"], "GPU-2");
  EXPECT_EQ(json["ranks"][3]["samples_per_step"], 32);
  EXPECT_EQ(json["config"]["backend"], "nccl");
}

TEST(PlanCommand, ShowsTheMicroBatchThatARunRemembers) {
  const TempDir temp;
  const std::string file = (temp.path() / "node.json").string();
  std::ofstream(file) << R"({"cores": 64, "gpus": [{"name": "G", "uuid": "GPU-1", "memory": "80GiB"}]})";
  const std::string run = (temp.path() / "run").string();
  std::filesystem::create_directories(run);
  std::ofstream(run + "/batch_limit.json")
      << "{\"format\": 1, \"batch_size\": 8, \"device\": \"G (80.0 GiB)\", \"too_large\": 8}";
  const auto batch_with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words{"plan", "--hardware", file, "--run_dir", run, "--memory.halve_batch", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return parse_json(lockstep(words).out)["batch"]["batch_size"].get<int>();
  };
  EXPECT_EQ(batch_with({"--batch_size", "8"}), 4);
  EXPECT_EQ(batch_with({"--batch_size", "6"}), 6);
  EXPECT_EQ(batch_with({"--batch_size", "8", "--fresh"}), 8);
  EXPECT_EQ(batch_with({"--batch_size", "8", "--compute_setup", "cpu"}), 8) << "another device";
}

TEST(PlanCommand, SaysWhetherAModelFits) {
  const TempDir temp;
  const std::string file = (temp.path() / "node.json").string();
  std::ofstream(file) << R"({"cores": 64, "gpus": [{"name": "G", "uuid": "GPU-1", "memory": "80GiB", "free": "70GiB"},
                                                   {"name": "G", "uuid": "GPU-2", "memory": "80GiB"}]})";
  const std::vector<std::string> plan{"plan", "--hardware", file, "--parameters"};
  const auto with = [&plan](std::vector<std::string> words) {
    words.insert(words.begin(), plan.begin(), plan.end());
    return lockstep(words);
  };
  const auto fits = with({"1B", "--optimizer", "sgd+momentum"});
  EXPECT_EQ(fits.code, 0) << fits.err;
  for (const char* part : {"memory of each rank, for 1,000,000,000 parameters with sgd+momentum in fp32\n",
                           "\n0           cuda:0 G    70.0 GiB              58.8 GiB\n", "find_batch_size"}) {
    EXPECT_THAT(fits.out, HasSubstr(part));
  }
  const auto lacks = with({"7b", "--json"});
  EXPECT_EQ(lacks.code, 2);
  EXPECT_EQ(
      lacks.err,
      "error: the model does not fit: without activations a rank needs 104.3 GiB, and has 70.0 GiB to 80.0 GiB "
      "on cuda:0, cuda:1\n"
      "  hint: use --precision bf16 --optim.stochastic_rounding true (then 52.2 GiB) or the optimizer adafactor (then "
      "52.2 GiB)\n");
  const Json memory = parse_json(lacks.out)["memory"];
  EXPECT_EQ(memory["fits"], false);
  const auto in_one_pipe =
      run_program({"sh", "-c", "\"$0\" plan --hardware \"$1\" --parameters 7B 2>&1", LOCKSTEP_CLI, file});
  EXPECT_LT(in_one_pipe.out.find("memory of each rank"), in_one_pipe.out.find("error: the model does not fit"));
  EXPECT_EQ(memory["optimizer_state_bytes"], 56'000'000'000);
  EXPECT_EQ(memory["ranks"][1]["available_bytes"], std::int64_t{80} << 30);
  EXPECT_LT(memory["ranks"][1]["activations_bytes"], 0);
  EXPECT_FALSE(parse_json(lockstep({"plan", "--json"}).out).contains("memory"));
}

/// What bash would offer for these words; the last one is incomplete.
std::vector<std::string> bash_offers(const std::vector<std::string>& words) {
  const std::string function = words[0] == "lockstep" ? "_lockstep_tool" : "_lockstep_program";
  const std::string script = fmt::format(
      "source <({} completion bash ./train) || exit 3\nCOMP_WORDS=({})\nCOMP_CWORD={}\n{}\n"
      "printf '%s\\n' \"${{COMPREPLY[@]}}\"",
      shell_quoted(LOCKSTEP_CLI), shell_command(words), words.size() - 1, function);
  const auto result = run_program({"bash", "--norc", "-uc", script});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  std::vector<std::string> offers = split(result.out, '\n');
  std::erase(offers, "");
  return offers;
}

TEST(BashCompletion, OffersCommandsFlagsAndWords) {
  EXPECT_THAT(bash_offers({"lockstep", "ver"}), ElementsAre("verify"));
  EXPECT_THAT(bash_offers({"lockstep", "verify", "--j"}), ElementsAre("--json"));
  EXPECT_THAT(bash_offers({"lockstep", "completion", ""}), ElementsAre("bash", "zsh"));
  EXPECT_THAT(bash_offers({"lockstep", "help", "com"}), ElementsAre("compare", "completion"));
  EXPECT_THAT(bash_offers({"lockstep", "ctl", "runs/a", "s"}), ElementsAre("stop", "save"));
  EXPECT_THAT(bash_offers({"lockstep", "ctl", "runs/a", ""}), ElementsAre("stop", "save", "validate", "report"));
  EXPECT_THAT(bash_offers({"lockstep", "ctl", "r"}), ElementsAre()) << "the shell completes the directory";
  EXPECT_THAT(bash_offers({"lockstep", "completion", "bash", ""}), ElementsAre());
  EXPECT_THAT(bash_offers({"lockstep", "run", "--nn"}), ElementsAre("--nnodes"));
  EXPECT_THAT(bash_offers({"lockstep", "run", "--numa-binding", ""}), ElementsAre("none", "node"));
  EXPECT_THAT(bash_offers({"lockstep", "run", "--", "./train", "--optim.l"}),
              ElementsAre("--optim.lr", "--optim.lr_scaling", "--optim.loss_scaling", "--optim.lr_batch_size"));
  EXPECT_THAT(bash_offers({"lockstep", "plan", "--nod"}), ElementsAre("--nodes"));
  EXPECT_THAT(bash_offers({"lockstep", "start", "--launcher", ""}), ElementsAre("srun", "own"));
}

TEST(BashCompletion, OffersTheFlagsOfProgramsAndTheirWords) {
  EXPECT_THAT(bash_offers({"./train", "--backe"}), ElementsAre("--backend"));
  EXPECT_THAT(bash_offers({"./train", "--backend", ""}), ElementsAre("auto", "nccl", "gloo", "shm"));
  EXPECT_THAT(bash_offers({"./train", "--backend", "=", "g"}), ElementsAre("gloo"));
  EXPECT_THAT(bash_offers({"./train", "--backend", "="}), ElementsAre("auto", "nccl", "gloo", "shm"));
  EXPECT_THAT(bash_offers({"./train", "--no-report.pro"}),
              ElementsAre("--no-report.progress", "--no-report.prometheus"));
  EXPECT_THAT(bash_offers({"./train", "--max-ep"}), ElementsAre("--max_epochs"));
  EXPECT_THAT(bash_offers({"./train", "--fresh", "--dry"}), ElementsAre("--dry-run"));
  EXPECT_THAT(bash_offers({"./train", "--resume", "l"}), ElementsAre("last"));
  EXPECT_THAT(bash_offers({"./train", "--run_name", "x"}), ElementsAre());
  EXPECT_THAT(bash_offers({"./train", "--zebra"}), ElementsAre());
}

/// A shell on a terminal in which completion was loaded.
void expect_completes(const std::vector<std::string>& shell, const std::string& name,
                      const std::map<std::string, std::string>& environment) {
  const TempDir directory;
  for (const char* program : {"train", "lockstep"}) {
    std::ofstream(directory.path() / program) << "#!/bin/sh\necho \"got<$*>\"\n";
    std::filesystem::permissions(directory.path() / program, std::filesystem::perms(0755));
  }
  OnTerminal terminal(shell, environment);
  // The mark is in two parts, so that the echo of the command does not contain it.
  terminal.type(fmt::format("cd {}; source <({} completion {} ./train); echo 'load''ed'\n", directory.path().string(),
                            LOCKSTEP_CLI, name));
  ASSERT_TRUE(terminal.read_until("loaded")) << terminal.screen;
  terminal.type("./lockstep veri\ta\n");
  ASSERT_TRUE(terminal.read_until("got<verify a>")) << terminal.screen;
  terminal.type("./train --backe\tgl\t\n");
  ASSERT_TRUE(terminal.read_until("got<--backend gloo>")) << terminal.screen;
  terminal.type("./train --precision=bf16_m\t\n");
  ASSERT_TRUE(terminal.read_until("got<--precision=bf16_mixed>")) << terminal.screen;
  terminal.type("./lockstep ctl run sto\t\n");
  ASSERT_TRUE(terminal.read_until("got<ctl run stop>")) << terminal.screen;
}

TEST(BashCompletion, WorksInAShellOnATerminal) {
  expect_completes({"/bin/bash", "--norc", "--noprofile", "-i"}, "bash", {{"INPUTRC", "/dev/null"}});
}

TEST(ZshCompletion, WorksInAShellOnATerminal) {
  LOCKSTEP_REQUIRE(Requirements().that(run_program({"sh", "-c", "command -v zsh"}).code == 0, "no zsh"));
  const TempDir home;
  expect_completes({"/bin/zsh", "-f", "-i"}, "zsh",
                   {{"HOME", home.path().string()}, {"ZDOTDIR", home.path().string()}});
}

class Start : public testing::Test {
 protected:
  Start() {
    const auto program = temp_.path() / "train";
    std::ofstream(program) << "#!/bin/sh\nprintf 'started:'; printf ' <%s>' \"$@\"; echo\n";
    std::filesystem::permissions(program, std::filesystem::perms(0755));
  }

  Process::Result start(std::vector<std::string> args, Process::Environment environment = {}) const {
    args.insert(args.begin(), "start");
    return lockstep(args, temp_.path().string(), std::move(environment));
  }

  /// On a terminal, in the directory of the program.
  std::vector<std::string> on_terminal(const std::string& args) const {
    return {"/bin/sh", "-c",
            fmt::format("cd {} && exec {} start {}", shell_quoted(temp_.path().string()), shell_quoted(LOCKSTEP_CLI),
                        args)};
  }

  TempDir temp_;
  const std::map<std::string, std::string> no_gpu_{{"CUDA_VISIBLE_DEVICES", "-1"}};
};

TEST_F(Start, WithoutATerminalTakesFlagsAndDefaults) {
  const auto started = start({"./train", "--yes", "--optim.lr=0.1", "--fresh", "--", "--data", "a b"});
  EXPECT_EQ(started.code, 0) << started.err;
  EXPECT_EQ(started.out, "started: <--fresh> <--optim.lr> <0.1> <--data> <a b>\n");
  EXPECT_EQ(started.err, "command: ./train --fresh --optim.lr 0.1 --data 'a b'\n");
  const auto refused = start({"./train"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.err, HasSubstr("use --yes to start the command"));
}

TEST_F(Start, PrintsACommandThatCanBePasted) {
  const std::string odd = "it's \"$HOME\" `x` \\ *";
  const auto printed = start({"--print", "./train", "--run_name", odd, "--devices=-1", "--compute_setup=cpu",
                              "--devices=1", "--no-report.csv", "--", "", "--end"});
  EXPECT_EQ(printed.code, 0) << printed.err;
  EXPECT_EQ(printed.err, "");
  const auto pasted = run_program({"sh", "-c", printed.out}, {}, temp_.path().string());
  EXPECT_EQ(pasted.out, "started: <--compute_setup> <cpu> <--devices> <1> <--run_name> <" + odd +
                            "> <--no-report.csv> <> <--end>\n");
}

TEST_F(Start, ReportsWrongFlagsAsTheProgramDoes) {
  for (const auto& [args, code, text] : std::vector<std::tuple<std::vector<std::string>, int, const char*>>{
           {{"./train", "--max_epochs", "x", "--batch_sise", "3"}, 2, "--max_epochs x: expected a whole number"},
           {{"./train", "--max_epochs", "x", "--batch_sise", "3"}, 2, "did you mean --batch_size?"},
           {{"./train", "--global_batch_size", "3", "--accumulation", "5", "--batch_size", "1"}, 2, "expected 5 to 5"},
           {{"./nothing", "--print"}, 127, "cannot find ./nothing"},
           {{"--print"}, 2, "no program to start"},
           {{"./train", "more"}, 2, "unexpected argument \"more\""},
           {{"./train", "--launcher", "srun"}, 2, "this shell is in no Slurm job"},
           {{"./train", "--launcher", "ssh"}, 2, "expected srun or own"}}) {
    const auto result = start(args, {{"SLURM_JOB_ID", ""}});
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr(text));
  }
  const auto rank = start(
      {"./train", "--yes"},
      {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1234"}});
  EXPECT_EQ(rank.code, 2);
  EXPECT_THAT(rank.err, HasSubstr("found the variables of a launcher (environment: RANK, WORLD_SIZE, LOCAL_RANK"));
}

TEST_F(Start, LeavesToTheProgramWhatDependsOnItsDefaults) {
  EXPECT_EQ(start({"./train", "--print", "--max_epochs", "0", "--resume", "best"}).out,
            "./train --max_epochs 0 --resume best\n");
  EXPECT_EQ(start({"./train", "--print", "--min_epochs", "20"}).out, "./train --min_epochs 20\n");
  const auto refused = start({"./train", "--print", "--min_epochs", "20", "--max_epochs", "3", "--max_steps=0"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--min_epochs 20 with --max_epochs 3: the run ends earlier"));
  EXPECT_THAT(start({"./train", "--print", "--resume", "best", "--checkpoint.monitor="}).err,
              HasSubstr("there is no metric that defines the best checkpoint"))
      << "the flags decide it";
}

TEST_F(Start, UsesTheNodesOfASlurmJob) {
  const Process::Environment job{{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NUM_NODES", "2"}};
  EXPECT_EQ(start({"./train", "--print", "--nprocs", "4"}, job).out,
            "srun --kill-on-bad-exit=1 --ntasks-per-node=1 ./train --nprocs 4\n");
  EXPECT_EQ(start({"./train", "--print", "--launcher", "own"}, job).out, "./train\n");
  const auto too_few = start({"./train", "--print", "--nprocs", "1"}, job);
  EXPECT_EQ(too_few.code, 2);
  EXPECT_THAT(too_few.err, HasSubstr("expected a rank on each"));
}

TEST_F(Start, AsksOnATerminalAndAsksAgainAfterAWrongAnswer) {
  OnTerminal terminal(on_terminal("-- --data x"), no_gpu_);
  const auto answer = [&](const std::string& question, const std::string& text) {
    ASSERT_TRUE(terminal.read_until(question)) << terminal.screen;
    terminal.screen.clear();
    terminal.type(text + "\n");
  };
  answer("program: ", "./trian");
  answer("error: cannot find ./trian", "./train");
  answer("number of ranks (--nprocs) [1]: ", "two");
  answer("--nprocs=two: expected a whole number from 0 to 65536", "2");
  answer("(--batch_size) [as the program says]: ", "");
  answer("epochs (--max_epochs) [as the program says]: ", "-1");
  answer("--max_epochs=-1: expected a whole number", "3");
  answer("name of the run (--run_name) [train]: ", "a/b");
  answer("expected the name of one directory", "first try");
  ASSERT_TRUE(terminal.read_until("start it, y or n [n]: ")) << terminal.screen;
  EXPECT_THAT(terminal.screen, HasSubstr("command: ./train --nprocs 2 --max_epochs 3 --run_name 'first try' --data x"));
  answer("[n]: ", "maybe");
  answer("expected y or n", "y");
  EXPECT_TRUE(terminal.read_until("")) << terminal.screen;
  EXPECT_THAT(terminal.screen,
              HasSubstr("started: <--nprocs> <2> <--max_epochs> <3> <--run_name> <first try> <--data> <x>"));
  EXPECT_EQ(terminal.wait(), 0);
}

// The first line says why there is no GPU.
TEST_F(Start, BreaksItsLinesBetweenWords) {
  OnTerminal terminal(on_terminal("./train"), no_gpu_, /*columns=*/60);
  ASSERT_TRUE(terminal.read_until("An empty answer takes the value in [ ].")) << terminal.screen;
  EXPECT_THAT(terminal.screen, HasSubstr("This machine has "));
  for (const std::string& line : split(terminal.screen, '\n')) {
    EXPECT_LE(trim(line).size(), 60U) << line;
  }
}

TEST_F(Start, FindsARunAndOffersToResumeIt) {
  std::filesystem::create_directories(temp_.path() / "runs/train/checkpoints/step-0000000500");
  std::ofstream(temp_.path() / "runs/train/run.json") << "{}";
  const std::string flags = "./train --nprocs 1 --batch_size 4 --max_epochs 2 --run_name train";
  OnTerminal terminal(on_terminal(flags + " --yes"), no_gpu_);
  ASSERT_TRUE(terminal.read_until("runs/train contains a run")) << terminal.screen;
  ASSERT_TRUE(terminal.read_until("[resume]: ")) << terminal.screen;
  terminal.type("fresh\n");
  ASSERT_TRUE(terminal.read_until("<--fresh>")) << terminal.screen;
  EXPECT_THAT(terminal.screen, Not(HasSubstr("start it")));

  OnTerminal other(on_terminal(flags + " --resume last"), no_gpu_);  // the control: nothing to ask but the yes
  ASSERT_TRUE(other.read_until("start it, y or n [n]: ")) << other.screen;
  EXPECT_THAT(other.screen, Not(HasSubstr("contains a run")));
  other.type("\n");
  ASSERT_TRUE(other.read_until("nothing was started")) << other.screen;
  EXPECT_TRUE(other.read_until(""));
  EXPECT_THAT(other.screen, Not(HasSubstr("started:")));
  EXPECT_EQ(other.wait(), 0);
}

TEST_F(Start, TheEndOfTheInputStartsNothing) {
  OnTerminal terminal(on_terminal("./train"), no_gpu_);
  ASSERT_TRUE(terminal.read_until("number of ranks")) << terminal.screen;
  terminal.type("\x04");
  ASSERT_TRUE(terminal.read_until("nothing was started")) << terminal.screen;
  EXPECT_TRUE(terminal.read_until(""));
  EXPECT_EQ(terminal.wait(), 2);
}

}  // namespace
}  // namespace lockstep
