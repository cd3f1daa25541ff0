// A run directory that the library's own writers have filled, without a training.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <lockstep/config/config_io.h>
#include <lockstep/report/metric_sink.h>

#include "base/event_log.h"
#include "storage/run_record.h"
#include "support/temp_dir.h"
#include "unit/storage/checkpoint_samples.h"

namespace lockstep {

class WrittenRun {
 public:
  explicit WrittenRun(std::filesystem::path directory, const TrainConfig& config = {}) : path_(std::move(directory)) {
    std::filesystem::create_directories(path_);
    const RunRecord record{.id = "0123456789abcdef", .program = "train", .launches = 1};
    write_text(path_ / "run.json", to_json(record));
    write_text(path_ / "config.toml", config_toml(config));
  }

  const std::filesystem::path& path() const { return path_; }

  void event(std::string_view name, const EventFields& fields = {}) const {
    EventLog(real_file_system(), path_ / "events.jsonl").write(name, fields);
  }

  /// Rows of the steps in (from, to], every tenth, as an attempt writes them that resumed at `from`.
  void rows(std::int64_t from, std::int64_t to, double loss = 2, const std::string& metric = "loss") const {
    const auto out = jsonl_sink(real_file_system(), path_ / "metrics.jsonl", from);
    for (std::int64_t step = from + 10; step <= to; step += 10) {
      out->write(step, std::vector<MetricValue>{{metric, loss}, {"lr", 0.001}, {"epoch", 1}});
    }
  }

  void checkpoint(std::int64_t step, double val_loss) const {
    CheckpointDir directory(real_file_system(), path_ / "checkpoints", "0123456789abcdef/1");
    auto contents = testing_storage::sample_contents(step);
    contents["state.json"] = "{\"step\":" + std::to_string(step) +
                             ",\"world_size\":2,\"total_steps\":\"60\",\"program.size\":\"7\",\"metric.val_loss\":\"" +
                             std::to_string(val_loss) + "\"}";
    testing_storage::save(directory, step, contents);
  }

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep
