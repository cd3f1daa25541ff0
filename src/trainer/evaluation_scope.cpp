#include "trainer/evaluation_scope.h"

namespace lockstep {

EvaluationScope::EvaluationScope(torch::nn::Module& module, c10::Device device)
    : module_(module),
      parts_(module.modules(/*include_self=*/false)),  // including the module itself would require a shared_ptr
      was_training_(module.is_training()),
      random_numbers_(device) {
  for (const auto& part : parts_) {
    parts_were_training_.push_back(part->is_training());
  }
  module_.eval();
}

EvaluationScope::~EvaluationScope() {
  module_.train(was_training_);
  for (std::size_t i = 0; i < parts_.size(); ++i) {  // parents come first, because they also change their children
    if (parts_[i]->is_training() != parts_were_training_[i]) {
      parts_[i]->train(parts_were_training_[i]);
    }
  }
}

}  // namespace lockstep
