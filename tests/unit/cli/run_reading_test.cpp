// `lockstep list`, `report` and `top` on runs that the library's own writers have written.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <limits>
#include <map>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>

#include "base/mapped.h"
#include "base/text.h"
#include "cli/runs/list_command.h"
#include "cli/runs/report_page.h"
#include "cli/runs/run_data.h"
#include "cli/runs/run_summary.h"
#include "cli/runs/top_screen.h"
#include "storage/run_commands.h"
#include "storage/run_directory.h"
#include "support/process.h"
#include "support/requirements.h"
#include "support/sanitizers.h"
#include "support/terminal.h"
#include "unit/cli/written_run.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kContinue = "stopped at step 20, epoch 1: SIGTERM; run the same command again to continue";

RunData read(const WrittenRun& run) { return read_run(real_file_system(), run.path()); }

std::vector<std::string> event_names(const RunData& run) { return mapped(run.events, &RunEvent::name); }

/// Ends, is resumed, fails, is restarted, and is resumed again.
void write_eventful(const WrittenRun& run) {
  run.event("start", {{"world_size", std::int64_t{2}}, {"launch", std::string("lockstep, 2 ranks")}});
  run.rows(0, 20);
  run.checkpoint(20, 1.5);
  run.event("save", {{"step", std::int64_t{20}}, {"seconds", 0.1}});
  run.event("end", {{"step", std::int64_t{20}}, {"why", std::string(kContinue)}, {"stopped", true}});
  run.event("start", {{"world_size", std::int64_t{2}}, {"launch", std::string("lockstep, 2 ranks")}});
  run.event("resume", {{"step", std::int64_t{20}}});
  run.rows(20, 50);
  run.event("spike", {{"step", std::int64_t{40}}, {"metric", std::string("loss")}, {"value", 9.0}});
  run.checkpoint(40, 1.25);
  run.event("failure", {{"step", std::int64_t{50}}, {"what", std::string("rank 1 was killed")}, {"restart", true}});
  run.event("restart", {{"attempt", std::int64_t{1}}});
  run.event("start", {{"world_size", std::int64_t{1}}, {"launch", std::string("alone")}});
  run.event("resume", {{"step", std::int64_t{40}}});
  run.rows(40, 60, 1.0);
  run.checkpoint(60, 1.375);
  run.event("end", {{"step", std::int64_t{60}}, {"why", std::string("finished at step 60, epoch 1")}});
}

TEST(RunReading, FindsOutTheState) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  EXPECT_EQ(read(run).state, RunState::unknown);
  run.event("start");
  EXPECT_EQ(read(run).state, RunState::failed);
  EXPECT_THAT(read(run).why, HasSubstr("without a last event"));
  run.event("end", {{"step", std::int64_t{20}}, {"why", std::string(kContinue)}, {"stopped", true}});
  EXPECT_EQ(read(run).state, RunState::stopped);
  run.event("start");
  run.event("end", {{"step", std::int64_t{20}}, {"why", std::string("stopped at step 20: early stopping")}});
  EXPECT_EQ(read(run).state, RunState::finished);
  run.event("failure", {{"step", std::int64_t{20}}, {"what", std::string("rank 1 was killed")}});
  EXPECT_EQ(read(run).state, RunState::failed);
  EXPECT_EQ(read(run).why, "rank 1 was killed");
  const auto record = run.path() / "run.json";
  std::ofstream(record) << "{}";
  EXPECT_EQ(read(run).state, RunState::failed);
  std::filesystem::last_write_time(record, std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  EXPECT_EQ(read(run).state, RunState::unknown) << "a loop by hand was started since";
  std::filesystem::remove(record);
  {
    const RunDirectory held(real_file_system(), run.path(), {});
    EXPECT_EQ(read(run).state, RunState::running);
  }
  EXPECT_EQ(read(run).state, RunState::failed);
}

TEST(RunReading, AStartThatFailsBeforeItTrainsChangesNoRunThatHadEnded) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  const auto fails = [&](std::int64_t step, const char* what) {
    run.event("failure", {{"step", step}, {"what", std::string(what)}});
  };
  fails(-1, "rank 0 failed in start-up: other data");
  EXPECT_EQ(read(run).state, RunState::failed) << "it has no end";
  run.event("start");
  run.event("end", {{"step", std::int64_t{20}}, {"why", std::string("finished at step 20, epoch 1")}});
  EXPECT_THAT(read(run).notes, Not(testing::Contains(HasSubstr("a later start failed"))));
  fails(-1, "rank 2 failed in resume: another model");
  run.event("restart");
  fails(-1, "rank 0 failed in start-up: other data\n  hint: use those");
  RunData found = read(run);
  EXPECT_EQ(found.state, RunState::finished);
  EXPECT_EQ(found.why, "finished at step 20, epoch 1");
  EXPECT_THAT(found.notes, testing::Contains("a later start failed: rank 0 failed in start-up: other data"));
  EXPECT_EQ(found.events.back().step, std::nullopt);
  EXPECT_THAT(join(top_screen(found, 0, {120, 40}, {}), "\n"),
              AllOf(HasSubstr("a: finished at step 20"), HasSubstr("  failure  rank 0 failed")));
  run.event("restart");
  EXPECT_EQ(read(run).state, RunState::failed) << "it may have trained since";
  run.event("start");
  fails(-1, "rank 0 failed in start-up: other data");
  EXPECT_EQ(read(run).state, RunState::failed);
  EXPECT_EQ(read(run).why, "rank 0 failed in start-up: other data");
}

TEST(RunReading, TheQuestionForTheLockLeavesNoTrace) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  EXPECT_FALSE(is_run_in_use(run.path()));
  EXPECT_FALSE(std::filesystem::exists(run.path() / ".lock"));
  const RunDirectory held(real_file_system(), run.path(), {});
  const std::string owner = read_text(run.path() / ".lock");
  EXPECT_TRUE(is_run_in_use(run.path()));
  EXPECT_EQ(read_text(run.path() / ".lock"), owner);
}

