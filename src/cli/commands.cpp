#include "cli/commands.h"

#include "cli/compare_command.h"
#include "cli/completion_command.h"
#include "cli/config_command.h"
#include "cli/ctl_command.h"
#include "cli/doctor_command.h"
#include "cli/list_command.h"
#include "cli/plan_command.h"
#include "cli/report_command.h"
#include "cli/run_command.h"
#include "cli/start_command.h"
#include "cli/system_command.h"
#include "cli/test_command.h"
#include "cli/top_command.h"
#include "cli/verify_command.h"

namespace lockstep {
namespace {

using Args = std::span<const std::string>;

constexpr Command kCommands[] = {
    {"start", "[PROGRAM] [flags]", "ask for what a run needs, then start it", "--yes --print --launcher", true,
     start_command},
    {"run", "[flags] -- PROGRAM", "start and watch one process per rank", "", false, run_command},
    {"plan", "[flags]", "print the plan of a run and start nothing", "--nodes --json", true, plan_command},
    {"config", "[--check|--migrate FILE]", "print, check or migrate a file of settings", "--check --migrate --help",
     false, [](Args args, const Variables&) { return config_command(args); }},
    {"list", "[DIR]", "show the runs in a directory", "--json --help", false,
     [](Args args, const Variables&) { return list_command(args); }},
    {"top", "RUN", "show a run in the terminal while it trains", "--help", false, top_command},
    {"report", "RUN...", "write an HTML page with the curves and events of runs", "--out --help", false,
     [](Args args, const Variables&) { return report_command(args); }},
    {"verify", "DIR", "read every byte of a run's checkpoints", "--json --help", false,
     [](Args args, const Variables&) { return verify_command(args); }},
    {"compare", "A B", "find the first difference of two runs", "--json --help", false,
     [](Args args, const Variables&) { return compare_command(args); }},
    {"ctl", "RUN COMMAND", "stop, save, validate or report a running training", "stop save validate report --help",
     false, [](Args args, const Variables&) { return ctl_command(args); }},
    {"doctor", "[flags]", "check whether training can work on this machine", "--json --run-dir --nprocs --port --help",
     false, doctor_command},
    {"test", "[flags]", "train with several ranks on this machine and check every part",
     "--nprocs --devices --compute-setup --backend --run-dir --time-limit --json --help", false, test_command},
    {"system", "[--json]", "print the facts of this machine for an issue", "--json --help", false, system_command},
    {"completion", "bash|zsh [PROGRAM...]", "print a script that completes flags in a shell", "bash zsh --help", false,
     [](Args args, const Variables&) { return completion_command(args); }},
};

}  // namespace

std::span<const Command> commands() { return kCommands; }

}  // namespace lockstep
