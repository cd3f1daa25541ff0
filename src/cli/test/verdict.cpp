#include "cli/test/verdict.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "base/text.h"

namespace lockstep {
namespace {

constexpr std::string_view kReportThis = "report it with the output of lockstep system";

std::string time_text(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.0f} us", 1e6 * seconds)
         : seconds < 1  ? fmt::format("{:.{}f} ms", 1e3 * seconds, seconds < 0.1 ? 1 : 0)
                        : fmt::format("{:.1f} s", seconds);
}

std::string rate_text(double bytes, double seconds) {
  return human_bytes(static_cast<std::int64_t>(bytes / seconds)) + "/s";
}

/// The last error of a launch and its hint, as the launcher wrote them.
Finding failure_of(std::string group, std::string subject, const ProbeOutcome& outcome) {
  Finding found{.level = FindingLevel::failure, .group = std::move(group), .subject = std::move(subject)};
  if (outcome.timed_out) {
    found.found = "not done when the time limit of the test was reached; everything was killed";
    found.fix = "see whether another program keeps the cores busy; give more time with --time-limit";
    return found;
  }
  constexpr std::string_view kError = "error: ";
  constexpr std::string_view kHint = "  hint: ";
  constexpr std::string_view kLoader = "error while loading shared libraries: ";
  std::string last_line;
  for (const std::string& line : split(outcome.errors, '\n')) {
    if (const std::size_t loader = line.find(kLoader); loader != std::string::npos) {
      found.found = "no rank can start: " + printable(line.substr(loader + kLoader.size()));
      found.fix = kInstallLibTorch;
      return found;
    }
    const std::size_t error = line.find(kError);
    if (error == 0 || (error != std::string::npos && line.starts_with("[rank"))) {
      found.found = printable(line.substr(error + kError.size()));
      found.fix.clear();
    } else if (line.starts_with(kHint)) {
      found.fix = printable(line.substr(kHint.size()));
    } else if (!trim(line).empty()) {
      last_line = printable(line);
    }
  }
  if (found.found.empty()) {
    found.found = fmt::format("the ranks ended with exit code {}{}", outcome.code,
                              last_line.empty() ? "" : "; the last line: " + last_line);
  }
  if (found.fix.empty()) {
    found.fix = "run lockstep doctor, which checks the machine";
  }
  return found;
}

Finding ok(std::string_view group, std::string subject, std::string found) {
  return {.group = std::string(group), .subject = std::move(subject), .found = std::move(found)};
}

Finding failed(std::string_view group, std::string subject, std::string found, std::string fix) {
  return {.level = FindingLevel::failure,
          .group = std::string(group),
          .subject = std::move(subject),
          .found = std::move(found),
          .fix = std::move(fix)};
}

bool has_ended_well(const ProbeOutcome& outcome) {
  return outcome.met_s >= 0 && outcome.code == 0 && outcome.left_behind.empty();
}

/// What a check of the probe says when nothing is wrong, and what to do else.
struct CheckText {
  std::string_view right{};
  std::string_view fix{};
};

const std::map<std::string_view, CheckText>& check_texts() {
  constexpr std::string_view kWrongData =
      "do not train here: data changes between ranks. Run it again; if only one backend or one machine does it, test "
      "memory and network";
  static const std::map<std::string_view, CheckText> texts = {
      {"all_reduce", {"sums, minima and maxima of three dtypes are right", kWrongData}},
      {"broadcast", {"from each rank, right", kWrongData}},
      {"all_gather", {"of tensors of different sizes, right", kWrongData}},
      {"messages", {"values of the host are right", kWrongData}},
      {"gradients", {"their means are right, from 4 KiB to 16 MiB", kWrongData}},
      {"training", {"the same as on one rank", kReportThis}},
      {"kernel", {"a matrix product equals that of the CPU", "run lockstep doctor; leave that GPU out with --devices"}},
      {"copy", {"bytes come back unchanged", "run lockstep doctor; leave that GPU out with --devices"}},
      {"pairs", {"bytes arrive unchanged", "try it with NCCL_P2P_DISABLE=1; leave one of the two out with --devices"}},
  };
  return texts;
}

/// The checks of a launch, then a failure if it did not end well.
std::vector<Finding> judge_checks(std::string_view group, const ProbeOutcome& outcome) {
  std::vector<Finding> findings;
  for (const Json& line : outcome.lines) {
    const auto text = check_texts().find(line.value("check", ""));
    if (text == check_texts().end()) {
      continue;
    }
    const auto problem = line.value("problem", "");
    findings.push_back(problem.empty()
                           ? ok(group, std::string(text->first),
                                fmt::format("{} ({})", text->second.right, time_text(line.value("seconds", 0.0))))
                           : failed(group, std::string(text->first), problem, std::string(text->second.fix)));
  }
  if (!outcome.left_behind.empty()) {
    findings.push_back(
        failed(group, "end", fmt::format("pid {} did not end", outcome.left_behind.front()), std::string(kReportThis)));
  } else if (!has_ended_well(outcome)) {
    findings.push_back(failure_of(std::string(group), outcome.met_s < 0 ? "start" : "end", outcome));
  }
  return findings;
}

std::string sizes_text(const Json& times) {
  std::vector<std::string> texts;
  for (const Json& time : times) {
    const double bytes = time.value("bytes", 0.0);
    const double seconds = time.value("seconds", 0.0);
    std::string text = fmt::format("{} in {}", human_bytes(static_cast<std::int64_t>(bytes)), time_text(seconds));
    if (bytes >= 1 << 20) {
      text += fmt::format(" ({})", rate_text(bytes, seconds));
    }
    texts.push_back(std::move(text));
  }
  return join(texts, ", ");
}

std::string seconds_text(const Json& line, const char* name) { return time_text(line.value(name, 0.0)); }

/// Seconds by size of the gradients; {}: not measured.
std::map<double, double> exchange_times(const ProbeOutcome& outcome) {
  std::map<double, double> times;
  if (const Json* line = outcome.measured("exchange")) {
    for (const Json& time : line->at("times")) {
      times[time.value("bytes", 0.0)] = time.value("seconds", 0.0);
    }
  }
  return times;
}

const ProbeOutcome* exchange_of(const Measurements& measurements, std::string_view backend) {
  for (const auto& [name, outcome] : measurements.exchanges) {
    if (name == backend) {
      return &outcome;
    }
  }
  return nullptr;
}

std::optional<Advice> advise_backend(const Measurements& measurements) {
  constexpr double kClear = 0.8;  // smaller differences are noise of a short measurement
  const ProbeOutcome* gloo = exchange_of(measurements, "gloo");
  const ProbeOutcome* shm = exchange_of(measurements, "shm");
  if (gloo == nullptr || shm == nullptr) {
    return std::nullopt;
  }
  const auto gloo_times = exchange_times(*gloo);
  const auto shm_times = exchange_times(*shm);
  std::vector<std::string> shm_wins;
  std::vector<std::string> gloo_wins;
  for (const auto& [bytes, seconds] : gloo_times) {
    const auto other = shm_times.find(bytes);
    if (other == shm_times.end()) {
      continue;
    }
    const std::string text = fmt::format("{}: gloo {}, shm {}", human_bytes(static_cast<std::int64_t>(bytes)),
                                         time_text(seconds), time_text(other->second));
    if (other->second < kClear * seconds) {
      shm_wins.push_back(text);
    } else if (seconds < kClear * other->second) {
      gloo_wins.push_back(text);
    }
  }
  if (shm_wins.empty()) {
    return gloo_wins.empty() ? std::nullopt : std::optional(Advice{"--backend gloo", join(gloo_wins, "; ")});
  }
  return Advice{
      gloo_wins.empty()
          ? "--backend shm, the default"
          : "--backend shm, the default, for models whose gradients are as small as these; gloo for larger ones",
      join(shm_wins, "; ") + (gloo_wins.empty() ? "" : "; but " + join(gloo_wins, "; "))};
}

bool is_on_a_network(std::string_view file_system) {
  constexpr std::array<std::string_view, 14> kNetwork = {"nfs",  "nfs4",   "cifs",      "smb3",    "lustre",
                                                         "gpfs", "beegfs", "ceph",      "fuse",    "9p",
                                                         "afs",  "wekafs", "glusterfs", "virtiofs"};
  return std::ranges::any_of(kNetwork, [&](std::string_view name) {
    return file_system == name || (file_system.starts_with(name) && file_system[name.size()] == '.');  // "fuse.sshfs"
  });
}

std::optional<Advice> advise_saves(const Measurements& measurements) {
  constexpr double kFast = 200e6;  // bytes per second
  const Json* save = measurements.saved.measured("save");
  if (save == nullptr) {
    return std::nullopt;
  }
  const double bytes = save->value("bytes", 0.0);
  const double seconds = save->value("seconds", 0.0);
  const bool is_network = is_on_a_network(measurements.directory.file_system);
  if (bytes / seconds >= kFast && !is_network) {
    return std::nullopt;
  }
  return Advice{"--checkpoint.async true, so that training goes on during a save",
                fmt::format("{} durable in {} ({}) on {}{}", human_bytes(static_cast<std::int64_t>(bytes)),
                            time_text(seconds), rate_text(bytes, seconds), file_system_text(measurements.directory),
                            is_network ? ", a network file system" : "")};
}

/// Where the data of a run lie is not known.
std::optional<Advice> advise_cache(const Measurements& measurements) {
  const std::string& file_system = measurements.directory.file_system;
  if (!is_on_a_network(file_system)) {
    return std::nullopt;
  }
  return Advice{"memory_cache in your program, or disk_cache on a local disk, if the data are on this file system too",
                fmt::format("{} is on {}, a network file system: data there are read over the network in each epoch",
                            measurements.directory.checked.string(), file_system)};
}

/// "; the slowest copy between two GPUs: 20.0 GiB/s"; "": no copy was measured.
std::string slowest_copy_text(const ProbeOutcome& outcome) {
  const Json* pairs = outcome.measured("pairs");
  double slowest = 0;
  if (pairs != nullptr) {
    for (const Json& of_rank : pairs->at("times")) {
      for (const Json& pair : of_rank) {
        slowest = std::max(slowest, pair.value("seconds", 0.0));
      }
    }
  }
  return slowest == 0
             ? ""
             : fmt::format("; the slowest copy between two GPUs: {}", rate_text(pairs->value("bytes", 0.0), slowest));
}

std::optional<Advice> advise_links(const Measurements& measurements) {
  const std::vector<GpuPair>& pairs = measurements.gpu_pairs;
  std::set<std::string> paths;
  std::int64_t without_nvlink = 0;
  std::int64_t apart = 0;
  for (const GpuPair& pair : pairs) {
    if (pair.path != "NVLink" && !pair.path.empty()) {
      ++without_nvlink;
      paths.insert(pair.path);
      apart += pair.peer_access.value_or(true) ? 0 : 1;
    }
  }
  if (without_nvlink == 0) {
    return std::nullopt;
  }
  return Advice{
      "--dist.compression bf16, or a larger --accumulation, if the end of your run shows much communication",
      fmt::format("{} of {} of GPUs without NVLink ({}): gradients go over the PCI bus{}{}", without_nvlink,
                  counted(std::ssize(pairs), "pair"), join(std::vector<std::string>(paths.begin(), paths.end()), ", "),
                  apart == 0 ? "" : fmt::format(", for {} through the memory of the host", counted(apart, "pair")),
                  slowest_copy_text(measurements.devices))};
}

std::optional<Advice> advise_threads(const Measurements& measurements) {
  constexpr double kClear = 0.8;
  const Json* line = measurements.saved.measured("threads");
  if (line == nullptr || line->at("times").empty()) {
    return std::nullopt;
  }
  const Json& times = line->at("times");
  const Json& now = times.front();
  const Json& best = *std::ranges::min_element(
      times, [](const Json& a, const Json& b) { return a.value("seconds", 0.0) < b.value("seconds", 0.0); });
  if (best.value("seconds", 0.0) >= kClear * now.value("seconds", 0.0)) {
    return std::nullopt;
  }
  return Advice{fmt::format("OMP_NUM_THREADS={}", best.value("threads", 1)),
                fmt::format("a matrix product of 512 x 512 on all ranks at once takes {} with {} threads per rank, {} "
                            "with {}",
                            seconds_text(now, "seconds"), now.value("threads", 1), seconds_text(best, "seconds"),
                            best.value("threads", 1))};
}

std::optional<Advice> advise_workers(const Measurements& measurements) {
  constexpr double kClear = 0.8;
  const Json* line = measurements.saved.measured("workers");
  if (line == nullptr) {
    return std::nullopt;
  }
  const int now = line->value("default", 0);
  const Json* best = nullptr;
  const Json* with_default = nullptr;
  for (const Json& time : line->at("times")) {
    if (best == nullptr || time.value("seconds", 0.0) < best->value("seconds", 0.0)) {
      best = &time;
    }
    if (time.value("workers", 0) == now) {
      with_default = &time;
    }
  }
  if (with_default == nullptr || best->value("seconds", 0.0) >= kClear * with_default->value("seconds", 0.0)) {
    return std::nullopt;
  }
  const int workers = best->value("workers", 0);
  return Advice{fmt::format("--data.workers {}{}, if your data must be calculated or decoded", workers,
                            workers > now ? fmt::format(" --data.prefetch {}", workers) : ""),
                fmt::format("with batches that take {} to build, a step of {} takes {} with {}, {} with {}",
                            seconds_text(*line, "batch_seconds"), seconds_text(*line, "step_seconds"),
                            seconds_text(*with_default, "seconds"), counted(now, "worker"),
                            seconds_text(*best, "seconds"), counted(workers, "worker"))};
}

/// A report costs the same for every model, so its share is the largest with a tiny step.
std::optional<Advice> advise_reports(const Measurements& measurements) {
  constexpr int kEverySteps = 20;  // the default of report.every_steps
  constexpr double kSmall = 0.05;
  if (measurements.exchanges.empty()) {
    return std::nullopt;
  }
  const Json* line = measurements.exchanges.front().second.measured("step");
  if (line == nullptr) {
    return std::nullopt;
  }
  const double step = line->value("seconds", 0.0);
  const double report = line->value("report_seconds", 0.0);
  const double share = report / (kEverySteps * step + report);
  if (share < kSmall) {
    return std::nullopt;
  }
  return Advice{
      fmt::format("--report.every_steps 100 or more if your steps take less than {}",
                  time_text(report / kSmall / kEverySteps)),
      fmt::format("a report takes {}, a tiny step {}: with one report every {} steps that is {:.0f} % of the time",
                  time_text(report), time_text(step), kEverySteps, 100 * share)};
}

std::optional<Advice> advise_batch(const Measurements& measurements) {
  if (measurements.gpu_memory_bytes == 0) {
    return std::nullopt;
  }
  return Advice{"find_batch_size in your program, for the batch per GPU",
                fmt::format("each GPU has {} or more; lockstep plan --parameters N says how much of it a model with N "
                            "parameters leaves for a batch",
                            human_bytes(measurements.gpu_memory_bytes))};
}

}  // namespace

