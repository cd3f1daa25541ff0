// The flags and words of a command line, of which no value is interpreted yet. Torch-free.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <lockstep/base/error.h>

namespace lockstep {

/// A name that the command line accepts.
struct Option {
  std::string name{};
  bool is_bool = false;
};

/// A value as given on the command line.
struct Assignment {
  std::string name{};
  std::string text{};   ///< "true" of a bare --flag, "false" of --no-flag
  std::string label{};  ///< "--optim.lr 0.1"
};

struct ParsedArguments {
  bool help = false;
  bool help_all = false;
  std::vector<Assignment> assignments{};
  std::vector<std::string> words{};
  std::map<std::size_t, std::string> switches_before{};  ///< by the number of the word that may be meant as their value
  std::vector<Problem> problems{};
};

/// `takes_words`: there are positional arguments, so that a number after a switch may be one of them.
ParsedArguments parse_arguments(std::span<const std::string> args, std::vector<Option> options, bool takes_words);

}  // namespace lockstep
