#include "cli/launch/run_flags.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include <lockstep/base/error.h>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/launch/run_command.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

RunFlags parse(const std::string& line, const Variables& variables = {}) {
  return parse_run_flags(read_command_line(kRunCommand, split(line, ' '), variables), variables);
}

std::vector<std::string> problems_of(const std::string& line, const Variables& variables = {}) {
  std::vector<std::string> texts;
  try {
    parse(line, variables);
  } catch (const ConfigError& error) {
    for (const Problem& problem : error.problems()) {
      texts.push_back(problem.what + " | " + problem.hint);
    }
  }
  return texts;
}

TEST(RunFlags, TakesTorchrunsNamesInBothSpellings) {
  const RunFlags flags = parse(
      "--nproc_per_node 2,1 --nnodes=2 --node-rank 1 --master_addr node0 --master-port 4000 --rdzv-id job.1 "
      "--no-python --monitor_interval 5 --grace 1.5 -- train --nnodes 7");
  EXPECT_EQ(flags.ranks_per_node, (std::vector<int>{2, 1}));
  EXPECT_EQ(flags.nodes, 2);
  EXPECT_EQ(flags.node_rank, 1);
  EXPECT_EQ(flags.master_addr, "node0");
  EXPECT_EQ(flags.master_port, 4000);
  EXPECT_EQ(flags.run_id, "job.1");
  EXPECT_EQ(flags.grace_s, 1.5);
  EXPECT_THAT(flags.command, ElementsAre("train", "--nnodes", "7"));
}

TEST(RunFlags, TheFirstWordBeginsTheProgram) {
  const RunFlags flags = parse("--nproc-per-node 4 train -x --tee 9");
  EXPECT_EQ(flags.ranks_per_node, std::vector<int>{4});
  EXPECT_THAT(flags.command, ElementsAre("train", "-x", "--tee", "9"));
}

TEST(RunFlags, HasDefaults) {
  const RunFlags flags = parse("train");
  EXPECT_EQ(flags.ranks_per_node, std::vector<int>{1});
  EXPECT_EQ(flags.master_addr, "127.0.0.1");
  EXPECT_EQ(flags.master_port, 0);
  EXPECT_EQ(flags.run_id, "");
  EXPECT_EQ(flags.max_restarts, 0);
  EXPECT_EQ(flags.tee.of(0), Streams::none);
  EXPECT_EQ(parse("--log-dir logs train").tee.of(5), Streams::both);
  EXPECT_EQ(parse("--nnodes 3 --nproc-per-node 2 --master-addr a train").ranks_per_node, (std::vector<int>{2, 2, 2}));
  EXPECT_EQ(parse("--nnodes 1:1 --standalone train").nodes, 1);
  EXPECT_EQ(parse("--nnodes 2 --master-addr a train").master_port, 29500);
}

TEST(RunFlags, ReadsPetVariables) {
  const Variables variables({{"PET_NNODES", "2"},
                             {"PET_NPROC_PER_NODE", "4"},
                             {"PET_NODE_RANK", "1"},
                             {"PET_MASTER_ADDR", "node0"},
                             {"PET_MASTER_PORT", "29400"},
                             {"PET_STANDALONE", "0"},
                             {"RANK", "1"},
                             {"WORLD_SIZE", "2"}});
  const RunFlags flags = parse("--nproc-per-node 3 train", variables);
  EXPECT_EQ(flags.nodes, 2);
  EXPECT_EQ(flags.node_rank, 1);
  EXPECT_EQ(flags.ranks_per_node, (std::vector<int>{3, 3})) << "the flag wins";
  EXPECT_EQ(flags.master_port, 29400);
}

TEST(RunFlags, MapsTheRendezvousOfOneMachine) {
  const RunFlags flags = parse("--rdzv-backend c10d --rdzv-endpoint localhost:0 train");
  EXPECT_EQ(flags.master_addr, "localhost");
  EXPECT_EQ(flags.master_port, 0);
  EXPECT_EQ(parse("--rdzv-endpoint [::1]:29400 train").master_addr, "::1");
  EXPECT_EQ(parse("--rdzv-endpoint [::1]:29400 train").master_port, 29400);
}

TEST(RunFlags, ReadsStreams) {
  const RunFlags flags = parse("--log-dir l -r 0:1,1:2 -t 3 --local-ranks-filter 0,2 train");
  EXPECT_EQ(flags.redirects.of(0), Streams::out);
  EXPECT_EQ(flags.redirects.of(1), Streams::err);
  EXPECT_EQ(flags.redirects.of(2), Streams::none);
  EXPECT_EQ(flags.tee.of(7), Streams::both);
  EXPECT_EQ(flags.shown_local_ranks, (std::set<int>{0, 2}));
}

TEST(RunFlags, TakesAnEmptyLogDirAsNone) {
  const std::map<std::string, std::string, std::less<>> empty{{"PET_LOG_DIR", ""}};
  for (const RunFlags& flags : {parse("--log-dir= train"), parse("train", Variables(empty))}) {
    EXPECT_EQ(flags.log_dir, "");
    EXPECT_EQ(flags.tee.of(0), Streams::none);
  }
  EXPECT_THAT(problems_of("--log-dir= --redirects 1 train"),
              testing::Contains(HasSubstr("there is no directory for the files")));
}

TEST(RunFlags, ReportsAllProblems) {
  EXPECT_THAT(
      problems_of("--nproc-per-nod 2 --max-restarts x --nnodes 1:4 --module --tee 4"),
      testing::UnorderedElementsAre("--nproc-per-nod: unknown flag | did you mean --nproc-per-node?",
                                    HasSubstr("--max-restarts x: expected"), HasSubstr("torchrun --nnodes MIN:MAX"),
                                    HasSubstr("python3 -m MODULE"), HasSubstr("--tee 4: expected 0 to 3")));
}