std::vector<Finding> judge_directory(const DirectoryFacts& facts) {
  constexpr std::string_view kGroup = "run directory";
  const std::string where = fmt::format("{} ({})", facts.checked.string(), file_system_text(facts));
  if (!facts.failed.empty()) {
    return {failed(kGroup, "writing", fmt::format("{}: cannot {}: {}", where, facts.failed, printable(facts.error)),
                   "give a directory in which you may write: --run-dir DIR")};
  }
  return {ok(kGroup, "writing", fmt::format("{}; fsync in {}", where, time_text(facts.sync_s)))};
}

std::vector<Finding> judge_devices(const ProbeOutcome& outcome) {
  constexpr std::string_view kGroup = "GPUs";
  std::vector<Finding> findings = judge_checks(kGroup, outcome);
  if (const Json* copy = outcome.measured("copy")) {
    const double bytes = copy->value("bytes", 0.0);
    findings.push_back(
        ok(kGroup, "speed",
           fmt::format("rank 0: {} to its GPU, {} back", rate_text(bytes, copy->value("to_device_seconds", 0.0)),
                       rate_text(bytes, copy->value("to_host_seconds", 0.0)))));
  }
  if (const Json* pairs = outcome.measured("pairs")) {
    const double bytes = pairs->value("bytes", 0.0);
    std::vector<std::string> texts;
    for (const Json& of_rank : pairs->at("times")) {
      for (const Json& pair : of_rank) {
        texts.push_back(fmt::format("{} to {} {}", pair.value("from", 0), pair.value("to", 0),
                                    rate_text(bytes, pair.value("seconds", 0.0))));
      }
    }
    if (!texts.empty()) {
      findings.push_back(ok(kGroup, "pair speed", join(texts, ", ")));
    }
  }
  return findings;
}

