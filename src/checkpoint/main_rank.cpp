#include "checkpoint/main_rank.h"

#include <exception>

#include <lockstep/base/error.h>

#include "base/about_another_rank.h"
#include "base/json.h"
#include "base/text.h"

namespace lockstep {
namespace {

// The first byte of a message distinguishes a result from a failure.
constexpr char kResult = '=';
constexpr char kFailure = '!';

std::string to_message(const std::exception& error) {
  Json json;
  if (const auto* ours = dynamic_cast<const Error*>(&error)) {
    json["kind"] = dynamic_cast<const IoError*>(ours) != nullptr           ? "io"
                   : dynamic_cast<const CheckpointError*>(ours) != nullptr ? "checkpoint"
                                                                           : "error";
    json["hint"] = ours->hint();
  } else {
    json["kind"] = "error";
    json["hint"] = "";
  }
  json["what"] = std::string(without_frames(error.what()));
  json["code"] = static_cast<int>(exit_code_of(error));
  return kFailure + dump_json(json);
}

[[noreturn]] void throw_failure(std::string_view text) {
  const Json json = parse_json(text);
  const std::string kind = json.at("kind");
  const std::string what = json.at("what");
  const std::string hint = json.at("hint");
  const auto code = static_cast<ExitCode>(json.at("code").get<int>());
  if (kind == "io") {
    throw OfAnotherRank(IoError(what, hint));
  }
  if (kind == "checkpoint") {
    throw OfAnotherRank(CheckpointError(what, hint, code));
  }
  throw OfAnotherRank(Error(what, hint, code));
}

}  // namespace

std::vector<std::string> run_on(World& world, std::string_view what, bool mine,
                                const std::function<std::string()>& work) {
  std::string message{kResult};
  std::exception_ptr error;
  world.main_first(what, [&] {
    if (!mine) {
      return;
    }
    try {
      message += work();
    } catch (const std::exception& caught) {
      error = std::current_exception();
      message = to_message(caught);
    }
  });
  std::vector<std::string> results = world.gather(message);
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    if (results[rank].front() == kFailure) {
      if (error && rank == static_cast<std::size_t>(world.rank())) {
        std::rethrow_exception(error);
      }
      throw_failure(std::string_view(results[rank]).substr(1));
    }
    results[rank].erase(0, 1);
  }
  return results;
}

std::string run_on_main(World& world, std::string_view what, const std::function<std::string()>& work) {
  return run_on(world, what, world.is_main(), work).front();
}

}  // namespace lockstep