TEST(RunReading, TheQuestionForTheLockDisturbsNoStart) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  std::string owner;
  ASSERT_NE(real_file_system().try_lock(run.path() / ".lock", "me", owner), nullptr);
  std::atomic<bool> ends = false;
  std::thread asks([&] {
    while (!ends) {
      is_run_in_use(run.path());
    }
  });
  for (int i = 0; i < 2000; ++i) {
    EXPECT_NE(real_file_system().try_lock(run.path() / ".lock", "me", owner), nullptr) << i;
  }
  ends = true;
  asks.join();
}

TEST(RunReading, FollowsRestartsAndResumes) {
  const TempDir temp;
  const WrittenRun written(temp.path() / "a", {.checkpoint = {.monitor = "val_loss"}});
  write_eventful(written);
  const RunData run = read(written);
  EXPECT_EQ(run.state, RunState::finished);
  EXPECT_EQ(run.last_step, 60);
  EXPECT_EQ(run.epoch, 1);
  EXPECT_THAT(run.metrics.find("loss")->steps, ElementsAre(10, 20, 30, 40, 50, 60));
  EXPECT_THAT(event_names(run), ElementsAre("start", "save", "end", "start", "resume", "spike", "failure", "restart",
                                            "start", "resume", "end"));
  EXPECT_EQ(run.checkpoints.steps, (std::vector<std::int64_t>{20, 40, 60}));
  EXPECT_EQ(run.checkpoints.best, 40);
  EXPECT_EQ(run.checkpoints.best_value, 1.25);
  EXPECT_GT(run.checkpoints.bytes, 180);
  EXPECT_TRUE(run.notes.empty()) << run.notes.front();
  EXPECT_THAT(run.environment, testing::Contains(testing::Pair("launcher", "alone")));
  EXPECT_THAT(run.settings, testing::Contains(testing::Pair("program.size", "7")));
}

TEST(RunReading, DoesNotCountWhatAnAttemptHasLost) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  run.event("start");
  run.event("failure", {{"step", std::int64_t{1809}}, {"what", std::string("rank 1 was killed")}});
  EXPECT_EQ(read(run).last_step, 1809);
  run.event("start");
  EXPECT_EQ(read(run).last_step, 0);
  run.event("end", {{"step", std::int64_t{1}}, {"why", std::string("stopped at step 1: SIGTERM")}, {"stopped", true}});
  EXPECT_EQ(read(run).last_step, 1);
}

TEST(RunReading, KnowsHowLongTheLastStartTrains) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  run.checkpoint(40, 1);
  EXPECT_EQ(read(run).planned_steps, 60);
  run.checkpoint(70, 1);
  EXPECT_EQ(read(run).planned_steps, 0) << "more steps than were planned: another start prolongs it";
  run.event("start", {{"total_steps", std::int64_t{12'000}}});
  EXPECT_EQ(read(run).planned_steps, 12'000);
  std::filesystem::remove_all(run.path() / "checkpoints");
  run.checkpoint(40, 1);
  run.event("save", {{"step", std::int64_t{40}}});
  EXPECT_EQ(read(run).planned_steps, 60) << "of the later checkpoint";
  run.event("start", {{"total_steps", std::int64_t{100}}});
  run.event("resume", {{"step", std::int64_t{40}}, {"total_steps", std::int64_t{80}}});
  EXPECT_EQ(read(run).planned_steps, 80) << "an epoch has another length";
  std::filesystem::remove_all(run.path() / "checkpoints");
  run.event("save", {{"step", std::int64_t{50}}});
  EXPECT_EQ(read(run).planned_steps, 80) << "a checkpoint of only weights knows nothing";
}

TEST(RunReading, MeasuresTheRateWithoutPauses) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  write_text(run.path() / "metrics.jsonl",
             "{\"step\":10,\"time\":\"2026-11-21T10:00:00.000Z\",\"loss\":1}\n"
             "{\"step\":20,\"time\":\"2026-11-21T11:00:00.000Z\",\"loss\":1}\n"
             "{\"step\":30,\"time\":\"2026-11-21T11:00:05.000Z\",\"loss\":1}\n");
  write_text(run.path() / "events.jsonl", "{\"v\":1,\"time\":\"2026-11-21T10:59:00.000Z\",\"event\":\"start\"}\n");
  EXPECT_DOUBLE_EQ(read(run).step_s, 0.5);
}

TEST(RunReading, ListsEachSettingOfTheProgramOnce) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  write_text(run.path() / "config.toml", read_text(run.path() / "config.toml") + "[program]\nsize = 8\n");
  run.checkpoint(20, 1);  // has 7
  EXPECT_THAT(read(run).settings, testing::Contains(testing::Key("program.size")).Times(1));
  EXPECT_THAT(read(run).settings, testing::Contains(testing::Pair("program.size", "8")));
}

TEST(RunReading, TheFirstOfEqualCheckpointsIsTheBest) {
  const TempDir temp;
  const WrittenRun written(temp.path() / "a", {.checkpoint = {.monitor = "val_loss"}});
  for (const std::int64_t step : {20, 40, 60}) {
    written.checkpoint(step, step == 60 ? 2 : 1);
  }
  EXPECT_EQ(read(written).checkpoints.best, 20);
}

TEST(RunReading, NamesTheBuildOfTheLastStart) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  run.event("start", {{"build", std::string("lockstep 0.0.9")}});
  run.event("start", {{"build", std::string("lockstep 0.1.0")}});
  EXPECT_THAT(read(run).environment, testing::Contains(testing::Pair("build", testing::_)).Times(1));
  EXPECT_THAT(read(run).environment, testing::Contains(testing::Pair("build", "lockstep 0.1.0")));
}

TEST(RunReading, NotesWhatIsDamaged) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  run.event("start");
  run.rows(0, 30);
  const std::string rows = read_text(run.path() / "metrics.jsonl");
  write_text(run.path() / "metrics.jsonl", rows.substr(0, rows.size() - 5));
  write_text(run.path() / "events.jsonl", "{\"v\":1,\n" + read_text(run.path() / "events.jsonl"));
  write_text(run.path() / "config.toml", "max_epochs = = 1");
  write_text(run.path() / "run.json", "{");
  run.checkpoint(20, 1);
  write_text(run.path() / "checkpoints" / "step-0000000020" / "MANIFEST.json", "damaged");
  const RunData found = read(run);
  EXPECT_EQ(found.last_step, 20);
  EXPECT_THAT(found.notes, testing::SizeIs(5));
  EXPECT_THAT(join(found.notes, "\n"),
              AllOf(HasSubstr("the last line is incomplete"), HasSubstr("events.jsonl: a line is damaged"),
                    HasSubstr("config.toml"), HasSubstr("run.json"), HasSubstr("checkpoint of step 20")));
}