std::vector<Finding> judge_exchange(std::string_view backend, const ProbeOutcome& outcome) {
  std::vector<Finding> findings;
  if (outcome.met_s >= 0) {
    findings.push_back(
        ok(backend, "start",
           fmt::format("{} met after {}", counted(std::ssize(outcome.measured("met")->at("pids")), "rank"),
                       time_text(outcome.met_s))));
  }
  for (Finding& found : judge_checks(backend, outcome)) {
    const Json* training = outcome.measured("training");
    if (found.subject == "training" && found.level == FindingLevel::ok && training != nullptr) {
      const double difference = training->value("difference", 0.0);
      found.found = fmt::format(
          "after {} steps the weights are equal on all ranks, and {} those of one rank", training->value("steps", 0),
          difference == 0
              ? "equal to"
              : fmt::format("at most {:.0e} (limit {:.0e}) from", difference, training->value("limit", 0.0)));
    }
    findings.push_back(std::move(found));
  }
  const Json* exchange = outcome.measured("exchange");
  if (exchange != nullptr && outcome.measured("met")->at("pids").size() > 1) {
    findings.push_back(ok(backend, "speed", "gradients of " + sizes_text(exchange->at("times"))));
  }
  if (const Json* step = outcome.measured("step")) {
    findings.push_back(ok(backend, "step",
                          fmt::format("a tiny step takes {}, a report {}", seconds_text(*step, "seconds"),
                                      seconds_text(*step, "report_seconds"))));
  }
  return findings;
}

