// data/stacker.h
#pragma once

#include <any>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <lockstep/data/batch.h>

namespace lockstep {

/// Collects samples of the same structure and stacks them.
class Stacker {
 public:
  explicit Stacker(std::size_t samples) : samples_(samples) {}

  /// `id` names the sample in messages. Throws: DataError if its fields, shapes or dtypes differ from the first sample.
  void add(std::int64_t id, Batch sample);
  Batch stacked();

 private:
  struct Column {
    std::string name{};
    std::vector<at::Tensor> tensors{};
  };
  void add_tensor(std::size_t position, const std::string& name, at::Tensor tensor);
  void check_same(std::int64_t id, const std::string& name, const at::Tensor& found, const at::Tensor& expected) const;

  std::size_t samples_;
  std::vector<std::int64_t> ids_{};
  std::vector<Column> columns_{};
  std::vector<std::any> extras_{};
  bool has_extra_ = false;
};

}  // namespace lockstep