TEST(RunReading, CountsOnlyCheckpointsThatCanBeRead) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  run.checkpoint(60, 1);
  std::filesystem::create_directory(run.path() / "checkpoints" / "step-0000000080");
  write_text(run.path() / "checkpoints" / "step-0000000090", "");
  const RunData found = read(run);
  EXPECT_EQ(found.last_step, 60);
  EXPECT_THAT(found.checkpoints.steps, ElementsAre(60));
  EXPECT_THAT(join(found.notes, "\n"), AllOf(HasSubstr("checkpoint of step 80"), HasSubstr("checkpoint of step 90")));
}

TEST(RunReading, RejectsADirectoryWithoutARun) {
  const TempDir temp;
  EXPECT_THROW(read_run(real_file_system(), temp.path()), ConfigError);
  EXPECT_THROW(read_run(real_file_system(), temp.path() / "none"), ConfigError);
}

TEST(List, ShowsEveryRun) {
  const TempDir temp;
  write_eventful(WrittenRun(temp.path() / "first", {.checkpoint = {.monitor = "val_loss"}}));
  const WrittenRun empty(temp.path() / "second run");
  std::filesystem::create_directories(temp.path() / "no run");
  const auto table = run_program({LOCKSTEP_CLI, "list", temp.path().string()});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("name        state     step  epoch  best                     last activity"));
  EXPECT_THAT(table.out, HasSubstr("first       finished    60      1  val_loss 1.25 (step 40)  0 s ago"));
  EXPECT_THAT(table.out, HasSubstr("second run  unknown      0      -  -"));
  EXPECT_THAT(table.out, Not(HasSubstr("no run")));

  const auto json = parse_json(run_program({LOCKSTEP_CLI, "list", "--json", temp.path().string()}).out);
  ASSERT_EQ(json.at("runs").size(), 2U);
  const Json& first = json["runs"][0];
  EXPECT_EQ(first.at("name"), "first");
  EXPECT_EQ(first.at("state"), "finished");
  EXPECT_EQ(first.at("best").at("checkpoint"), (temp.path() / "first/checkpoints/step-0000000040").string());
  EXPECT_TRUE(json["runs"][1].at("best").is_null());
}

TEST(List, KnowsThatARunTrains) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  const auto list = [&] { return run_program({LOCKSTEP_CLI, "list", temp.path().string()}).out; };
  {
    const RunDirectory held(real_file_system(), run.path(), {});
    EXPECT_THAT(list(), HasSubstr("a     running"));
  }
  EXPECT_THAT(list(), HasSubstr("a     unknown")) << "the control";
}

TEST(List, FindsRunsInDirectoriesOfExperiments) {
  const TempDir temp;
  const WrittenRun near(temp.path() / "near");
  const WrittenRun deep(temp.path() / "vision" / "lr" / "first");
  const WrittenRun deeper(temp.path() / "vision" / "lr" / "more" / "second");
  const WrittenRun inside(near.path() / "inside");
  std::filesystem::create_directory_symlink("vision", temp.path() / "link");
  std::filesystem::create_directory_symlink(near.path(), temp.path() / "latest");
  const Json json = parse_json(run_program({LOCKSTEP_CLI, "list", "--json", temp.path().string()}).out);
  std::vector<std::string> names;
  for (const Json& found : json.at("runs")) {
    names.push_back(found.at("name"));
    EXPECT_EQ(found.at("directory"), (temp.path() / names.back()).string());
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre("near", "latest", "vision/lr/first"));
}

TEST(List, ShowsTheOtherRunsBesideAFileWithoutLines) {
  const TempDir temp;
  const WrittenRun good(temp.path() / "good");
  good.rows(0, 20);
  const WrittenRun bad(temp.path() / "bad");
  write_text(bad.path() / "metrics.jsonl", "");
  std::filesystem::resize_file(bad.path() / "metrics.jsonl", std::uintmax_t{1} << 30);  // has a hole, needs no space
  const auto list = run_program({LOCKSTEP_CLI, "list", "--json", temp.path().string()});
  ASSERT_EQ(list.code, 0) << list.err;
  std::map<std::string, Json> runs;
  const Json json = parse_json(list.out);
  for (const Json& run : json.at("runs")) {
    runs[run.at("name")] = run;
  }
  ASSERT_EQ(runs.size(), 2U) << list.out << list.err;
  EXPECT_EQ(runs["good"].at("step"), 20);
  EXPECT_TRUE(runs["good"].at("notes").empty()) << list.out;
  ASSERT_EQ(runs["bad"].at("notes").size(), 1U) << list.out;
  EXPECT_THAT(runs["bad"]["notes"][0].get<std::string>(),
              HasSubstr("bad/metrics.jsonl: a line is longer than 64.0 MiB, the limit of a row"));
}

TEST(List, SaysWhatIsWrong) {
  const TempDir temp;
  const auto missing = run_program({LOCKSTEP_CLI, "list", (temp.path() / "none").string()});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr("no such directory"));
  EXPECT_THAT(run_program({LOCKSTEP_CLI, "list", LOCKSTEP_CLI}).err, HasSubstr(": is a file\n"));
  EXPECT_EQ(run_program({LOCKSTEP_CLI, "list", "--jsno"}).code, 2);
  const auto none = run_program({LOCKSTEP_CLI, "list", temp.path().string()});
  EXPECT_EQ(none.code, 0);
  EXPECT_THAT(none.out, HasSubstr("no run in "));
}