std::vector<Finding> judge_same_weights(const ProbeOutcome& gloo, const ProbeOutcome& shm) {
  const Json* left = gloo.measured("training");
  const Json* right = shm.measured("training");
  if (left == nullptr || right == nullptr) {
    return {};
  }
  const bool is_same = left->value("weights", "") == right->value("weights", "");
  return {is_same ? ok("shm", "same weights", "those of gloo, bit for bit")
                  : failed("shm", "same weights",
                           "the weights of the training differ from those of gloo, expected the "
                           "same bits with two ranks",
                           std::string(kReportThis))};
}

std::vector<Finding> judge_save(const ProbeOutcome& outcome) {
  constexpr std::string_view kGroup = "checkpoint";
  std::vector<Finding> findings = judge_checks(kGroup, outcome);
  if (const Json* save = outcome.measured("save")) {
    const double bytes = save->value("bytes", 0.0);
    const double seconds = save->value("seconds", 0.0);
    findings.push_back(ok(kGroup, "save",
                          fmt::format("{} durable in {} ({})", human_bytes(static_cast<std::int64_t>(bytes)),
                                      time_text(seconds), rate_text(bytes, seconds))));
  }
  return findings;
}

std::vector<Finding> judge_resume(const ProbeOutcome& saved, const ProbeOutcome& outcome) {
  constexpr std::string_view kGroup = "checkpoint";
  std::vector<Finding> findings = judge_checks(kGroup, outcome);
  const Json* whole = saved.measured("whole");
  const Json* resumed = outcome.measured("resumed");
  if (whole == nullptr || resumed == nullptr) {
    return findings;
  }
  const int first = resumed->value("first_step", 0);
  const int expected = resumed->value("expected_step", 0);
  const std::string fix = fmt::format("checkpoints cannot be trusted here; {}", kReportThis);
  if (first != expected) {
    findings.push_back(failed(
        kGroup, "resume",
        fmt::format("new processes began at step {}, expected {}: the checkpoint was not read back", first, expected),
        fix));
  } else if (whole->value("weights", "") != resumed->value("weights", "")) {
    findings.push_back(
        failed(kGroup, "resume",
               fmt::format("stopped at step {} and resumed, the weights at the end differ from those of a "
                           "training that was not stopped, expected the same bits",
                           first),
               fix));
  } else {
    findings.push_back(
        ok(kGroup, "resume",
           fmt::format("saved at step {}, read back and resumed in new processes: the weights at the end "
                       "are those of a training that was not stopped, bit for bit",
                       first)));
  }
  return findings;
}

