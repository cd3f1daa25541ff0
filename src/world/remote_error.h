// An exception of one rank on its way to the others.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace lockstep {

std::string encode_error(const std::exception& error);

/// Throws what encode_error was given: the same type, message, hint and exit code where it is an Error of this library.
/// Of any other exception a CommError says that `what` failed on that rank. The other rank's word counts: see
/// base/about_another_rank.h.
[[noreturn]] void throw_remote_error(std::string_view encoded, std::string_view what, int rank);

}  // namespace lockstep