std::size_t count(std::string_view text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

Json data_of(const std::string& page) {
  const std::string begin = R"(<script id="data" type="application/json">)";
  const std::size_t from = page.find(begin) + begin.size();
  return parse_json(page.substr(from, page.find("</script>", from) - from), 16);
}

TEST(Report, ContainsCurvesEventsAndSettings) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a", {.seed = 7, .checkpoint = {.monitor = "val_loss"}});
  write_eventful(run);
  const auto result = run_program({LOCKSTEP_CLI, "report", run.path().string()});
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, (run.path() / "report.html").string() + "\n");
  const std::string page = read_text(run.path() / "report.html");
  const Json data = data_of(page);
  ASSERT_EQ(data.at("runs").size(), 1U);
  EXPECT_EQ(data["runs"][0].at("metrics").at("loss").at("s").size(), 6U);
  EXPECT_EQ(data["runs"][0].at("events").size(), 11U);
  EXPECT_EQ(data.at("groups")[0].at("title"), "loss");
  EXPECT_EQ(
      data.at("differences").at("rows"),
      Json::parse(R"~([["seed","7","42"],["checkpoint.monitor","val_loss","(empty)"],["program.size","7","-"]])~"));
  // Readable without a script, and complete without a network.
  EXPECT_THAT(page,
              HasSubstr("<th scope=\"row\">loss</th><td data-title=\"last\">1</td><td data-title=\"at step\">60</td>"
                        "<td data-title=\"smallest\">1</td><td data-title=\"largest\">2</td>"));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_EQ(count(page, "src="), 0U);
  EXPECT_EQ(count(page, "href="), 0U);
  EXPECT_EQ(count(page, "@import"), 0U);
  EXPECT_EQ(count(page, "url("), 0U);
}

TEST(Report, KeepsTheAttemptsOfARunWithManyEvents) {
  RunData run{.name = "a"};
  const auto add = [&](const char* name, double time) { run.events.push_back({.time = time, .name = name}); };
  add("start", 1);
  for (int spike = 0; spike < 900; ++spike) {
    add("spike", 2 + spike);
  }
  add("end", 1000);
  const Json data = report_data(std::vector{run})["runs"][0];
  EXPECT_EQ(data.at("events").size(), 802U);
  EXPECT_EQ(data["events"][0].at("name"), "start");
  EXPECT_EQ(data["events"][801].at("name"), "end");
  EXPECT_EQ(data.at("eventsLeftOut"), 100);
}

TEST(Report, WritesLargeNumbersWithAllTheirDigits) {
  RunData run{.name = "a", .epoch = 1'234'567};
  run.events.push_back({.time = 1, .name = "end", .fields = {{"seconds", 43210.125}}});
  EXPECT_THAT(report_page(std::vector{run}, 0), HasSubstr("<td data-title=\"epoch\">1234567</td>"));
  EXPECT_EQ(report_data(std::vector{run})["runs"][0]["events"][0].at("text"), "seconds 43210.1");
  EXPECT_THAT(list_table(std::vector{run}, 0), HasSubstr("  1234567  "));
  EXPECT_THAT(top_screen(run, 0, {}, {})[1], HasSubstr("epoch 1234567"));
}

TEST(Report, LaysRunsOverEachOther) {
  const TempDir temp;
  const WrittenRun a(temp.path() / "a", {.seed = 7});
  const WrittenRun b(temp.path() / "b", {.seed = 8});
  a.rows(0, 30);
  b.rows(0, 50);
  b.rows(50, 60, 1, "val_loss");
  const auto out = temp.path() / "both.html";
  const auto result =
      run_program({LOCKSTEP_CLI, "report", a.path().string(), b.path().string(), "--out", out.string()});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json data = data_of(read_text(out));
  EXPECT_EQ(data.at("runs").size(), 2U);
  EXPECT_EQ(data.at("groups")[0].at("series"), (Json{"loss", "val_loss"}));
  EXPECT_EQ(data.at("differences").at("rows"), Json::parse(R"([["seed","7","8"]])"));
}

TEST(Report, RunsOfTheSameNameHaveTheirPaths) {
  const TempDir temp;
  const WrittenRun a(temp.path() / "a" / "run");
  const WrittenRun b(temp.path() / "b" / "run");
  const WrittenRun c(temp.path() / "c");
  const auto result = run_program({LOCKSTEP_CLI, "report", "a/run", "b/run", "c"}, {}, temp.path().string());
  ASSERT_EQ(result.code, 0) << result.err;
  const Json data = data_of(read_text(temp.path() / "report.html"));
  const auto names =
      mapped<std::string>(data.at("runs"), [](const Json& run) { return run.at("name").get<std::string>(); });
  EXPECT_THAT(names, ElementsAre("a/run", "b/run", "c"));
}

TEST(Report, OfARunThatHasWrittenNothingYet) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  const std::string page = report_page(std::vector{read(run)}, 0);
  EXPECT_THAT(page, HasSubstr("No metric has been written yet."));
  EXPECT_THAT(page, HasSubstr("there are no curves"));
}

TEST(Report, TextsOfFilesAreHarmless) {
  const std::string evil = "</script><b onload='x'>&\"{{data}}";
  const TempDir temp;
  const WrittenRun run(temp.path() / "a<i>{{values}}", {.run_name = evil});
  run.event("start", {{"launch", evil}});
  run.event("failure", {{"what", evil}});
  run.rows(0, 30, std::numeric_limits<double>::quiet_NaN(), evil);
  const std::string page = report_page(std::vector{read(run)}, 0);
  const RunData harmless{.name = "a"};
  const std::string plain = report_page(std::vector{harmless}, 0);
  // The control is a report without these texts: it has the same tags.
  for (const char* part : {"<script", "</script", "<b ", "<i>"}) {
    EXPECT_EQ(count(page, part), count(plain, part)) << part;
  }
  const Json data = data_of(page);
  EXPECT_EQ(data.at("groups")[0].at("title"), "lr");
  EXPECT_EQ(data.at("groups")[1].at("title"), evil);
  const Json& series = data["runs"][0].at("metrics").at(evil);
  EXPECT_TRUE(series.at("v")[0].is_null());
  EXPECT_EQ(series.at("g")[0], Json::parse(R"([10,"NaN"])"));
  EXPECT_THAT(page, HasSubstr("&lt;/script&gt;&lt;b onload=&#39;x&#39;&gt;&amp;&quot;{{data}}"));
}

