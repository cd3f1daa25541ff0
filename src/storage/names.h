// Names inside a checkpoint directory, docs/checkpoint_format.md "Names". Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

inline constexpr std::string_view kManifestName = "MANIFEST.json";
inline constexpr std::string_view kStateName = "state.json";
inline constexpr std::int64_t kMaxStateBytes = 64 << 20;  // with the state of a program's data source

enum class DirectoryKind {
  committed,  ///< step-0000000500
  aside,      ///< step-0000000500.old.<nonce>: moved away while its replacement is renamed
  temporary,  ///< step-0000000500.tmp.<nonce>: being written or deleted
};

// Keys of state.json that one part writes and another one reads.
inline constexpr const char* kWorldSizeKey = "world_size";
inline constexpr const char* kThreadsKey = "threads";  ///< per rank
inline constexpr const char* kSamplesKey = "samples";
inline constexpr const char* kTotalStepsKey = "total_steps";
inline constexpr const char* kPositionEpoch = "position.epoch";  ///< missing if the checkpoint has only weights
inline constexpr std::string_view kProgramKeys = "program.";     ///< and the name of one of the program's own flags
std::string metric_key(std::string_view metric);                 ///< of the value of a metric

struct DirectoryName {
  std::int64_t step = 0;
  DirectoryKind kind = DirectoryKind::committed;
};

std::string step_name(std::int64_t step);
std::string aside_name(std::int64_t step);      ///< a new nonce in every call
std::string temporary_name(std::int64_t step);  ///< a new nonce in every call

std::string abandoned_name(std::int64_t step);  ///< a new nonce in every call; read only if a user names it
/// The step; nullopt: not the name of an abandoned checkpoint.
std::optional<std::int64_t> parse_abandoned_name(std::string_view name);

/// nullopt: not a name of lockstep; leave it alone.
std::optional<DirectoryName> parse_directory_name(std::string_view name);

/// Valid names of a link to a step: [A-Za-z0-9._=,+-]{1,128}, without a leading dot, and not a name that
/// parse_directory_name() accepts.
bool is_link_name(std::string_view name);

/// The temporary name of a new link: <link>.tmp.<nonce>.
bool is_temporary_link_name(std::string_view name);

/// [A-Za-z0-9._-]{1,128}, except "." and "..".
bool is_file_name(std::string_view name) noexcept;

}  // namespace lockstep
