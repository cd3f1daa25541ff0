// The loader of the training at stages inside of a step or of a loop.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <lockstep/base/error.h>
#include <lockstep/data/data_loader.h>

namespace lockstep {

/// Answers questions about another source, and gives no data: the step that is being trained would become another one.
class UnreadSource final : public BatchSource {
 public:
  explicit UnreadSource(BatchSource& source) : source_(source) {}

  const StepBatches* next() override { refuse(); }
  const StepBatches* next_unless(const std::function<bool()>&) override { refuse(); }
  void seek(const LoaderPosition&) override { refuse(); }
  std::optional<std::int64_t> steps_per_epoch() const override { return source_.steps_per_epoch(); }
  LoaderPosition position() const override { return source_.position(); }
  std::string fingerprint() const override { return source_.fingerprint(); }
  bool is_combined() const override { return source_.is_combined(); }
  bool has_one_reader() const override { return source_.has_one_reader(); }

 private:
  [[noreturn]] static void refuse() {
    throw Error("a callback read from the loader of the training inside of a step or of a loop",
                "read at step_end or at another stage between steps, and seek back");
  }

  BatchSource& source_;
};

}  // namespace lockstep