TEST(Report, SaysWhatIsWrong) {
  const TempDir temp;
  EXPECT_EQ(run_program({LOCKSTEP_CLI, "report"}).code, 2);
  EXPECT_EQ(run_program({LOCKSTEP_CLI, "report", temp.path().string()}).code, 2);
  const WrittenRun run(temp.path() / "a");
  EXPECT_EQ(run_program({LOCKSTEP_CLI, "report", run.path().string(), "--out"}).code, 2);
  EXPECT_EQ(run_program({LOCKSTEP_CLI, "report", run.path().string(), "--out", temp.path().string()}).code, 2);
  const auto no_place =
      run_program({LOCKSTEP_CLI, "report", run.path().string(), "--out", (temp.path() / "b/c.html").string()});
  EXPECT_EQ(no_place.code, 74) << no_place.err;
}

std::optional<std::string> browser() {
  for (const std::string& folder : split(read_environment().get("PATH").value_or(""), ':')) {
    for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
      if (std::filesystem::exists(std::filesystem::path(folder) / name)) {
        return (std::filesystem::path(folder) / name).string();
      }
    }
  }
  return std::nullopt;
}

/// The page after its scripts, on the output, and their errors.
Process::Result draw(const std::filesystem::path& page, const std::string& part = "",
                     const std::vector<std::string>& flags = {}) {
  const TempDir profile;
  std::vector<std::string> command{*browser(),
                                   "--headless",
                                   "--no-sandbox",
                                   "--disable-gpu",
                                   "--disable-dev-shm-usage",
                                   "--no-first-run",
                                   "--user-data-dir=" + profile.path().string(),
                                   "--allow-file-access-from-files",
                                   "--enable-logging=stderr",
                                   "--dump-dom"};
  command.insert(command.end(), flags.begin(), flags.end());
  command.push_back("file://" + page.string() + part);
  return run_program(command);
}

class DrawnReport : public testing::Test {
 protected:
  void SetUp() override {
    LOCKSTEP_REQUIRE(Requirements().that(browser().has_value(), "no chromium and no google-chrome in PATH"));
  }
};

TEST_F(DrawnReport, HasNoErrorOfItsScript) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  write_eventful(run);
  run.rows(60, 80, std::numeric_limits<double>::infinity());
  const auto page = temp.path() / "page.html";
  const std::vector<std::string> whole{"--window-size=1280,3000", "--virtual-time-budget=2000"};
  const std::string text = report_page(std::vector{read(run)}, 0);
  write_text(page, text);
  const auto result = draw(page, "", whole);
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("class=\"curve\""), HasSubstr("class=\"gap\""), HasSubstr("class=\"line\"")));
  EXPECT_THAT(result.err, Not(HasSubstr("CONSOLE")));
  // The control: a page whose script fails.
  std::string broken = text;
  broken.replace(broken.rfind("addTools();"), 11, "addTolls();");
  write_text(page, broken);
  EXPECT_THAT(draw(page, "", whole).err, HasSubstr("CONSOLE"));
}

TEST_F(DrawnReport, NamesEachLineOfAFlatCurve) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  run.rows(0, 10, 99.95, "accuracy");
  run.rows(10, 20, 99.97, "accuracy");
  const auto page = temp.path() / "page.html";
  write_text(page, report_page(std::vector{read(run)}, 0));
  const std::string drawn = draw(page, "", {"--window-size=1280,3000", "--virtual-time-budget=2000"}).out;
  for (const char* tick : {">99.95<", ">99.955<", ">99.96<", ">99.965<", ">99.97<"}) {
    EXPECT_THAT(drawn, HasSubstr(tick));
  }
}

TEST_F(DrawnReport, CountsNoTimeBackwardsIfTheClockWasSetBack) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  run.rows(0, 20);
  std::string events;
  for (const auto& [time, event] : {std::pair("10:00:00", "start"),
                                    {"10:01:40", "end"},
                                    {"12:00:00", "start"},
                                    {"11:00:00", "end"},
                                    {"11:30:00", "start"},
                                    {"11:31:40", "end"}}) {
    events += fmt::format(R"({{"v":1,"time":"2026-11-21T{}.000Z","event":"{}"}})", time, event) + "\n";
  }
  write_text(run.path() / "events.jsonl", events);
  const auto page = temp.path() / "page.html";
  write_text(page, report_page(std::vector{read(run)}, 0));
  const std::string drawn = draw(page, "", {"--window-size=1280,3000", "--virtual-time-budget=2000"}).out;
  EXPECT_THAT(drawn, HasSubstr(">a: 3 min 20 s of training in 3 attempts<"));
  EXPECT_THAT(drawn, AllOf(HasSubstr(">+1 h 58 min<"), HasSubstr(">+0 s<")));
}

// page_layout.js looks for text outside of its box, parts that scroll sideways, labels over each other, charts without
// a curve and too little contrast.
TEST_F(DrawnReport, FitsAPhoneAndADeskLightAndDark) {
  const TempDir temp;
  const std::string path = "/scratch/a/path/that/nobody/can/break/into/the/lines/of/a/phone/but/at/its/slashes";
  const WrittenRun plain(temp.path() / "plain", {.seed = 7, .report = {.log_dir = path}});
  const WrittenRun named(temp.path() / "a_run_with_a_rather_long_name-lr=3e-4,warmup=5%,seed=8", {.seed = 8});
  for (const WrittenRun* run : {&plain, &named}) {
    run->event("failure",
               {{"what", std::string("rank 1 (host node0123.cluster.example.org, pid 71) failed: ") + path}});
    write_eventful(*run);
    run->rows(60, 80, 1, "grad_norm/backbone.layers.0.attention.query.weight");
    write_text(run->path() / "step_times.csv",
               "step,rank,step_ms,data_ms,forward_ms,backward_ms,reduce_ms,optimizer_ms,report_ms,save_ms\n"
               "20,0,90,10,20,30,10,5,1,2\n20,1,90,12,20,30,8,5,1,2\n");
  }
  write_text(named.path() / "run.json", "damaged");  // a note with the path
  const std::string both = report_page(std::vector{read(plain), read(named)}, 0);
  std::string broken = both;  // the control
  for (std::size_t at = 0; (at = broken.find("overflow-wrap: anywhere", at)) != std::string::npos;) {
    broken.replace(at, 23, "white-space: nowrap");
  }
  std::string frames = "<!doctype html><style>iframe { border: 0; height: 800px }</style><body>";
  for (const auto& [name, text] : {std::pair<std::string, std::string>{"one", report_page(std::vector{read(plain)}, 0)},
                                   {"two", both},
                                   {"broken", broken}}) {
    write_text(temp.path() / (name + ".html"), text);
    for (const int width : {400, 1400}) {
      frames += fmt::format("<iframe src=\"{}.html\" style=\"width: {}px\"></iframe>", name, width);
    }
  }
  const auto page = temp.path() / "frames.html";
  write_text(page, frames + "<script src=\"file://" LOCKSTEP_PAGE_LAYOUT "\"></script>");
  for (const bool dark : {false, true}) {
    SCOPED_TRACE(dark ? "dark" : "light");
    const std::string found =
        draw(page, dark ? "#dark" : "", {fmt::format("--blink-settings=preferredColorScheme={}", dark ? 0 : 1)}).out;
    EXPECT_THAT(found, HasSubstr("looked at 6 pages"));
    EXPECT_THAT(found, AllOf(Not(HasSubstr("<p>one.html")), Not(HasSubstr("<p>two.html"))));
    EXPECT_THAT(found, HasSubstr("<p>broken.html at 400 px: text outside of its box"));
  }
}

