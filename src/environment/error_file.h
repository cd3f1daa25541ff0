// The error file that torchrun reads. Torch-free.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

/// Writes the error of this process to TORCHELASTIC_ERROR_FILE (mode 0600; "": nowhere) in torchrun's format, so that
/// torchrun's summary shows it. Never throws: the error is on the screen in any case.
void write_error_file(const std::string& path, std::string_view text) noexcept;

}  // namespace lockstep
