// Names of functions for stack traces in signal handlers. Reads /proc/self/maps and the symbol tables of the files
// directly, because dladdr takes the loader's lock and the demangler allocates. Torch-free.
#pragma once

#include <cstdint>
#include <string_view>

#include "rank/line_buffer.h"

namespace lockstep {

/// "lockstep::Trainer::fit+0x5c (liblockstep.so+0x3f2a1)"; without a symbol "?? (train+0x1c40)". The second number is
/// an address for `addr2line -e FILE`.
void add_symbol(LineBuffer& line, std::uintptr_t address) noexcept;

/// "_ZN8lockstep7Trainer3fitERNS_4TaskE" -> "lockstep::Trainer::fit": the qualified name, up to the first template
/// argument. A name that cannot be parsed is returned unchanged.
void add_readable_name(LineBuffer& line, std::string_view mangled) noexcept;

}  // namespace lockstep
