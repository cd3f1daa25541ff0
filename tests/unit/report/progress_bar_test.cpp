#include "report/progress_bar.h"

#include <cmath>
#include <memory>
#include <string>

#include <gmock/gmock.h>

#include "base/columns.h"
#include "support/recording_console.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::MatchesRegex;
using testing::SizeIs;
using testing::StartsWith;

TEST(ProgressFrame, CountsCharactersAndCutsNone) {
  const std::string metric = "\u00e4\u00e4\u00e4 1";  // two bytes for each letter
  const Progress stream{.phase = "epoch 1", .done = 5};
  const std::string whole = progress_frame(stream, 1, 0, metric, 80);
  EXPECT_EQ(whole, "epoch 1: 5 [00:01, " + metric + "]");
  EXPECT_EQ(progress_frame(stream, 1, 0, metric, 20), "epoch 1: 5 [00:01, \u00e4");
  const Progress known{.phase = "epoch 1", .done = 1, .total = 2};
  const std::string bar = progress_frame(known, 1, 0, metric, 60);
  EXPECT_THAT(bar, HasSubstr(metric));
  EXPECT_EQ(columns_of(bar), columns_of(progress_frame(known, 1, 0, "aaa 1", 60)));
}

TEST(ProgressFrame, ShowsPhasePartTimeRateAndMetrics) {
  struct Case {
    Progress progress;
    double elapsed_s;
    double rate;
    const char* metrics;
    int width;
    const char* frame;
  };
  const Case cases[] = {
      {{.phase = "epoch 2", .done = 450, .total = 1000},
       12,
       1234,
       "loss 0.123",
       77,
       "epoch 2:  45%|####      | 450/1000 [00:12<00:15, 1.23k samples/s, loss 0.123]"},
      {{.phase = "epoch 2", .done = 1000, .total = 1000},
       61,
       0,
       "",
       60,
       "epoch 2: 100%|#####################| 1000/1000 [01:01<00:00]"},
      {{.phase = "validation", .done = 0, .total = 3}, 0, 0, "", 46, "validation:   0%|                | 0/3 [00:00]"},
      {{.phase = "epoch 0", .done = 7}, 3, 850, "loss 1", 80, "epoch 0: 7 [00:03, 850 samples/s, loss 1]"},
      // too narrow: first the metrics go, then everything but the count
      {{.phase = "epoch 2", .done = 450, .total = 1000},
       12,
       0,
       "loss 0.123",
       45,
       "epoch 2:  45%|###    | 450/1000 [00:12<00:15]"},
      {{.phase = "epoch 2", .done = 450, .total = 1000}, 12, 0, "loss 0.123", 30, "epoch 2:  45% 450/1000"},
      {{.phase = "epoch 2", .done = 450, .total = 1000}, 12, 0, "", 10, "epoch 2:  "},
      {{.phase = "epoch 2", .done = 450}, 12, 0, "", 0, ""},
      // never more than everything, whatever it is told
      {{.phase = "e", .done = 5, .total = 4}, 1, 0, "", 31, "e: 100%|####| 5/4 [00:01<00:00]"},
      {{.phase = "e", .done = 0, .total = 0}, 1, 0, "", 30, "e: 100%|#########| 0/0 [00:01]"},
  };
  for (const Case& c : cases) {
    const std::string frame = progress_frame(c.progress, c.elapsed_s, c.rate, c.metrics, c.width);
    EXPECT_LE(frame.size(), static_cast<std::size_t>(c.width)) << frame;
    EXPECT_EQ(frame, c.frame);
  }
}

TEST(ProgressFrame, EstimatesFromTheStepsOfThisProcess) {
  const Progress resumed{.phase = "epoch 2", .done = 600, .total = 1000};
  EXPECT_THAT(progress_frame(resumed, 10, 0, "", 80, /*began_at=*/500), HasSubstr("[00:10<00:40]"));
}

TEST(ProgressBar, ReportsPlainLinesWithoutATerminal) {
  const auto console = std::make_shared<RecordingConsole>(false);
  {
    ProgressBar bar(console, /*show_bar=*/true);
    const MetricValue metrics[] = {{"loss", 2.12344}, {"lr", 3e-4}};
    bar.update({.phase = "epoch 2", .done = 10, .total = 50, .step = 190, .samples = 1000});
    bar.report({.phase = "epoch 2", .done = 20, .total = 50, .step = 200, .samples = 26000}, metrics);
    bar.report({.phase = "epoch 2", .done = 20, .total = 50, .step = 200, .samples = 26000}, {});
    bar.finish_phase();
  }
  EXPECT_THAT(console->statuses, IsEmpty());
  ASSERT_THAT(console->lines, SizeIs(2));
  EXPECT_THAT(console->lines[0],
              MatchesRegex("step 200 \\| epoch 2 \\| loss 2.1234 \\| lr 0.0003 \\| [0-9,]+,[0-9]{3} samples/s"));
  EXPECT_THAT(console->lines[1], StartsWith("step 200 | epoch 2 | "));
}

TEST(ProgressBar, WritesNamesAndValuesAsTheFilesDo) {
  const auto console = std::make_shared<RecordingConsole>(false);
  const MetricValue metrics[] = {{"a\nb", -std::nan("")}, {"c", HUGE_VAL}};
  ProgressBar(console, /*show_bar=*/true).report({.phase = "epoch 1", .step = 7}, metrics);
  EXPECT_THAT(console->lines, ElementsAre("step 7 | epoch 1 | ab NaN | c Infinity"));
}

TEST(ProgressBar, RedrawsAtMostTenTimesASecond) {
  const auto console = std::make_shared<RecordingConsole>(true);
  ProgressBar bar(console, /*show_bar=*/true);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 10000; ++i) {
    bar.update({.phase = "epoch 0", .done = i, .total = 10000});
  }
  const auto tenths = (std::chrono::steady_clock::now() - begin) / std::chrono::milliseconds(100);
  EXPECT_GE(console->statuses.size(), 1U);
  EXPECT_LE(console->statuses.size(), static_cast<std::size_t>(tenths) + 1);
}

TEST(ProgressBar, ShowsMetricsInTheBarAndLeavesNothingBehind) {
  const auto console = std::make_shared<RecordingConsole>(true);
  {
    ProgressBar bar(console, /*show_bar=*/true);
    const MetricValue metrics[] = {{"loss", 0.5}};
    bar.report({.phase = "epoch 0", .done = 1, .total = 10}, metrics);
    EXPECT_THAT(console->statuses.back(), HasSubstr("loss 0.5]"));
    bar.finish_phase();
    EXPECT_EQ(console->statuses.back(), "");
    bar.update({.phase = "validation", .done = 1, .total = 10});
    EXPECT_THAT(console->statuses.back(), StartsWith("validation:  10%|")) << "a new phase is drawn without waiting";
  }
  EXPECT_EQ(console->statuses.back(), "");
  EXPECT_THAT(console->lines, IsEmpty());
}

TEST(ProgressBar, ReportsLinesWhenTheBarIsNotWanted) {
  const auto console = std::make_shared<RecordingConsole>(true);
  ProgressBar bar(console, /*show_bar=*/false);
  bar.report({.phase = "epoch 0", .done = 1, .total = 10, .step = 1}, {});
  EXPECT_THAT(console->lines, ElementsAre("step 1 | epoch 0"));
  EXPECT_THAT(console->statuses, IsEmpty());
}

}  // namespace
}  // namespace lockstep
