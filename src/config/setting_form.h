// How a setting is written: as a flag, in a file, as a variable. Torch-free.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

inline constexpr std::string_view kSettingVariables = "LOCKSTEP_CFG_";  ///< prefix of their names

enum class SettingForm { flag, toml, json, variable };

/// A hint for a setting of this form. Each flag of a setting in it, with its value, is written in the form:
/// `--data.workers 4` becomes `[data] workers = 4`, `"data": {"workers": 4}` or `LOCKSTEP_CFG_DATA_WORKERS=4`. A switch
/// alone becomes true. A word behind a flag that takes any text is its value: a hint must not continue with prose
/// there.
std::string hint_in_form(SettingForm form, std::string_view hint);

}  // namespace lockstep