std::vector<Finding> judge_lost_rank(int ranks, const ProbeOutcome& outcome) {
  constexpr std::string_view kGroup = "failure";
  constexpr int kKilled = 137;
  const int rank = ranks - 1;
  const std::string subject = "killed rank";
  if (outcome.measured("lost") == nullptr) {
    return {failure_of(std::string(kGroup), subject, outcome)};
  }
  if (!outcome.left_behind.empty()) {
    return {failed(kGroup, subject,
                   fmt::format("pid {} did not end after rank {} was killed", outcome.left_behind.front(), rank),
                   std::string(kReportThis))};
  }
  const bool is_blamed = outcome.errors.find(fmt::format("error: rank {} ", rank)) != std::string::npos &&
                         outcome.errors.find("died of signal 9") != std::string::npos;
  if (outcome.code != kKilled || !is_blamed) {
    Finding found = failure_of(std::string(kGroup), subject, outcome);
    found.found = fmt::format(
        "rank {} was killed, expected exit code {} and a message that names it, found exit code {} "
        "and: {}",
        rank, kKilled, outcome.code, found.found);
    return {std::move(found)};
  }
  return {ok(kGroup, subject,
             fmt::format("rank {} was killed in a training: the last message names it, and {} {} gone after {}", rank,
                         ranks == 1 ? "its process" : fmt::format("all {} processes", ranks), ranks == 1 ? "is" : "are",
                         time_text(outcome.ending_s)))};
}

std::vector<Advice> advise(const Measurements& measurements) {
  std::vector<Advice> all;
  for (const auto& advice : {advise_backend(measurements), advise_links(measurements), advise_saves(measurements),
                             advise_cache(measurements), advise_threads(measurements), advise_workers(measurements),
                             advise_reports(measurements), advise_batch(measurements)}) {
    if (advice) {
      all.push_back(*advice);
    }
  }
  return all;
}

}  // namespace lockstep
