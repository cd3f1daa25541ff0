// The callbacks of a trainer. Whatever of theirs runs stands in the rank's record under their name and may take any
// time: the other ranks wait for it without a limit.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <lockstep/trainer/callback.h>

#include "ipc/progress_record.h"

namespace lockstep {

class CallbackList {
 public:
  /// by_program: not one of the library's own, which are quick and freeze nothing. Throws: ConfigError when there is
  /// one of that name already.
  void add(std::shared_ptr<Callback> callback, bool by_program);

  /// Collective. A fit begins with `module` on its device: asks every callback for its stages.
  void begin(const torch::nn::Module& module, World& world);
  /// Collective. Calls those that want the stage. True: one of them froze or unfroze parameters, on any rank.
  bool call(const StageContext& context);

  /// Collective. "<callback>.<name>" of all their tensors, and the inverse: who saved nothing gets nothing.
  NamedTensors save(World& world) const;
  void load(const NamedTensors& state, World& world) const;

 private:
  struct Entry {
    std::string name{};
    std::shared_ptr<Callback> callback{};
    bool by_program = true;
    std::uint32_t stages = 0;
  };

  void note_frozen(std::vector<bool>& frozen) const;

  std::vector<Entry> entries_{};
  std::uint32_t program_stages_ = 0;  // at which any rank has a callback of the program
  std::vector<at::Tensor> parameters_{};
  std::vector<bool> frozen_before_{};  // beside parameters_
  std::vector<bool> frozen_{};
};

std::string_view to_string(Stage stage) noexcept;  ///< "epoch_end"

}  // namespace lockstep
