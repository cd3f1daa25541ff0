// The words with which this process was started. Torch-free.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// The words of main, before the program changed them: a rank's main makes the same changes again. `given` if they
/// cannot be read.
std::vector<std::string> own_words(const std::vector<std::string>& given);

/// The words of /proc/self/cmdline. `given`, whose first word is the program, if none of the words names the program or
/// its `executable`: then a title was written over them.
std::vector<std::string> words_of(std::string_view cmdline, std::string_view executable,
                                  const std::vector<std::string>& given);

}  // namespace lockstep
