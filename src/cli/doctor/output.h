// Prints facts and findings, as text and as JSON. Torch-free.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/json.h"
#include "cli/doctor/facts.h"
#include "cli/doctor/findings.h"

namespace lockstep {

/// A line with level and subject, and the fix below it.
std::string finding_text(const Finding& found, std::size_t columns);
Json finding_json(const Finding& found);

/// One line per finding, its fix below it, and the verdict.
std::string doctor_text(const Facts& facts, const std::vector<Finding>& findings, int width);
Json doctor_json(const Facts& facts, const std::vector<Finding>& findings);

/// For a public issue: no names of hosts, users, programs and directories, no addresses, no UUIDs.
std::string system_text(const Facts& facts, int width);
Json system_json(const Facts& facts);

bool has_failure(const std::vector<Finding>& findings);

}  // namespace lockstep
