// An allocation that failed, on a GPU or on the host.
#pragma once

#include <exception>
#include <string>

#include <lockstep/plan/plan.h>

namespace lockstep {

/// "\n  hint: ..." for an exception that says that memory ran out, with what this plan can do and who else is on the
/// GPU, or that a thread cannot be made; "" for any other. Never throws.
std::string out_of_memory_hint(const std::exception& error, const Plan& plan, int local_rank) noexcept;

}  // namespace lockstep