TEST(Top, ShowsTheLastValues) {
  const TempDir temp;
  const WrittenRun written(temp.path() / "a", {.checkpoint = {.monitor = "val_loss"}});
  write_eventful(written);
  const RunData run = read(written);
  const auto lines = top_screen(run, run.last_activity, {.width = 60, .height = 40}, {.unicode = false});
  const std::string text = join(lines, "\n");
  EXPECT_THAT(text, HasSubstr("a: finished at step 60, epoch 1\nstep 60 of 60 (100 %)   epoch 1"));
  EXPECT_THAT(text, HasSubstr("\ncheckpoint: step 60, best val_loss 1.25 at step 40, "));
  EXPECT_THAT(text, HasSubstr("\nloss             1            ####__\n"));
  EXPECT_THAT(text, HasSubstr("  end  step 60  finished at step 60, epoch 1"));
}

TEST(Top, FitsIntoAnyTerminal) {
  const TempDir temp;
  const WrittenRun written(temp.path() / "a");
  write_eventful(written);
  for (int i = 0; i < 30; ++i) {
    written.rows(60 + 10 * i, 70 + 10 * i, i, std::to_string(i) + "_metric");
  }
  const RunData run = read(written);
  for (const ScreenSize size : {ScreenSize{80, 24}, ScreenSize{20, 5}, ScreenSize{1, 1}, ScreenSize{300, 100}}) {
    const auto lines = top_screen(run, run.last_activity, size, {});
    EXPECT_LE(lines.size(), static_cast<std::size_t>(size.height));
    for (const std::string& line : lines) {
      EXPECT_LE(std::ranges::count_if(line, [](char c) { return (c & 0xc0) != 0x80; }), size.width) << line;
    }
  }
  EXPECT_THAT(join(top_screen(run, 0, {80, 24}, {}), "\n"), HasSubstr("other metrics"));
}

TEST(Top, OnlyCountsTheMetricsThatTheConsoleLeavesOut) {
  const auto text = [](std::int64_t of_a_matrix) {
    RunData run{.name = "a"};
    for (const char* name : {"loss", "epoch", "grad_norm/encoder", "accuracy"}) {
      run.metrics.series.push_back({.name = name, .steps = {1}, .values = {1}});
    }
    for (std::int64_t i = 0; i < of_a_matrix; ++i) {
      run.metrics.series.push_back({.name = fmt::format("confusion_0_{}", i), .steps = {1}, .values = {1}});
    }
    return join(top_screen(run, 0, {80, 24}, {.unicode = false}), "\n");
  };
  EXPECT_THAT(text(8), AllOf(HasSubstr("\nconfusion_0_7 "), HasSubstr("\n... and 1 other metric")));
  EXPECT_THAT(text(9), AllOf(HasSubstr("\nloss "), HasSubstr("\naccuracy "), Not(HasSubstr("confusion")),
                             HasSubstr("\n... and 10 other metrics")));
}

TEST(Top, BreaksLinesBetweenWords) {
  const TempDir temp;
  const WrittenRun written(temp.path() / "a");
  write_eventful(written);
  written.rows(60, 70, 1, "gpu_memory_peak_mib");
  written.event("end", {{"step", std::int64_t{70}},
                        {"why", std::string("finished at step 70, epoch 1, saved in /scratch/experiments/august/a")}});
  const RunData run = read(written);
  const auto narrow = top_screen(run, run.last_activity, {.width = 50, .height = 40}, {.unicode = false});
  const std::string text = join(narrow, "\n");
  EXPECT_THAT(text, HasSubstr("a: finished at step 70, epoch 1, saved in\n/scratch/experiments/august/a\n"));
  EXPECT_THAT(text, HasSubstr("finished at step 70,\n  epoch 1, saved in /scratch/experiments/august/a"));
  EXPECT_THAT(text, HasSubstr("\ngpu_memory_peak_mib 1 "));
  const ScreenSize pipe{.width = 20, .height = 1000, .breaks_lines = false};
  const std::string whole = join(top_screen(run, run.last_activity, pipe, {.unicode = false}), "\n");
  EXPECT_THAT(whole, AllOf(HasSubstr("saved in /scratch/experiments/august/a\nstep 70"),
                           HasSubstr("\ngpu_memory_peak_mib 1 ")));
}

TEST(Top, ShowsHighRatesWithoutAnExponent) {
  const auto rate = [](double step_s) { return top_screen({.step_s = step_s}, 0, {}, {})[1]; };
  EXPECT_THAT(rate(1 / 1640.0), HasSubstr("   1,640 steps/s"));
  EXPECT_THAT(rate(1 / 42.54), HasSubstr("   42.5 steps/s"));
}

// A terminal erases the last character of a full line if it is told to erase after that line.
TEST(Top, ErasesBeforeItWrites) {
  const ScreenSize size{.width = 3, .height = 2};
  EXPECT_EQ(drawing({"abc"}, size), "\x1b[H\x1b[Kabc\r\n\x1b[J");
  EXPECT_EQ(drawing({"abc", "def"}, size), "\x1b[H\x1b[Kabc\r\n\x1b[Kdef");
}

