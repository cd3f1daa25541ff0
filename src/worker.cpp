#include "worker.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>
#include <lockstep/session.h>
#include <lockstep/trainer/trainer.h>

#include "base/duration.h"
#include "base/run_files.h"
#include "base/terminal.h"
#include "base/text.h"
#include "checkpoint/run_hold.h"
#include "environment/cpu_topology.h"
#include "environment/error_file.h"
#include "environment/launcher_process.h"
#include "environment/own_variables.h"
#include "environment/process_name.h"
#include "failure/end_process.h"
#include "failure/peer_monitor.h"
#include "ipc/channel.h"
#include "ipc/progress_record.h"
#include "launch/core_binding.h"
#include "launch/requeue.h"
#include "plan/batch_limit.h"
#include "plan/batch_plan.h"
#include "rank/channel_link.h"
#include "rank/crash_handler.h"
#include "rank/exit_guard.h"
#include "rank/terminate_handler.h"
#include "report/console.h"
#include "session_access.h"
#include "supervise/peer_stalls.h"
#include "world/out_of_memory.h"
#include "world/rank_place.h"
#include "world/rendezvous.h"
#include "world/world_access.h"

namespace lockstep {

void print_error(std::string_view text) {
  const std::string label = log_world_size() > 1 ? fmt::format("[rank{}]: ", log_rank()) : std::string();
  write_line(label + std::string(text));
}

namespace {

int code_of(ExitCode code) { return static_cast<int>(code); }

std::shared_ptr<Console> make_console(const std::shared_ptr<Channel>& channel, const Variables& environment) {
  if (channel) {
    const auto width = parse_int(environment.get(own_variables::kTerminalWidth).value_or("0")).value_or(0);
    return channel_console(channel, static_cast<int>(width));
  }
  const Terminal terminal = probe_terminal(STDERR_FILENO, environment);
  return terminal_console(terminal.interactive, terminal.width);
}

// Hides the descriptor to the supervisor from user code and its children.
std::shared_ptr<Channel> take_channel(const Identity& identity, ProgressRecord& record) {
  if (identity.launcher == "lockstep") {
    std::ranges::for_each(own_variables::kOnlyForTheRank, unsetenv);
  }
  if (!identity.is_supervised()) {
    return nullptr;
  }
  for (const int fd : {identity.control_fd, identity.progress_fd, identity.store_fd}) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  if (identity.store_fd >= 0) {
    listen(identity.store_fd, SOMAXCONN);  // `lockstep run` does not listen; early ranks would be rejected
  }
  // Kernels before 6.14 name a program after the descriptor by which the launcher executed it.
  prctl(PR_SET_NAME, program_invocation_short_name);
  record.begin_program();  // the launcher reads it as soon as it knows of this program
  auto channel = std::make_shared<Channel>(identity.control_fd);
  channel->send({.kind = Message::Kind::started});
  return channel;
}

// If the launcher binds ranks to cores, each rank sees only its own cores, and its plan would divide them again.
void use_bound_cores(World& world, const Plan& plan) {
  const auto cores = allowed_cores();
  const std::string machine = this_process().machine;
  std::vector<std::vector<int>> neighbours;
  for (const std::string& text : world.gather(fmt::format("{}\n{}", format_ranges(cores), machine))) {
    if (const auto end = text.find('\n'); text.substr(end + 1) == machine) {
      neighbours.push_back(parse_core_list(text.substr(0, end)));
    }
  }
  if (const auto threads = threads_of_bound_ranks(neighbours)) {
    at::set_num_threads(*threads);
  } else if (world.local_size() != plan.local_world_size()) {  // which the launcher did not provide
    at::set_num_threads(std::max(1, plan.threads_per_rank * plan.local_world_size() / world.local_size()));
  }
}

/// Without our supervisor, the rank itself reports its failure: on the terminal and in torchrun's error file.
void say_on_terminal(const Failure& failure, const Identity& identity) {
  write_error_file(identity.error_file, with_place(failure));
  print_error(with_place(failure));
}

void say_on_terminal(const ExitDecision& decision, const Identity& identity) {
  if (decision.hangs) {
    Failure hang = decision.failure;
    hang.text = fmt::format("error: {}\n  hint: its stacks follow; --dist.stall_timeout_s sets the limit", hang.text);
    say_on_terminal(hang, identity);
    dump_stacks();
    wait_for_stacks(std::chrono::milliseconds(deadlines::kGoodbye) / 2);  // what follows needs time too
  } else if (decision.is_stopped) {
    write_line(fmt::format("[rank{}]: stopped: {}", identity.rank, decision.failure.text));
  } else {
    say_on_terminal(decision.failure, identity);
  }
}

/// Watches this rank and reports failures instead of it; null: no such process.
std::unique_ptr<FailureLink> link_to_supervisor(const std::shared_ptr<Channel>& channel, const Identity& identity) {
  return channel ? std::make_unique<ChannelLink>(identity.rank, channel) : nullptr;
}

std::unique_ptr<StallFinder> find_stalls(const Identity& identity, const ProgressBoard& board) {
  return std::make_unique<PeerStalls>(PeerStalls::Options{.rank = identity.rank,
                                                          .size = identity.world_size,
                                                          .local_size = identity.local_world_size,
                                                          .local_rank = identity.local_rank},
                                      board);
}

/// Watches the peers and the launcher if our supervisor does not see all ranks.
void watch_peers(PeerMonitor& monitor, const World& world, const Plan& plan, const Identity& identity,
                 const Variables& environment) {
  auto launcher = identity.is_supervised() ? std::vector<LauncherProcess>() : open_launcher(identity, environment);
  const bool needs_store = world.size() > 1 && (!identity.is_supervised() || plan.nodes > 1);
  monitor.watch_peers(needs_store ? world.store("lockstep/failures") : nullptr, std::move(launcher));
}

/// From the start of the training on.
std::string place_of_failure(const ProgressRecord& record) {
  const ProgressView place = view(record);
  return place.phase >= Phase::prepare ? place_of(place) : std::string();
}

/// Prints on which host and device each of several ranks runs.
void print_rank_places(Session& session) {
  constexpr std::size_t kMostLines = 16;
  const std::vector<RankPlace>& places = WorldAccess::places(session.world);
  if (places.size() < 2) {
    return;
  }
  if (places.size() <= kMostLines) {
    session.print(describe_ranks(places));
    return;
  }
  session.print(summarize_ranks(places));
  log(LogLevel::debug, describe_ranks(places));
}

/// Collective. The plan with the micro-batch that fits, as far as a rank knows: machines may have their own disks. Rank
/// 0 decides, so that all ranks have one plan.
Plan with_known_limit(Plan plan, const RunHold& hold, World& world) {
  const std::string kept = hold.batch_limit();
  if (world.local_rank() == 0 && !kept.empty() && !parse_batch_limit(kept)) {
    log_warning(
        fmt::format("{}/{} is damaged, so the given batch_size is tried again", hold.path().string(), kBatchLimitName));
  }
  const LocalDevice& device = plan.local_devices.at(static_cast<std::size_t>(world.local_rank()));
  std::vector<std::string> devices;
  std::vector<BatchLimit> known;
  for (const std::string& answer : world.gather(fmt::format("{}\n{}", device_with_memory(device), kept))) {
    const auto end = answer.find('\n');
    devices.push_back(answer.substr(0, end));
    if (auto limit = parse_batch_limit(answer.substr(end + 1))) {
      known.push_back(std::move(*limit));
    }
  }
  const auto found = find_batch_limit(plan, known, devices);
  const auto decided = parse_batch_limit(world.broadcast_bytes(found ? to_json(*found) : std::string()));
  if (decided) {
    plan = with_batch_limit(std::move(plan), decided);
    log_info(fmt::format("batch after memory ran out: {}", plan.loader.batch.explanation));
  }
  return plan;
}

/// One rank from its start to its exit code.
class RankProcess {
 public:
  RankProcess(const Plan& plan, Identity identity, const Variables& environment, const TrainControl& control);

