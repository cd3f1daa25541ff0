// Small text helpers. Torch-free, no locale.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

namespace lockstep {

std::string_view trim(std::string_view text) noexcept;
std::vector<std::string> split(std::string_view text, char separator);
std::string join(std::span<const std::string> parts, std::string_view separator);
std::string to_lower(std::string_view text);
/// Strict: the whole text, no sign tricks, no blanks; nullopt otherwise.
std::optional<std::int64_t> parse_int(std::string_view text) noexcept;
std::optional<double> parse_double(std::string_view text) noexcept;
/// "8GiB", "512 MiB", "1000" -> bytes.
std::optional<std::int64_t> parse_bytes(std::string_view text) noexcept;
std::string human_bytes(std::int64_t bytes);  ///< "4.7 GiB"
std::string human_count(std::int64_t count);  ///< "115.2 K"
std::string human_duration(double seconds);   ///< "1:02:03", "00:12"
/// The candidate nearest to `word` (Damerau-Levenshtein, `-` equals `_`), if near enough to be a typing error.
std::optional<std::string> closest(std::string_view word, std::span<const std::string> candidates);

/// Lines of at most `width` columns, broken between words. The first begins in column `indent`, where the caller is;
/// the others begin with as many blanks. A word that does not fit is kept whole.
std::string wrap(std::string_view text, std::size_t indent, std::size_t width);
/// "0-3,7" for {0,1,2,3,7}.
std::string format_ranges(std::span<const int> sorted);
std::string type_name(const std::type_info& type);  ///< "std::runtime_error"
/// LibTorch's exceptions carry C++ stack frames behind their cause: the cause, and the frames ("" without).
std::string_view without_frames(std::string_view what) noexcept;
std::string_view frames_of(std::string_view what) noexcept;
/// Removes escape sequences and control characters except tab; bytes that are no UTF-8 become U+FFFD.
std::string printable(std::string_view text);

}  // namespace lockstep
