#include "cli/commands.h"

#include "cli/compare_command.h"
#include "cli/completion_command.h"
#include "cli/config_command.h"
#include "cli/ctl_command.h"
#include "cli/plan_command.h"
#include "cli/run_command.h"
#include "cli/start_command.h"
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
    {"verify", "DIR", "read every byte of a run's checkpoints", "--json --help", false,
     [](Args args, const Variables&) { return verify_command(args); }},
    {"compare", "A B", "find the first difference of two runs", "--json --help", false,
     [](Args args, const Variables&) { return compare_command(args); }},
    {"ctl", "RUN COMMAND", "stop, save, validate or report a running training", "stop save validate report --help",
     false, [](Args args, const Variables&) { return ctl_command(args); }},
    {"completion", "bash|zsh [PROGRAM...]", "print a script that completes flags in a shell", "bash zsh --help", false,
     [](Args args, const Variables&) { return completion_command(args); }},
};

}  // namespace

std::span<const Command> commands() { return kCommands; }

}  // namespace lockstep