  int run(const std::function<void(Session&)>& worker);

 private:
  ProgressRecord& record() { return progress_[identity_.local_rank]; }
  Session& connect();
  /// All ranks have done their work. Returns the exit code.
  int finish(World& world);
  /// Remembers for the next start that the micro-batch did not fit, if that is asked for and possible. Then the advice
  /// says so, and the returned exit code asks for that start.
  std::optional<ExitCode> halve_batch(const std::exception& error, std::string& advice);
  /// Call it while an exception is handled. Returns the exit code, or ends the process.
  int fail(const std::string& advice, std::optional<ExitCode> code = {});

  Plan plan_;  // from connect() on what the ranks agreed on; the program may change that of its Session
  Identity identity_;
  const Variables& environment_;
  const TrainControl& control_;
  ProgressBoard progress_;
  const std::shared_ptr<Channel> channel_;  // null: no supervisor of ours
  const CrashHandler crash_handler_;
  const TerminateHandler terminate_handler_;
  const ExitGuard exit_guard_;
  const std::function<void(const ExitDecision&)> say_;  // {}: the supervisor does
  PeerMonitor monitor_;
  std::string what_is_left_{};  // said before this rank's failure, if it is the cause
  std::optional<Session> session_{};
  std::shared_ptr<RunHold> run_hold_{};
};

RankProcess::RankProcess(const Plan& plan, Identity identity, const Variables& environment, const TrainControl& control)
    : plan_(plan),
      identity_(std::move(identity)),
      environment_(environment),
      control_(control),
      progress_(identity_.progress_fd >= 0 ? ProgressBoard(identity_.progress_fd, identity_.local_rank)
                                           : ProgressBoard(identity_.local_world_size)),
      channel_(take_channel(identity_, record())),
      crash_handler_(identity_.rank, &record()),
      terminate_handler_(record(),
                         [this](const Failure& failure) {
                           set_log_rank(identity_.rank, identity_.world_size);  // in the thread that reports
                           if (channel_) {
                             channel_->send(to_message(failure));
                           } else {
                             say_on_terminal(failure, identity_);
                           }
                         }),
      exit_guard_(/*alone=*/plan_.world_size == 1 && !channel_),
      say_(channel_ ? std::function<void(const ExitDecision&)>()
                    : [this](const ExitDecision& decision) { say_on_terminal(decision, identity_); }),
      monitor_({.rank = identity_.rank,
                .size = identity_.world_size,
                .supervisor = link_to_supervisor(channel_, identity_),
                .stalls = channel_ ? nullptr : find_stalls(identity_, progress_),
                .say = say_,
                .may_lose_launcher = [control] { return !control.stop_reason().empty(); }}) {
  identity_.progress_fd = progress_.fd();  // the World maps the descriptor again
  if (!plan_.threads_are_given) {
    at::set_num_threads(plan_.threads_per_rank);
  }
}

int RankProcess::run(const std::function<void(Session&)>& worker) {
  try {
    Session& session = connect();
    try {
      worker(session);
    } catch (const Stopped& stopped) {
      // On every rank: the run ends like a stopped fit.
      const bool is_asked_by_program = control_.agreed() == StopKind::program;
      session.print(std::string(stopped.what()) + (is_asked_by_program ? "" : "; run the same command again"));
    }
    return finish(session.world);
  } catch (const std::exception& error) {
    if (environment_.has("TORCH_SHOW_CPP_STACKTRACES")) {
      write_line(std::string(frames_of(error.what())));
    }
    std::string advice = out_of_memory_hint(error, plan_, identity_.local_rank);
    const std::optional<ExitCode> code = halve_batch(error, advice);
    return fail(advice, code);
  } catch (...) {
    return fail({});
  }
}

Session& RankProcess::connect() {
  set_log_rank(identity_.rank, identity_.world_size);
  plan_.facts.launch_name =
      identify_launch(std::move(plan_.facts.launch_name), identity_, to_milliseconds(plan_.config.dist.init_timeout_s));
  World connected = WorldAccess::connect(
      plan_, identity_, [&](const World& world) { watch_peers(monitor_, world, plan_, identity_, environment_); });
  plan_ = with_run_directory(plan_, connected);
  session_.emplace(plan_, std::move(connected), control_);
  World& world = session_->world;
  if (world.is_main()) {
    SessionAccess::console(*session_) = make_console(channel_, environment_);
  }
  WorldAccess::control_of_run(world) = control_;
  // Several ranks may fail, and only then it is known which one is the cause.
  WorldAccess::on_what_is_left(world) = [this](const std::string& text) {
    if (channel_) {
      channel_->send({.kind = Message::Kind::left, .text = text});
    } else {
      what_is_left_ = text;
    }
  };
  print_rank_places(*session_);
  monitor_.watch_nodes({.count = world.nodes(),
                        .mine = world.node(),
                        .watches_next = world.local_rank() == 0,
                        .silence = to_milliseconds(plan_.config.dist.heartbeat_timeout_s)});
  if (world.size() > 1 && !channel_ && !plan_.threads_are_given) {
    use_bound_cores(world, plan_);
  }
  if (plan_.config.fresh || remembers_batch_limit(plan_.config)) {
    run_hold_ = RunHold::take(plan_, world);  // for a loop in the program, which does not lock the directory
  }
  if (remembers_batch_limit(plan_.config)) {
    plan_ = with_known_limit(plan_, *run_hold_, world);
    session_->plan = plan_;
  }
  at::manual_seed(plan_.config.seed);  // the same seed on all ranks, so that they build the same module
  return *session_;
}

int RankProcess::finish(World& world) {
  // No rank may end, and with it the store, while others still work.
  world.main_first("end of run", [] {});
  const StopKind stop = control_.agreed();
  const int code = code_of(stop == StopKind::interrupt   ? ExitCode::interrupted
                           : stop == StopKind::terminate ? ExitCode::stopped
                                                         : ExitCode::ok);
  // While the others wait: srun may kill this rank when another one has ended.
  if (stop == StopKind::terminate && plan_.config.dist.requeue && world.is_main()) {
    queue_again(environment_);
  }
  monitor_.leave_peers();
  world.barrier("end of run");
  record().set_phase(Phase::teardown);
  if (channel_) {
    channel_->send({.kind = Message::Kind::finished, .text = {}, .code = code, .secondary = false});
  }
  terminate_handler_.finished(code);
  return code;
}

// Before the other ranks hear of the failure: a launcher may kill this one then.
std::optional<ExitCode> RankProcess::halve_batch(const std::exception& error, std::string& advice) {
  const bool is_asked =
      remembers_batch_limit(plan_.config) && largest_micro_batch(plan_.loader.batch, plan_.world_size) > 1;
  if (!is_asked || !run_hold_ || !is_out_of_memory(error)) {
    return std::nullopt;
  }
  try {
    const LocalDevice& device = plan_.local_devices.at(static_cast<std::size_t>(identity_.local_rank));
    const BatchLimit limit = batch_limit(plan_, device);
    if (!run_hold_->keep_batch_limit(to_json(limit))) {
      return std::nullopt;
    }
    advice += fmt::format("\n  each further start has smaller micro-batches: {}/{} says that {} did not fit",
                          run_hold_->path().string(), kBatchLimitName, counted(limit.too_large, "sample"));
    return ExitCode::out_of_memory;
  } catch (const std::exception& problem) {
    advice += fmt::format("\n  --memory.halve_batch could not remember it: {}", problem.what());
    return std::nullopt;
  }
}

// Ends one of several ranks at once: a normal exit joins threads of collectives that may never end. The other ranks are
// told first, because writing to standard error may block.
int RankProcess::fail(const std::string& advice, std::optional<ExitCode> code) {
  Failure failure = current_failure();
  failure.text += advice;
  failure.code = code ? code_of(*code) : failure.code;
  failure.where = place_of_failure(record());
  const ExitDecision decision = monitor_.fail(failure);
  const auto say_it = [&] {
    if (decision.is_cause && !what_is_left_.empty()) {
      write_line(what_is_left_);
    }
    if (say_) {
      say_(decision);
    }
  };
  if (plan_.world_size > 1) {
    end_process(decision.code, say_it);
  }
  say_it();
  return decision.code;
}

}  // namespace

int be_a_worker(const Plan& plan, Identity identity, const Variables& environment, const TrainControl& control,
                const std::function<void(Session&)>& worker) {
  return RankProcess(plan, std::move(identity), environment, control).run(worker);
}

}  // namespace lockstep
