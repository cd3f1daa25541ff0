#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include <lockstep/base/error.h>
#include <lockstep/base/file_system.h>
#include <lockstep/config/config_io.h>
#include <lockstep/environment/hardware.h>
#include <lockstep/plan/plan.h>

#include "base/duration.h"
#include "base/json.h"
#include "base/mapped.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/doctor/facts.h"
#include "cli/doctor/findings.h"
#include "cli/doctor/output.h"
#include "cli/launch/run_flags.h"
#include "cli/test/probe_launch.h"
#include "cli/test/verdict.h"
#include "config/field_value.h"
#include "config/flags.h"
#include "config/setting_form.h"
#include "environment/nvml.h"
#include "supervise/signal_inbox.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using Path = std::filesystem::path;

constexpr int kMostSeconds = 86400;
constexpr const char* kExchange = "exchange";

constexpr FlagRow kFlags[] = {
    {"nprocs", "N", "ranks (default: one per GPU, without GPUs 2)"},
    {"devices", "LIST", "cpu, or GPUs as in a training: 0,1"},
    {"compute-setup", "NAME", "auto, cpu or gpu (default: auto)"},
    {"backend", "NAME", "test only this backend (default: all that can work here)"},
    {"run-dir", "DIR", "directory for runs; a directory is created there and removed (default: this directory)"},
    {"time-limit", "SECONDS", "of the whole test (default: 120)"},
    {"json", "", "print one JSON object, which docs/doctor.md describes"},
};

struct Request {
  TrainConfig config{};
  bool json = false;
  int time_limit_s = 120;
};

/// Settings for trainings and flags for launchers must not change the test.
Variables without_settings(const Variables& variables) {
  auto all = variables.all();
  std::erase_if(all, [](const auto& entry) {
    return entry.first.starts_with(kSettingVariables) || entry.first.starts_with(kFlagVariables);
  });
  return Variables(std::move(all));
}

Request parse_request(const CommandLine& line, const Variables& variables) {
  std::vector<std::string> settings;
  for (const std::string_view flag : {"nprocs", "devices", "compute-setup", "backend", "run-dir"}) {
    if (const GivenFlag* given = line.find(flag)) {
      settings.insert(settings.end(), {fmt::format("--{}", flag), given->text});
    }
  }
  return {.config = parse_invocation({}, settings, variables, FlagsAccess::for_tool()).config,
          .json = line.has("json"),
          .time_limit_s = line.number("time-limit", 1, kMostSeconds, 120)};
}

/// A plan per backend that can work here, the default first; one plan if a backend is given or there is one rank.
/// Throws: ConfigError
std::vector<Plan> make_plans(TrainConfig config, const Hardware& hardware) {
  Plan first = resolve(config, hardware, std::nullopt);
  if (config.nprocs == 0 && !first.gpu()) {
    config.nprocs = 2;
    first = resolve(config, hardware, std::nullopt);
  }
  const bool is_only = config.backend != Backend::automatic || first.world_size == 1;
  const Backend default_backend = first.config.backend;
  std::vector<Plan> plans{std::move(first)};
  for (const Backend backend : {Backend::nccl, Backend::gloo, Backend::shm}) {
    if (is_only || backend == default_backend) {
      continue;
    }
    config.backend = backend;
    try {
      plans.push_back(resolve(config, hardware, std::nullopt));
    } catch (const ConfigError&) {  // it cannot work here
    }
  }
  return plans;
}

/// The driver knows GPUs by other numbers than a plan.
std::vector<GpuPair> pairs_between(const std::vector<LocalDevice>& devices) {
  DriverDetails driver = query_driver();
  std::erase_if(driver.gpus, [&](const GpuDetails& gpu) {
    return std::ranges::find(devices, gpu.uuid, &LocalDevice::uuid) == devices.end();
  });
  const auto is_tested = [&](int number) {
    return std::ranges::find(driver.gpus, number, &GpuDetails::number) != driver.gpus.end();
  };
  std::erase_if(driver.pairs, [&](const GpuPair& pair) { return !is_tested(pair.a) || !is_tested(pair.b); });
  return driver.pairs;
}

/// For the runs of the test.
class WorkDirectory {
 public:
  explicit WorkDirectory(const Path& below) : path_(below / fmt::format(".lockstep-test.{}", random_id())) {
    real_file_system().create_directories(path_);
  }
  ~WorkDirectory() {
    try {
      real_file_system().remove_all(path_);
    } catch (const IoError& error) {
      write_line(error_text(error));
    }
  }
  WorkDirectory(const WorkDirectory&) = delete;
  WorkDirectory& operator=(const WorkDirectory&) = delete;

