#include <cmath>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/file_system.h>
#include <lockstep/report/metric_sink.h>

#include "support/captured_stderr.h"
#include "support/temp_dir.h"

namespace lockstep {
namespace {

TEST(PrometheusSink, HasTheLastValueOfEveryMetric) {
  const TempDir dir;
  const auto file = dir.path() / "metrics.prom";
  const auto sink = prometheus_sink(real_file_system(), file, "a \"b\"");
  sink->write(20, std::vector<MetricValue>{{"loss", 0.5}, {"lr", 1e-3}});
  sink->write(30, std::vector<MetricValue>{{"val_loss", std::nan("")}, {"top-5", -INFINITY}});
  sink->write(40, std::vector<MetricValue>{{"loss", 0.25}, {"lr", 1e-3}});
  EXPECT_EQ(read_file(real_file_system(), file),
            "# TYPE lockstep_step gauge\nlockstep_step{run=\"a \\\"b\\\"\"} 40\n"
            "# TYPE lockstep_loss gauge\nlockstep_loss{run=\"a \\\"b\\\"\"} 0.25\n"
            "# TYPE lockstep_lr gauge\nlockstep_lr{run=\"a \\\"b\\\"\"} 0.001\n"
            "# TYPE lockstep_val_loss gauge\nlockstep_val_loss{run=\"a \\\"b\\\"\"} NaN\n"
            "# TYPE lockstep_top_5 gauge\nlockstep_top_5{run=\"a \\\"b\\\"\",name=\"top-5\"} -Inf\n");
}

TEST(PrometheusSink, KeepsMetricsApartWhoseNamesItCannotWrite) {
  const TempDir dir;
  const auto file = dir.path() / "metrics.prom";
  const auto sink = prometheus_sink(real_file_system(), file, "a");
  sink->write(20, std::vector<MetricValue>{{"准确率", 0.5}, {"a/b", 1}, {"召回率", 0.25}, {"a_b", 2}});
  EXPECT_EQ(read_file(real_file_system(), file),
            "# TYPE lockstep_step gauge\nlockstep_step{run=\"a\"} 20\n"
            "# TYPE lockstep__________ gauge\nlockstep__________{run=\"a\",name=\"准确率\"} 0.5\n"
            "lockstep__________{run=\"a\",name=\"召回率\"} 0.25\n"
            "# TYPE lockstep_a_b gauge\nlockstep_a_b{run=\"a\",name=\"a/b\"} 1\nlockstep_a_b{run=\"a\"} 2\n");
}

TEST(PrometheusSink, WarnsOnceWhereItCannotWrite) {
  const TempDir dir;
  const auto sink = prometheus_sink(real_file_system(), dir.path() / "missing" / "metrics.prom", "run");
  CapturedStderr captured;
  sink->write(1, std::vector<MetricValue>{{"loss", 1}});
  EXPECT_THAT(captured.text(), testing::HasSubstr("the run goes on without it"));
  CapturedStderr again;
  sink->write(2, std::vector<MetricValue>{{"loss", 1}});
  EXPECT_EQ(again.text(), "");
}

}  // namespace
}  // namespace lockstep
