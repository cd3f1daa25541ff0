#include "world/remote_error.h"

#include <algorithm>

#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/about_another_rank.h"
#include "base/exception_text.h"
#include "base/json.h"

namespace lockstep {
namespace {

template <class AnError>
bool is_a(const Error& error) {
  return dynamic_cast<const AnError*>(&error) != nullptr;
}

std::string kind_of(const Error& error) {
  return is_a<IoError>(error)           ? "io"
         : is_a<CheckpointError>(error) ? "checkpoint"
         : is_a<DataError>(error)       ? "data"
         : is_a<CommError>(error)       ? "comm"
                                        : "error";
}

Json foreign(const std::string& what, ExitCode code) {
  return {{"kind", "foreign"}, {"what", what}, {"hint", ""}, {"code", static_cast<int>(code)}, {"number", 0}};
}

}  // namespace

std::string encode_error(const std::exception& error) {
  Json json = foreign(exception_text(error), exit_code_of(error));
  if (const auto* ours = dynamic_cast<const Error*>(&error)) {
    json["kind"] = kind_of(*ours);
    json["hint"] = ours->hint();
  }
  if (const auto* io = dynamic_cast<const IoError*>(&error)) {
    json["number"] = io->number();
  }
  return dump_json(json);
}

std::string encode_current_error() {
  try {
    throw;
  } catch (const std::exception& error) {
    return encode_error(error);
  } catch (...) {
    return dump_json(foreign(current_exception_text(), ExitCode::failed));
  }
}

void throw_remote_error(std::string_view encoded, std::string_view what, int rank) {
  const Json json = parse_json(encoded);
  const std::string kind = json.at("kind");
  std::string text = json.at("what");
  const std::string hint = json.at("hint");
  const auto code = static_cast<ExitCode>(json.at("code").get<int>());
  if (kind == "io") {
    throw OfAnotherRank(IoError(text, hint, json.at("number").get<int>()));
  }
  if (kind == "checkpoint") {
    throw OfAnotherRank(CheckpointError(text, hint, code));
  }
  if (kind == "data") {
    throw OfAnotherRank(DataError(text, hint, code));
  }
  if (kind == "comm") {
    throw OfAnotherRank(CommError(text, hint, code));
  }
  if (kind == "error") {
    throw OfAnotherRank(Error(text, hint, code));
  }
  std::replace(text.begin(), text.end(), '\n', ' ');
  throw CommError(fmt::format("{} failed on rank {}: {}", what, rank, text), "see that rank's own message");
}

}  // namespace lockstep
