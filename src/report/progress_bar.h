// Shows progress: one line on a terminal, plain lines elsewhere. Never waits for a device. Torch-free.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <lockstep/report/metric_sink.h>

#include "report/console.h"

namespace lockstep {

struct Progress {
  std::string phase{};                  ///< "epoch 2", "validation"
  std::int64_t done = 0;                ///< steps of the phase
  std::optional<std::int64_t> total{};  ///< unknown for endless data
  std::int64_t step = 0;                ///< of the run
  std::int64_t samples = 0;             ///< of the run, over all ranks; used for the rate
};

/// Interactive: redraws at most ten times per second. Otherwise prints only reports, each as a plain line: "step 200 |
/// epoch 2 | loss 2.1234 | lr 0.0003 | 12,345 samples/s".
class ProgressBar {
 public:
  ProgressBar(std::shared_ptr<Console> console, bool show_bar);
  ~ProgressBar();                         ///< removes the status line
  void update(const Progress& progress);  ///< cheap: reads only a clock if no redraw is due
  void report(const Progress& progress,
              std::span<const MetricValue> metrics);  ///< in the bar if interactive, else a line
  void keep(const Progress& progress, std::span<const MetricValue> metrics);  ///< always a line: for a validation
  void finish_epoch(const Progress& progress);  ///< interactive: makes the last report of the epoch a line that stays
  void finish_phase();                          ///< removes the bar

 private:
  std::shared_ptr<Console> console_;
  bool show_bar_;
  void enter_phase(const Progress& progress, std::chrono::steady_clock::time_point now);
  void measure_rate(const Progress& progress, std::chrono::steady_clock::time_point now);
  void draw(const Progress& progress, std::chrono::steady_clock::time_point now);
  std::string line_of(const Progress& progress, std::span<const MetricValue> metrics) const;

  std::optional<std::string> phase_{};  // nullopt between phases
  std::chrono::steady_clock::time_point phase_since_{};
  std::int64_t phase_began_at_ = 0;
  std::chrono::steady_clock::time_point next_draw_{};
  std::chrono::steady_clock::time_point rate_since_{};
  std::int64_t rate_samples_ = 0;
  double samples_per_s_ = 0;
  std::string metrics_text_{};
  std::string last_report_{};  // of this phase
};

/// The text of one frame, for tests: "epoch 2:  45%|####      | 450/1000 [00:12<00:15, 1.2k samples/s, loss 0.123]". In
/// a resumed epoch, `began_at` steps were complete when `elapsed_s` started. Parts that do not fit into `width` are
/// left out.
std::string progress_frame(const Progress& progress, double elapsed_s, double samples_per_s, std::string_view metrics,
                           int width, std::int64_t began_at = 0);

}  // namespace lockstep
