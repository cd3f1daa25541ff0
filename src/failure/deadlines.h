// Every time limit of failing, of waiting for others that fail, and of ending. Torch-free.
#pragma once

#include <chrono>

namespace lockstep::deadlines {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Note [Timeline of a failure]: a rank fails at 0 s. Times are of the default configuration, on a machine that is not
// overloaded.
//
//     0 s    Between two steps, the rank has waited for the others to fail too (kCommonFailure).
//            It tells its supervisor (when that reads) or the store (kAnnounce at most).
//   0.2 s    Every other rank has looked at the store (kLook), or was told by its supervisor to end.
//   0.5 s    A supervisor that still waits for ranks says so (kNotice).
//   0.9 s    Rank 0, which may serve the store, has waited until the others have read why (kLinger).
//     1 s    A consequence that has heard of no cause counts as one (kWaitForCause).
//   1.2 s    A rank that heard of the cause has had its time to end by itself (kHeadStart): its process is ended.
//     2 s    Stacks are written (kStacks), where they were asked for.
//     5 s    The supervisor kills what is left (dist.grace_s) ...
//    10 s    ... and waits no longer for what does not end even then (kDying).

// A rank and those that must learn of its failure.
inline constexpr milliseconds kLook{200};              ///< between two looks at the store, and at the launcher
inline constexpr milliseconds kCommonFailure{500};     ///< ranks that failed at the same moment, for each other
inline constexpr milliseconds kAskAgain{100};          ///< what the store has not got, or could not answer
inline constexpr milliseconds kWaitForCause{1000};     ///< a consequence waits so long for its cause
inline constexpr milliseconds kFirstReport{500};       ///< somebody began to report first: wait so long for the report
inline constexpr milliseconds kAnnounce{5000};         ///< an announcement that the store does not take is given up
inline constexpr milliseconds kAnnounceOrder{1000};    ///< the same for a rank that its supervisor has told to end
inline constexpr milliseconds kFirstHeartbeat{30000};  ///< of a node, besides dist.heartbeat_timeout_s
// A line waits so long for room in the channel to the supervisor; the next ones do not wait until there was room.
inline constexpr milliseconds kSend{1000};

// What may read before it loses the store.
inline constexpr milliseconds kLinger{900};          ///< rank 0, until the others have read what failed
inline constexpr milliseconds kLingerRefused{5000};  ///< rank 0, until the others have read why they may not start
inline constexpr milliseconds kLingerPause{10};      ///< between two questions whether they have

// A process on its way out.
inline constexpr milliseconds kHeadStart{1000};  ///< for the main thread; a launcher sees the cause first
inline constexpr milliseconds kStacks{2000};     ///< for the threads to write their stacks
inline constexpr seconds kGoodbye{1};            ///< for the last lines: standard error may be stuck
inline constexpr seconds kTerminate{5};          ///< the same in std::terminate and after a failed assertion
inline constexpr seconds kCrash{30};             ///< the same after a crash, with the stack
inline constexpr seconds kMissingRanks{2};       ///< to find out which ranks are missing; the store may be lost, too

// A supervisor and its ranks.
inline constexpr milliseconds kNotice{500};  ///< most ranks have ended by themselves by then
inline constexpr milliseconds kDying{5000};  ///< after SIGKILL; a process in a broken driver call may never end
inline constexpr seconds kMayFinish{5};      ///< for the program of report.command, after the ranks have ended
inline constexpr seconds kDescendants{5};    ///< to find and kill what the ranks left behind
inline constexpr milliseconds kSecondInterrupt{1000};  ///< a second Ctrl-C after so long ends everything at once
inline constexpr seconds kLastLines{5};                ///< after a stop request and all ranks: to read what they wrote
inline constexpr seconds kAnswer{5};            ///< after dist.init_timeout_s: rank 0 tells the others who is missing
inline constexpr seconds kRanksSpeakFirst{10};  ///< after dist.init_timeout_s: the ranks themselves know who is missing

static_assert(kLook + kAskAgain < kLinger, "the others look before rank 0 ends");
static_assert(kFirstReport + kAskAgain + kLook < kHeadStart, "a report that another rank has to write comes in time");
static_assert(kAnswer < kRanksSpeakFirst, "the ranks know who is missing before their supervisor ends them");
static_assert(kLinger < kHeadStart, "rank 0 ends before those that end because of it");
static_assert(kLook + kAskAgain < kWaitForCause, "a consequence looks before it counts as a cause");

}  // namespace lockstep::deadlines
