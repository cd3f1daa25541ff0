#include "base/exception_text.h"

#include <string_view>
#include <typeinfo>

#include <cxxabi.h>
#include <fmt/format.h>

#include <lockstep/base/error.h>

#include "base/text.h"

namespace lockstep {
namespace {

/// std::throw_with_nested throws a class of the standard library that derives from the given one.
std::string type_of(const std::exception& error) {
  constexpr std::string_view kNested = "std::_Nested_exception<";
  const std::string name = type_name(typeid(error));
  return name.starts_with(kNested) ? name.substr(kNested.size(), name.size() - kNested.size() - 1) : name;
}

}  // namespace

std::string cause_text(const std::exception& error) {
  const auto* nested = dynamic_cast<const std::nested_exception*>(&error);
  if (nested == nullptr || nested->nested_ptr() == nullptr) {
    return {};
  }
  try {
    nested->rethrow_nested();
  } catch (...) {
    return "caused by " + current_exception_text();
  }
}

std::string exception_text(const std::exception& error) {
  const std::string own = dynamic_cast<const Error*>(&error) != nullptr
                              ? error.what()
                              : fmt::format("{}: {}", type_of(error), without_frames(error.what()));
  const std::string cause = cause_text(error);
  return cause.empty() ? own : own + ": " + cause;
}

std::string current_exception_text() {
  try {
    throw;
  } catch (const std::exception& error) {
    return exception_text(error);
  } catch (const std::string& text) {
    return "std::string: " + text;
  } catch (const char* text) {
    return fmt::format("const char*: {}", text == nullptr ? "null" : text);
  } catch (...) {
    const std::type_info* type = abi::__cxa_current_exception_type();
    return fmt::format("unknown exception of type {}", type == nullptr ? "unknown" : type_name(*type));
  }
}

}  // namespace lockstep
