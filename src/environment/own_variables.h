// Environment variables by which our launcher tells its ranks what it has decided. Torch-free.
#pragma once

#include <array>

namespace lockstep::own_variables {

/// Marks every process of a launch, so that the supervisor can find and end it: unlike the parent or the group,
/// descendants always inherit it. A launch inside a launch adds its own mark.
inline constexpr const char* kLaunchMark = "LOCKSTEP_LAUNCH_ID";

/// Marks a process that may finish its work after its rank has failed: the supervisor waits deadlines::kMayFinish for
/// it.
inline constexpr const char* kMayFinish = "LOCKSTEP_MAY_FINISH";

inline constexpr const char* kConfigText = "LOCKSTEP_CONFIG_TEXT";  // of the --config file, which may change
inline constexpr const char* kControlFd = "LOCKSTEP_CONTROL_FD";
inline constexpr const char* kDevices = "LOCKSTEP_DEVICES";
inline constexpr const char* kDirectory = "LOCKSTEP_DIRECTORY";
inline constexpr const char* kProgressFd = "LOCKSTEP_PROGRESS_FD";
inline constexpr const char* kRestart = "LOCKSTEP_RESTART";
/// What a rank starts has it without kControlFd, and so knows whose RANK it has.
inline constexpr const char* kRunId = "LOCKSTEP_RUN_ID";
inline constexpr const char* kStoreFd = "LOCKSTEP_STORE_FD";
inline constexpr const char* kTerminalWidth = "LOCKSTEP_TERMINAL_WIDTH";

/// All but the marks and the run: children of user code must not take themselves for the rank.
inline constexpr std::array kOnlyForTheRank{kConfigText, kControlFd, kDevices, kDirectory,
                                            kProgressFd, kRestart,   kStoreFd, kTerminalWidth};

}  // namespace lockstep::own_variables