TEST(RunFlags, TakesNoValueOfARefusedFlagAsTheProgram) {
  EXPECT_THAT(problems_of("--role x -m foo"),
              ElementsAre(HasSubstr("--role: not possible"), HasSubstr("--module: not possible")));
  EXPECT_THAT(problems_of("-m foo --lr 1"), ElementsAre(HasSubstr("--module: not possible")));  // foo is the program
}

TEST(RunFlags, ShowThatAValueIsEmpty) {
  using Texts = std::map<std::string, std::string, std::less<>>;
  EXPECT_THAT(problems_of("--nproc-per-node= t"),
              ElementsAre(HasSubstr("--nproc-per-node=\"\": expected a number from 1")));
  EXPECT_THAT(problems_of("t", Variables(Texts{{"PET_NPROC_PER_NODE", ""}})),
              ElementsAre(HasSubstr("PET_NPROC_PER_NODE=\"\": expected a number from 1")));
  EXPECT_THAT(problems_of("t", Variables(Texts{{"PET_MODULE", ""}})),
              ElementsAre(HasSubstr("PET_MODULE=\"\": not possible with lockstep run")));
}

TEST(RunFlags, RejectsUnsupportedFlags) {
  const std::pair<const char*, const char*> cases[] = {
      {"--nproc-per-node 0 t", "expected a number from 1"},
      {"--nproc-per-node 2,1 t", "2 numbers for 1 machine"},
      {"--nnodes 65536 --master-addr a --nproc-per-node 65536 t", "found 4294967296 ranks, expected 65536 at most"},
      {"--nnodes 2 t", "need a common address"},
      {"--nnodes 2 --master-addr a --nproc-per-node auto t", "is not known here"},
      {"--nnodes 2 --master-addr a --max-restarts 1 t", "not possible with several machines"},
      {"--nnodes 2 --master-addr a --rdzv-backend c10d t", "in the order in which they connect"},
      {"--nnodes 2 --master-addr a --standalone t", "allows one machine"},
      {"--nnodes 2 --master-addr a --master-port 0 t", "from 1 to 65535"},
      {"--node-rank 1 t", "--node-rank 1 of 1 machine"},
      {"--rdzv-backend etcd t", "expected static or c10d"},
      {"--rdzv-id ../up t", "letters, digits"},
      {"--rdzv-endpoint a:b t", "expected HOST"},
      {"--redirects 1 t", "no directory for the files"},
      {"--log-dir l --redirects 0:7 t", "LOCAL_RANK:STREAMS"},
      {"--virtual-local-rank t", "use torchrun"},
      {"--standalone=1 t", "takes no value"},
      {"--nnodes", "expected a value"},
      {"--grace -1 t", "expected seconds"},
      {"--nnodes 1", "run: PROGRAM is missing"},
  };
  for (const auto& [line, expected] : cases) {
    EXPECT_THAT(problems_of(line), testing::Contains(HasSubstr(expected))) << line;
  }
}

TEST(RunFlags, HelpNamesEveryFlag) {
  EXPECT_TRUE(read_command_line(kRunCommand, split("--nonsense --help", ' '), {}).help);
  for (const char* flag : {"--nproc-per-node", "--max-restarts", "-r, --redirects STREAMS", "--numa-binding"}) {
    EXPECT_THAT(help_of(kRunCommand, 80), HasSubstr(flag));
  }
}

TEST(RunCommand, CountsRanksByTheMachine) {
  Hardware machine;
  machine.cores = 8;
  EXPECT_EQ(make_launch_request(parse("--nproc-per-node auto t"), machine, {}).ranks_per_node, std::vector<int>{8});
  EXPECT_THROW(make_launch_request(parse("--nproc-per-node gpu t"), machine, {}), ConfigError);
  machine.gpus.resize(2);
  EXPECT_EQ(make_launch_request(parse("--nproc-per-node auto t"), machine, {}).ranks_per_node, std::vector<int>{2});
  EXPECT_EQ(make_launch_request(parse("--nproc-per-node gpu t"), machine, {}).threads_per_rank, 4);
  EXPECT_EQ(make_launch_request(parse("--nproc-per-node cpu t"), machine, {}).ranks_per_node, std::vector<int>{8});
}

TEST(RunCommand, RoutesStreams) {
  const LaunchRequest request =
      make_launch_request(parse("--nproc-per-node 3 --log-dir l -r 0:3 -t 1 --local-ranks-filter 0,1 t"), {}, {});
  ASSERT_EQ(request.routes.size(), 3U);
  const auto text = [&](std::size_t rank) {
    const OutputRoute& route = request.routes[rank];
    return std::string(route.out_on_terminal ? "o" : "-") + (route.err_on_terminal ? "e" : "-") +
           (route.out_in_file ? "O" : "-") + (route.err_in_file ? "E" : "-");
  };
  EXPECT_EQ(text(0), "--OE");
  EXPECT_EQ(text(1), "oeO-");
  EXPECT_EQ(text(2), "--O-");
}

TEST(RunCommand, ShowsOnlyRanksThatSomeMachineHas) {
  const std::string two_machines =
      "--nnodes 2 --nproc-per-node 2,1 --master-addr a --node-rank 1 --local-ranks-filter ";
  EXPECT_NO_THROW(make_launch_request(parse(two_machines + "1 t"), {}, {}));
  EXPECT_THROW(make_launch_request(parse(two_machines + "2 t"), {}, {}), ConfigError);
}

}  // namespace
}  // namespace lockstep