  const Path& path() const noexcept { return path_; }

 private:
  Path path_;
};

/// A signal asked this process to end.
struct Interrupted {
  int signal = 0;
};

class Test {
 public:
  Test(const Request& request, std::vector<Plan> plans, Path probe, const Variables& variables)
      : request_(request),
        plans_(std::move(plans)),
        probe_(std::move(probe)),
        variables_(variables),
        columns_(text_columns(probe_terminal(STDOUT_FILENO, variables).width)),
        shows_status_(probe_terminal(STDERR_FILENO, variables).interactive) {}

  int run() {
    const Plan& plan = plans_.front();
    print(fmt::format("lockstep test: {} on {} ({})\n", counted(plan.world_size, "rank"), plan.host,
                      plan.gpu() ? counted(plan.world_size, "GPU") : "CPU"));
    try {
      run_parts();
    } catch (const Interrupted& interrupted) {
      write_line("stopped");
      return 128 + interrupted.signal;
    }
    const std::vector<Advice> advices = advise(measurements_);
    print(advice_text(advices));
    print(fmt::format("\n{} ({:.1f} s)\n", wrap(verdict(), 0, columns_), seconds_since(start_)));
    if (request_.json) {
      fmt::print("{}\n", dump_json(to_json(advices)));
    }
    return static_cast<int>(has_failure(findings_) ? ExitCode::failed : ExitCode::ok);
  }

 private:
  void run_parts() {
    for (const std::string& warning : plans_.front().warnings) {
      add({{.level = FindingLevel::warning, .group = "plan", .subject = "warning", .found = warning}});
    }
    measurements_.directory = collect_directory_facts(
        real_file_system(), request_.config.run_dir.empty() ? Path(".") : Path(request_.config.run_dir));
    add(judge_directory(measurements_.directory));
    if (has_failure(findings_)) {
      return;  // every other part writes there
    }
    const WorkDirectory directory(measurements_.directory.checked);
    const Plan& plan = plans_.front();
    const auto try_part = [&](const std::string& part, const Plan& with) {
      return launch(part, with, directory.path() / to_text(with.config.backend));
    };
    if (plan.gpu()) {
      measurements_.gpu_pairs = pairs_between(plan.local_devices);
      measurements_.devices = try_part("devices", plan);
      add(judge_devices(measurements_.devices));
      measurements_.gpu_memory_bytes = std::ranges::min(mapped(plan.local_devices, &LocalDevice::memory_bytes));
    }
    for (const Plan& with : plans_) {
      const std::string name = with.world_size > 1 ? to_text(with.config.backend) : "one rank";
      measurements_.exchanges.emplace_back(name, try_part(kExchange, with));
      add(judge_exchange(name, measurements_.exchanges.back().second));
    }
    compare_backends();
    measurements_.saved = try_part("save", plan);
    add(judge_save(measurements_.saved));
    if (measurements_.saved.code == 0) {
      add(judge_resume(measurements_.saved, try_part("resume", plan)));
    }
    add(judge_lost_rank(plan.world_size, try_part("lose", plan)));
  }

  void compare_backends() {
    const auto find = [&](std::string_view name) {
      return std::ranges::find_if(measurements_.exchanges, [&](const auto& entry) { return entry.first == name; });
    };
    const auto gloo = find("gloo");
    const auto shm = find("shm");
    if (plans_.front().world_size == 2 && gloo != measurements_.exchanges.end() &&
        shm != measurements_.exchanges.end()) {
      add(judge_same_weights(gloo->second, shm->second));
    }
  }

  ProbeOutcome launch(const std::string& part, const Plan& plan, const Path& run_dir) {
    if (Clock::now() >= deadline_) {
      return {.timed_out = true};
    }
    std::vector<std::string> flags{
        "--part", part, "--run_dir", run_dir.string(), "--compute_setup", plan.gpu() ? "gpu" : "cpu"};
    if (plan.gpu()) {
      flags.insert(flags.end(), {"--devices", plan.config.devices.text()});
    }
    if (plan.world_size > 1) {
      // Only an exchange tests one backend; all else trains as a program would.
      flags.insert(flags.end(), {"--backend", to_text((part == kExchange ? plan.config : plan.asked.value()).backend)});
    }
    if (shows_status_) {
      write_status(fmt::format("testing: {} ...", part));
    }
    ProbeOutcome outcome =
        launch_probe({.probe = probe_, .ranks = plan.world_size, .flags = std::move(flags), .environment = variables_},
                     deadline_, signals_);
    if (shows_status_) {
      write_status("");
    }
    if (outcome.signal) {
      throw Interrupted{*outcome.signal};
    }
    return outcome;
  }

