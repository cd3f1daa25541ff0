// Makes batches of samples.
#pragma once

#include <any>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <lockstep/data/batch.h>
#include <lockstep/data/padding.h>

namespace lockstep {

/// Collects samples of the same structure and stacks them.
class Stacker {
 public:
  /// `paddings` are valid, and outlive the stacker.
  explicit Stacker(std::size_t samples, std::span<const Padding> paddings = {})
      : samples_(samples), paddings_(paddings) {}

  /// `id` names the sample in messages. Throws: DataError if its fields, shapes or dtypes differ from the first sample.
  void add(std::int64_t id, Batch sample);
  Batch stacked();

 private:
  struct Padded {
    const Padding* padding = nullptr;
    std::int64_t dimension = 0;  // from 0
  };
  struct Column {
    std::string name{};
    std::vector<at::Tensor> tensors{};
    std::vector<Padded> padded{};
    bool fits(at::IntArrayRef shape) const;
    at::Tensor stacked() const;
  };
  void add_column(const std::string& name, const at::Tensor& first);
  void add_tensor(std::size_t position, const std::string& name, at::Tensor tensor);
  void check_paddings_are_used() const;
  void check_same(std::int64_t id, const Column& column, const at::Tensor& found) const;

  std::size_t samples_;
  std::span<const Padding> paddings_;
  std::vector<std::int64_t> ids_{};
  std::vector<Column> columns_{};
  std::vector<std::any> extras_{};
  bool has_extra_ = false;
};

/// Sample `index` of a batch, without the batch dimension. Throws: DataError if a tensor, or the vector `extra`, does
/// not have `samples` rows.
Batch sample_of(const Batch& batch, std::int64_t index, std::int64_t samples);

/// Throws: ConfigError with all problems.
void check_paddings(std::span<const Padding> paddings);

}  // namespace lockstep
