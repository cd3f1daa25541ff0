#include <algorithm>
#include <iterator>
#include <memory>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/exception_text.h"
#include "base/text.h"

namespace lockstep {
namespace {

std::string summary(const std::vector<Problem>& problems) {
  if (problems.size() == 1) {
    return problems.front().what;
  }
  std::string text = fmt::format("{} problems in the configuration", problems.size());
  for (const Problem& problem : problems) {
    text += "; " + problem.what;
  }
  return text;
}

std::string only_hint(const std::vector<Problem>& problems) {
  return problems.size() == 1 ? problems.front().hint : std::string();
}

/// Hints for common LibTorch errors.
struct KnownCause {
  std::string_view part{};  ///< of the error text
  const char* hint;
};
constexpr KnownCause kKnownCauses[] = {
    {"is out of bounds", "labels and indices go from 0 to the number of classes or rows less one"},
    {"Expected more than 1 value per channel", "give every rank more than one sample in a micro-batch, or use eval()"},
    {"shapes cannot be multiplied", "compare the shape of a sample with what the first layer takes"},
    {"does not require grad",
     "the loss depends on no trained parameter: it was detached, calculated without gradients, "
     "or from frozen parameters only"},
    {"expected scalar type Long", "labels and indices are int64: convert them with .to(torch::kLong)"},
    {"same dtype",
     "convert the samples or the module, for example with .to(torch::kFloat); a network that is no part of module() is "
     "not converted to --precision"},
    {"expected scalar type", "convert the samples or the module, for example with .to(torch::kFloat)"},
};

std::string hint_of(std::string_view what) {
  if (frames_of(what).empty()) {
    return {};
  }
  std::string hint;
  const auto known = std::find_if(std::begin(kKnownCauses), std::end(kKnownCauses), [&](const KnownCause& cause) {
    return without_frames(what).find(cause.part) != std::string_view::npos;
  });
  if (known != std::end(kKnownCauses)) {
    hint = fmt::format("{}; ", known->hint);
  }
  return hint + "TORCH_SHOW_CPP_STACKTRACES=1 shows LibTorch's stack";
}

/// printable() for each line: a path or the text of another library may contain control sequences of a terminal.
std::string printable_lines(const std::string& text) {
  std::vector<std::string> lines = split(text, '\n');
  std::ranges::transform(lines, lines.begin(), printable);
  return join(lines, "\n");
}

void append_problem(std::string& text, const std::string& what, const std::string& hint) {
  text += "error: " + printable_lines(what);
  if (!hint.empty()) {
    text += "\n  hint: " + printable_lines(hint);
  }
}

}  // namespace

ConfigError::ConfigError(std::vector<Problem> problems)
    : Error(summary(problems), only_hint(problems), ExitCode::usage),
      problems_(std::make_shared<const std::vector<Problem>>(std::move(problems))) {}

ConfigError::ConfigError(const std::string& what, std::string hint)
    : ConfigError(std::vector<Problem>{{what, std::move(hint)}}) {}

std::string error_text(const std::exception& error) {
  std::string text;
  if (const auto* config = dynamic_cast<const ConfigError*>(&error);
      config != nullptr && config->problems().size() > 1) {
    for (const Problem& problem : config->problems()) {
      if (!text.empty()) {
        text += '\n';
      }
      append_problem(text, problem.what, problem.hint);
    }
    if (const std::string cause = cause_text(error); !cause.empty()) {
      text += '\n' + printable_lines(cause);
    }
  } else if (const auto* ours = dynamic_cast<const Error*>(&error)) {
    append_problem(text, exception_text(error), ours->hint());
  } else {
    append_problem(text, exception_text(error), hint_of(error.what()));
  }
  return text;
}

ExitCode exit_code_of(const std::exception& error) noexcept {
  const auto* ours = dynamic_cast<const Error*>(&error);
  return ours != nullptr ? ours->exit_code() : ExitCode::failed;
}

}  // namespace lockstep
