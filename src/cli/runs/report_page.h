// The page of `lockstep report`: runs -> one HTML file. Pure. Torch-free.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cli/runs/run_data.h"

namespace lockstep {

/// src/cli/runs/report_page.html, which CMake turns into a string. Its places {{name}} are filled in by report_page().
extern const std::string_view kReportTemplate;

/// `now`: seconds since 1970. Texts of the runs are escaped: none of them can become a tag or a script.
std::string report_page(std::span<const RunData> runs, double now);

/// The data that the script of the page draws.
Json report_data(std::span<const RunData> runs);

}  // namespace lockstep
