// Note [Who is missing]: before a control-plane collective, each rank writes its number and name to the store. If the
// collective fails, the ranks with an older note than ours are missing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace lockstep {

/// `number`: of the collective, from 1.
void write_operation_note(c10d::Store& store, int rank, std::int64_t number, std::string_view what);

/// The ranks whose note is older than `number`, as text: "1, 3 (last seen at 'any')"; "" if there is none. Says so if
/// the store does not answer soon.
std::string missing_ranks(const c10::intrusive_ptr<c10d::Store>& store, int size, std::int64_t number);

}  // namespace lockstep
