// An exception of one rank on its way to the others.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace lockstep {

std::string encode_error(const std::exception& error);
/// Of the exception that is being handled, of any type.
std::string encode_current_error();

/// Throws what was encoded: the same type, message, hint and exit code where it is an Error of this library.
/// For any other exception it throws a CommError that says that `what` failed on that rank. The error is about another
/// rank: see base/about_another_rank.h.
[[noreturn]] void throw_remote_error(std::string_view encoded, std::string_view what, int rank);

}  // namespace lockstep
