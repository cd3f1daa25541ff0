// The updates of optimizers that have no fused kernel.
#pragma once

#include <memory>

#include <lockstep/optim/optimizers.h>

#include "optim/rule_optimizer.h"

namespace lockstep {

std::shared_ptr<const UpdateRule> rmsprop_rule(const RmspropOptions& options);
std::shared_ptr<const UpdateRule> adagrad_rule(const AdagradOptions& options);
std::shared_ptr<const UpdateRule> adadelta_rule(const AdadeltaOptions& options);
std::shared_ptr<const UpdateRule> adamax_rule(const AdamaxOptions& options);
std::shared_ptr<const UpdateRule> nadam_rule(const NadamOptions& options);
std::shared_ptr<const UpdateRule> radam_rule(const RadamOptions& options);
std::shared_ptr<const UpdateRule> asgd_rule(const AsgdOptions& options);
std::shared_ptr<const UpdateRule> rprop_rule(const RpropOptions& options);
std::shared_ptr<const UpdateRule> lion_rule(const LionOptions& options);
std::shared_ptr<const UpdateRule> adafactor_rule(const AdafactorOptions& options);
std::shared_ptr<const UpdateRule> adamw_rule(const AdamWOptions& options);  ///< beside a rule that needs another one
std::shared_ptr<const UpdateRule> muon_rule(const MuonOptions& options);    ///< of real matrices
std::shared_ptr<const UpdateRule> prodigy_rule(const ProdigyOptions& options);
std::shared_ptr<const UpdateRule> schedule_free_adamw_rule(const ScheduleFreeAdamWOptions& options);

}  // namespace lockstep