  void add(const std::vector<Finding>& findings) {
    for (const Finding& found : findings) {
      if (findings_.empty() || findings_.back().group != found.group) {
        print(fmt::format("\n{}\n", found.group));
      }
      print(finding_text(found, columns_));
      findings_.push_back(found);
    }
  }

  void print(const std::string& text) const {
    if (!request_.json) {
      fmt::print("{}", text);
      std::fflush(stdout);
    }
  }

  std::string verdict() const {
    std::vector<std::string> failed;
    for (const Finding& found : findings_) {
      if (found.level == FindingLevel::failure) {
        failed.push_back(fmt::format("{}: {}", found.group, found.subject));
      }
    }
    return failed.empty()
               ? fmt::format("ready: {} {} on this machine", counted(plans_.front().world_size, "rank"),
                             plans_.front().world_size == 1 ? "trains" : "train")
               : fmt::format("not ready: {} failed ({})", counted(std::ssize(failed), "check"), join(failed, ", "));
  }

  /// "": nothing was measured from which one could follow.
  std::string advice_text(const std::vector<Advice>& advices) const {
    const bool measured = std::ranges::any_of(
        measurements_.exchanges, [](const auto& exchange) { return exchange.second.measured("step") != nullptr; });
    if (advices.empty() && !measured) {
      return {};
    }
    std::string text = "\nrecommendations\n";
    for (const Advice& advice : advices) {
      text += fmt::format("  {}\n      {}\n", wrap(advice.what, 2, columns_), wrap(advice.because, 6, columns_));
    }
    return advices.empty() ? text + "  none: the defaults fit what was measured\n" : text;
  }

  Json to_json(const std::vector<Advice>& advices) const {
    Json findings = Json::array();
    for (const Finding& found : findings_) {
      findings.push_back(finding_json(found));
    }
    Json recommendations = Json::array();
    for (const Advice& advice : advices) {
      recommendations.push_back({{"advice", advice.what}, {"because", advice.because}});
    }
    Json measured = Json::object();
    for (const auto& [backend, outcome] : measurements_.exchanges) {
      measured[backend] = outcome.lines;
    }
    measured["save"] = measurements_.saved.lines;
    return {{"format", 1},
            {"ready", !has_failure(findings_)},
            {"verdict", verdict()},
            {"ranks", plans_.front().world_size},
            {"gpu", plans_.front().gpu()},
            {"seconds", seconds_since(start_)},
            {"findings", std::move(findings)},
            {"recommendations", std::move(recommendations)},
            {"measured", std::move(measured)}};
  }

  const Request& request_;
  std::vector<Plan> plans_;
  Path probe_;
  const Variables& variables_;
  std::size_t columns_;
  bool shows_status_;
  SignalInbox signals_{};
  Clock::time_point start_ = Clock::now();
  Clock::time_point deadline_ = start_ + std::chrono::seconds(request_.time_limit_s);
  std::vector<Finding> findings_{};
  Measurements measurements_{};
};

int test(const CommandLine& line, const Variables& variables) {
  const Variables cleaned = without_settings(variables);
  const Request request = parse_request(line, cleaned);
  std::vector<Plan> plans = make_plans(request.config, probe_hardware(cleaned));
  return Test(request, std::move(plans), find_probe(), cleaned).run();
}

}  // namespace

const Command kTestCommand{
    .name = "test",
    .summary = "train with several ranks on this machine and check every part",
    .description =
        "Trains a small model with several ranks on this machine, and checks each part of it: the ranks meet, every "
        "collective gives the right values, the weights are those of one rank, a checkpoint is saved and resumed bit "
        "for bit, and a rank that is killed is noticed. Measures each backend and the disk, and says which settings "
        "follow. LOCKSTEP_CFG_ variables are ignored.",
    .exit_codes = "0 ready, 1 not ready, 2 usage, 127 this installation has no lockstep-probe, 130 Ctrl-C",
    .flags = kFlags,
    .run = test};

}  // namespace lockstep
