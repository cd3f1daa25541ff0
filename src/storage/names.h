// Names inside a checkpoint directory, docs/checkpoints.md "Names". Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

inline constexpr std::string_view kManifestName = "MANIFEST.json";

enum class DirectoryKind {
  committed,  ///< step-0000000500
  aside,      ///< step-0000000500.old.<nonce>: moved away while its replacement is renamed in
  temporary,  ///< step-0000000500.tmp.<nonce>: being written, or being deleted
};

struct DirectoryName {
  std::int64_t step = 0;
  DirectoryKind kind = DirectoryKind::committed;
};

std::string step_name(std::int64_t step);
std::string aside_name(std::int64_t step);      ///< a new nonce in every call
std::string temporary_name(std::int64_t step);  ///< a new nonce in every call

std::string abandoned_name(std::int64_t step);  ///< a new nonce in every call; left alone by everybody

/// nullopt: not one of ours, to be left alone.
std::optional<DirectoryName> parse_directory_name(std::string_view name);

/// What a link to a step may be called: [A-Za-z0-9._=,+-]{1,128}, no dot in front, nothing parse_directory_name()
/// takes.
bool is_link_name(std::string_view name);

/// The name of a link while it is made: <link>.tmp.<nonce>.
bool is_temporary_link_name(std::string_view name);

/// [A-Za-z0-9._-]{1,128}, without "." and "..".
bool is_file_name(std::string_view name) noexcept;

}  // namespace lockstep