TEST(Top, SparklinesMarkValuesThatAreNotFinite) {
  const std::vector<double> values{9, 0, 7, std::numeric_limits<double>::quiet_NaN(), 3.5};
  EXPECT_EQ(sparkline(values, 4, {.unicode = false}), "_#!=");
  EXPECT_EQ(sparkline(values, 2, {.unicode = true}), "!▁");
  EXPECT_EQ(sparkline({}, 4, {}), "");
}

TEST(Top, PrintsOnePictureWithoutATerminal) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  write_eventful(run);
  const auto result = run_program({LOCKSTEP_CLI, "top", run.path().string()});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("a: finished"), Not(HasSubstr("\x1b"))));
}

TEST(Commands, NameTheRunsOfADirectoryThatIsNoRun) {
  const TempDir temp;
  const WrittenRun a(temp.path() / "runs" / "a");
  const WrittenRun b(temp.path() / "runs" / "b");
  std::filesystem::create_directory(temp.path() / "runs" / "data");
  for (const char* command : {"top", "report", "verify"}) {
    const auto result = run_program({LOCKSTEP_CLI, command, "runs"}, {}, temp.path().string());
    EXPECT_EQ(result.code, 2) << command;
    EXPECT_EQ(result.out, "") << command;
    EXPECT_EQ(result.err,
              "error: runs is no run, but a directory of 2 runs: a, b\n"
              "  hint: give one of them, such as runs/a; lockstep list runs shows them\n")
        << command;
  }
  EXPECT_THAT(run_program({LOCKSTEP_CLI, "top", "."}, {}, temp.path().string()).err, HasSubstr(". contains no run"));
}

TEST(System, DescribesARunWithoutNames) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "secret_run",
                       {.run_dir = "secret_folder", .run_name = "secret_name", .optim = {.lr = 0.5}});
  write_text(run.path() / "config.toml",
             read_text(run.path() / "config.toml") + "[program]\ndata = \"secret_data\"\nwidth = 64\n");
  run.event("start", {{"hosts", std::string("secret1.example.org, secret2")},
                      {"launch", std::string("lockstep, 2 ranks on secret1:29500")},
                      {"build", std::string("lockstep 0.1.0, build ab12")}});
  run.event("init_weights", {{"from", std::string("secret_weights")}, {"tensors", std::int64_t{7}}});
  run.event("straggler", {{"step", std::int64_t{30}}, {"rank", std::int64_t{1}}, {"host", std::string("secret3")}});
  run.event("failure",
            {{"step", std::int64_t{50}},
             {"what", std::string("rank 1 (host secret1, pid 71) failed: cannot open '/data/secret user/x.bin': "
                                  "port 29500 of 10.1.2.3 is held by pid 9 'train' (user secret_user)")}});
  const auto text = run_program({LOCKSTEP_CLI, "system", "--run", run.path().string()});
  ASSERT_EQ(text.code, 0) << text.err;
  const auto json = run_program({LOCKSTEP_CLI, "system", "--json", "--run", run.path().string()});
  for (const std::string& found : {text.out, json.out}) {
    EXPECT_THAT(found, AllOf(Not(HasSubstr("secret")), Not(HasSubstr("/data")), Not(HasSubstr("10.1.2.3"))));
  }
  const Json summary = parse_json(json.out, 16).at("run");
  EXPECT_EQ(summary.at("state"), "failed");
  EXPECT_EQ(summary.at("step"), 50);
  EXPECT_EQ(summary.at("starts"), 1);
  EXPECT_EQ(summary.at("build"), "lockstep 0.1.0, build ab12");
  EXPECT_EQ(summary.at("launcher"), "lockstep, 2 ranks on (host)");
  EXPECT_EQ(summary.at("settings"), Json::parse(R"~(["run_dir = (text)", "run_name = (text)", "optim.lr = 0.5",
                                                    "program.data = (text)", "program.width = 64"])~"));
  EXPECT_THAT(summary.at("failure").get<std::string>(),
              AllOf(HasSubstr("rank 1 (host (host), pid 71) failed: cannot open '(path)"), HasSubstr("of (address) is"),
                    HasSubstr("(user (user))")));
  ASSERT_EQ(summary.at("events").size(), 4U);
  EXPECT_THAT(summary["events"][2].get<std::string>(), HasSubstr("UTC straggler, step 30: rank 1, host (host)"));
  EXPECT_THAT(text.out, HasSubstr("\nrun\nstate             failed\n"));
  const auto none = run_program({LOCKSTEP_CLI, "system", "--run", temp.path().string()});
  EXPECT_EQ(none.code, 2);
}

TEST(System, TakesTheCommentOfAnArgumentForNoPath) {
  const auto shown = [](std::string_view text) { return without_names(text, {}); };
  EXPECT_EQ(shown("call load_module(\"/data/x\", /*allow_partial=*/true)"),
            "call load_module(\"(path)\", /*allow_partial=*/true)");
  EXPECT_EQ(shown("/*a=*/data/x /*/x */x /* x=*/y ./*a=*/x"),
            "/*a=*/(path) (path) (path) (path) x=(path) (path)=(path)");
}

TEST(Commands, SayThatMemoryRanOut) {
  LOCKSTEP_REQUIRE(Requirements().that(!kHasSanitizer, "a sanitizer needs more address space than the limit"));
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  write_text(run.path() / "metrics.jsonl", "");
  std::filesystem::resize_file(run.path() / "metrics.jsonl", std::uintmax_t{1} << 30);  // has a hole, needs no space
  const auto result =
      run_program({"sh", "-c", "ulimit -v 500000; exec \"$0\" report a", LOCKSTEP_CLI}, {}, temp.path().string());
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.err, "error: out of memory\n  hint: close other programs, or raise the limit (ulimit -v)\n");
}

TEST(Commands, SayThatAFileIsNoRun) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  run.rows(0, 10);
  const std::vector<std::vector<std::string>> commands{
      {"top", "a/metrics.jsonl"}, {"report", "a/metrics.jsonl"}, {"ctl", "a/metrics.jsonl", "stop"}};
  for (std::vector<std::string> command : commands) {
    command.insert(command.begin(), LOCKSTEP_CLI);
    const auto result = run_program(command, {}, temp.path().string());
    EXPECT_EQ(result.code, 2) << command[1];
    EXPECT_THAT(result.err, HasSubstr("error: a/metrics.jsonl contains no run\n")) << command[1];
    EXPECT_THAT(result.err, HasSubstr("started just now makes its directory within some seconds")) << command[1];
  }
}

