// Hints for a failed allocation, on a GPU or on the host.
#pragma once

#include <exception>
#include <string>

#include <lockstep/plan/plan.h>

namespace lockstep {

/// True for an exception that reports that memory ran out, on a GPU or on the host.
bool is_out_of_memory(const std::exception& error) noexcept;

/// "\n hint: ..." for an exception that reports that memory ran out or that a thread could not be created; "" for any
/// other. The hint names changes of the plan and other processes on the GPU. Never throws.
std::string out_of_memory_hint(const std::exception& error, const Plan& plan, int local_rank) noexcept;

}  // namespace lockstep
