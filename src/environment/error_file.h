// torchrun's report of what failed. Torch-free.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

/// Writes the error of this process where TORCHELASTIC_ERROR_FILE says (0600; "": nowhere), in torchrun's form, so that
/// its summary shows the text. Never throws: the error itself is on the screen.
void write_error_file(const std::string& path, std::string_view text) noexcept;

}  // namespace lockstep
