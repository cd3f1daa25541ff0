#include "checkpoint/main_rank.h"

#include <exception>

#include <c10/util/Exception.h>

#include <lockstep/base/error.h>

#include "base/json.h"

namespace lockstep {
namespace {

// The first byte of a message tells a result from a failure.
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
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  json["what"] = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
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
    throw IoError(what, hint);
  }
  if (kind == "checkpoint") {
    throw CheckpointError(what, hint, code);
  }
  throw Error(what, hint, code);
}

}  // namespace

std::string run_on_main(World& world, std::string_view what, const std::function<std::string()>& work) {
  std::string message;
  std::exception_ptr mine;
  world.main_first(what, [&] {
    if (!world.is_main()) {
      return;
    }
    try {
      message = kResult + work();
    } catch (const std::exception& error) {
      mine = std::current_exception();
      message = to_message(error);
    }
  });
  message = world.broadcast_bytes(message);
  if (mine) {
    std::rethrow_exception(mine);
  }
  if (message.front() == kFailure) {
    throw_failure(std::string_view(message).substr(1));
  }
  return message.substr(1);
}

}  // namespace lockstep