TEST(Ctl, SaysThatTheTrainingHasEndedWithoutTheCommand) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  const std::filesystem::path file = command_file(run.path(), "save");
  std::optional<RunDirectory> training(std::in_place, real_file_system(), run.path(), LaunchName{});
  std::future<Process::Result> answer = std::async(std::launch::async, [&] {
    return run_program({LOCKSTEP_CLI, "ctl", run.path().string(), "save"});
  });
  while (!std::filesystem::exists(file) && answer.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
  }
  training.reset();
  const Process::Result result = answer.get();
  EXPECT_EQ(result.code, 65) << result.out;
  EXPECT_THAT(result.err, HasSubstr("no training runs in "));
  EXPECT_LT(result.seconds, 5);
  EXPECT_FALSE(std::filesystem::exists(file)) << "the next training would take it";
}

TEST(Ctl, SaysAtOnceThatALoopByHandTakesNoCommands) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  const auto checkpoints = run.path() / "checkpoints";
  std::filesystem::create_directories(checkpoints);
  std::string owner;
  const auto store = real_file_system().try_lock(checkpoints / ".lock", "1", owner);  // as a CheckpointStore does
  ASSERT_NE(store, nullptr);
  const Process::Result result = run_program({LOCKSTEP_CLI, "ctl", run.path().string(), "stop"});
  EXPECT_EQ(result.code, 65) << result.out;
  EXPECT_THAT(result.err, HasSubstr("has a loop of its own, which takes no commands"));
  EXPECT_FALSE(std::filesystem::exists(command_file(run.path(), "stop"))) << "the next training would take it";
}

TEST(Ctl, KnowsThatTheLauncherMayStartTheTrainingAgain) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  const auto hint = [&] {
    const Process::Result result = run_program({LOCKSTEP_CLI, "ctl", run.path().string(), "stop"});
    EXPECT_EQ(result.code, 65) << result.out;
    EXPECT_THAT(result.err, HasSubstr("no training runs in " + run.path().string() + " now"));
    return result.err.substr(result.err.find("hint: "));
  };
  const std::string no_launcher = "hint: start it with the command of the run\n";
  const std::string launcher =
      "hint: if its launcher still runs, wait for the restart, or end the launcher with Ctrl-C or SIGTERM\n";
  EXPECT_EQ(hint(), no_launcher);
  run.event("start");
  EXPECT_EQ(hint(), no_launcher);
  run.event("failure", {{"restart", true}});
  EXPECT_EQ(hint(), launcher) << "the pause before the restart";
  run.event("restart");
  EXPECT_EQ(hint(), launcher) << "until the ranks have taken the run";
  run.event("start");
  run.event("failure", {{"restart", false}});
  EXPECT_EQ(hint(), no_launcher);
}

TEST(Report, AdvisesAnotherPlaceIfTheRunCannotHaveThePage) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  const auto result =
      run_program({"sh", "-c", "ulimit -f 0; exec \"$0\" report a", LOCKSTEP_CLI}, {}, temp.path().string());
  EXPECT_EQ(result.code, 74);
  EXPECT_THAT(result.err, HasSubstr("hint: give another place with --out FILE"));
}

TEST(Report, NamesTheFileThatCannotBeWritten) {
  const TempDir temp;
  const WrittenRun run(temp.path() / "a");
  const auto result = run_program({LOCKSTEP_CLI, "report", "a", "--out", "none/a.html"}, {}, temp.path().string());
  EXPECT_EQ(result.code, 74);
  EXPECT_EQ(result.err, "error: cannot create none/a.html: No such file or directory\n");
}

class LiveTop : public testing::Test {
 protected:
  LiveTop() { write_eventful(run_); }

  TempDir temp_;
  WrittenRun run_{temp_.path() / "a"};
  const std::vector<std::string> command_{LOCKSTEP_CLI, "top", run_.path().string()};
};

TEST_F(LiveTop, RedrawsWhenARowIsWritten) {
  OnTerminal top(command_);
  ASSERT_TRUE(top.read_until("step 60")) << top.screen;
  EXPECT_FALSE(top.echoes());
  run_.rows(60, 70);
  ASSERT_TRUE(top.read_until("step 70")) << top.screen;
  top.type("q");
  ASSERT_TRUE(top.read_until("")) << top.screen;
  EXPECT_EQ(top.wait(), 0);
  EXPECT_TRUE(top.screen.ends_with("\x1b[?25h\x1b[?1049l"));
  EXPECT_TRUE(top.echoes());
}

TEST_F(LiveTop, EndsWithCtrlC) {
  OnTerminal top(command_);
  ASSERT_TRUE(top.read_until("step 60")) << top.screen;
  top.type("\x03");
  ASSERT_TRUE(top.read_until("")) << top.screen;
  EXPECT_EQ(top.wait(), 0);
  EXPECT_TRUE(top.echoes());
}

TEST_F(LiveTop, RestoresTheTerminalAfterASignalAndAnError) {
  {
    OnTerminal top(command_);
    ASSERT_TRUE(top.read_until("step 60")) << top.screen;
    top.signal(SIGTERM);
    ASSERT_TRUE(top.read_until("")) << top.screen;
    EXPECT_EQ(top.wait(), 143);
    EXPECT_TRUE(top.screen.ends_with("\x1b[?1049l"));
    EXPECT_TRUE(top.echoes());
  }
  OnTerminal top(command_);
  ASSERT_TRUE(top.read_until("step 60")) << top.screen;
  std::filesystem::rename(run_.path(), temp_.path() / "b");
  ASSERT_TRUE(top.read_until("")) << top.screen;
  EXPECT_EQ(top.wait(), 2);
  EXPECT_THAT(top.screen, AllOf(HasSubstr("\x1b[?1049l"), HasSubstr("contains no run")));
  EXPECT_TRUE(top.echoes());
}

}  // namespace
}  // namespace lockstep
