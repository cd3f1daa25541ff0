// Small text helpers. Torch-free, no locale.
#pragma once

#include <chrono>
#include <cstddef>
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
std::string join_first(std::span<const std::string> parts, std::size_t count);  ///< "a, b, ..."
std::string join_or(std::span<const std::string> words);                        ///< "a, b or c"
std::string to_lower(std::string_view text);
/// Strict: the whole text without blanks or a plus sign; nullopt otherwise.
std::optional<std::int64_t> parse_int(std::string_view text) noexcept;
std::optional<double> parse_double(std::string_view text) noexcept;
/// "90", "90s", "30min" or "30m", "1.5h", "1d", "1:30:00", "2:12:00:00" (days first) -> seconds.
std::optional<double> parse_seconds(std::string_view text);
/// "8GiB", "512 MiB", "1000" -> bytes.
std::optional<std::int64_t> parse_bytes(std::string_view text) noexcept;
std::string human_bytes(std::int64_t bytes);                 ///< "4.7 GiB"
std::string with_commas(double value);                       ///< "12,346", rounded; not negative
std::string five_digits(double value);                       ///< "2.1235", "1.6e-05", "NaN", "Infinity"
std::string short_number(double value);                      ///< "0.333333", "1234567", "1.5e-05", "NaN", "Infinity"
std::string human_duration(double seconds);                  ///< "1:02:03", "00:12"
std::string in_seconds(std::chrono::duration<double> time);  ///< "1.5 s"
/// "1 rank", "2 ranks", "2 micro-batches".
std::string counted(std::int64_t count, std::string_view noun);
/// 64 random bits as 16 hexadecimal digits.
std::string random_id();
bool is_random_id(std::string_view text) noexcept;  ///< it has the form of random_id()
/// 22809 -> "2.28.9", as NCCL and cuDNN number their versions. Before NCCL 2.9 and cuDNN 9: 8902 -> "8.9.2".
std::string library_version(std::int64_t number);
std::string utc_time();  ///< now: "2026-11-21T10:00:00.123Z"
std::string_view first_line(std::string_view text) noexcept;
/// Calls `use` with every complete line; true if an incomplete one follows.
template <class Use>
bool for_each_line(std::string_view text, const Use& use) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) {
      return true;
    }
    use(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  return false;
}

/// The candidate for which `word` may be a typing error or an abbreviation. It needs the fewest edits (a letter that is
/// added, left out or replaced, or two that are swapped; `-` equals `_`): at most `most_edits`, and at most a third of
/// the letters of `word`. nullopt: there is none.
std::optional<std::string> closest(std::string_view word, std::span<const std::string> candidates,
                                   std::size_t most_edits = std::string_view::npos);
/// "did you mean X?" with `prefix` before X, the closest candidate; `otherwise` if there is none.
std::string did_you_mean(std::string_view word, std::span<const std::string> candidates, std::string_view prefix,
                         std::string_view otherwise);

/// Lines of at most `width` columns, broken between words. The caller has already written `indent` columns of the first
/// line; the other lines are indented as far. A longer word is not broken.
std::string wrap(std::string_view text, std::size_t indent, std::size_t width);
/// "0-3,7" for {0,1,2,3,7}.
std::string format_ranges(std::span<const int> sorted);
std::string type_name(const std::type_info& type);  ///< "std::runtime_error"
/// LibTorch's exceptions append C++ stack frames to the message: the message, and the frames ("": none).
std::string_view without_frames(std::string_view what) noexcept;
std::string_view frames_of(std::string_view what) noexcept;
bool is_utf8(std::string_view text) noexcept;
/// Removes escape sequences and control characters except tab; bytes that are not UTF-8 become U+FFFD.
std::string printable(std::string_view text);

}  // namespace lockstep
