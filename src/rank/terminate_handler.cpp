#include "rank/terminate_handler.h"

#include <atomic>
#include <cstdlib>
#include <utility>

#include <cxxabi.h>
#include <fmt/format.h>
#include <signal.h>

#include <lockstep/base/error.h>

#include "base/about_another_rank.h"
#include "base/assertion.h"
#include "base/exception_text.h"
#include "base/text.h"
#include "failure/deadlines.h"
#include "failure/end_process.h"

namespace lockstep {
namespace {

constexpr int kAborted = 128 + SIGABRT;
constexpr int kNotFinished = -1;

struct Installed {
  std::atomic<const ProgressRecord*> record{nullptr};
  std::atomic<const TerminateHandler::Report*> report{nullptr};
  std::atomic<std::terminate_handler> before{nullptr};
  std::atomic<int> finished{kNotFinished};  // exit code
};

// These handlers have no argument that could point to a listener, so their state must be static.
constinit Installed installed;

// Gloo throws in its own thread, where the exception cannot be caught: if it answers on a broken connection, or if more
// data arrives than the collective expects. After an error of a GPU, LibTorch throws again where tensors are freed, in
// destructors. These types are in no header that this file can use, so it compares names and texts.
bool says_gpu_failed(std::string_view type) { return type == "c10::AcceleratorError"; }
bool says_peer_lost(std::string_view type) { return type == "gloo::IoException"; }
bool says_mismatch(std::string_view type, std::string_view text) {
  return type == "gloo::EnforceNotMet" && text.find("collective mismatch") != std::string_view::npos;
}

bool is_of_gloo(std::string_view type) { return type.starts_with("gloo::"); }

Failure terminate_failure() {
  Failure failure = std::current_exception() ? current_failure()
                                             : Failure{.text = "error: no exception; a thread that was not joined?"};
  const std::type_info* thrown = abi::__cxa_current_exception_type();
  const std::string type = thrown == nullptr ? std::string() : type_name(*thrown);
  std::string meaning = "std::terminate after ";
  failure.code = kAborted;
  if (says_peer_lost(type)) {
    meaning = "the connection to another rank broke: ";
    failure.code = static_cast<int>(ExitCode::peer_lost);
    failure.is_consequence = true;
  } else if (says_gpu_failed(type)) {
    meaning = "the GPU reported: ";
    failure.code = static_cast<int>(ExitCode::failed);
  } else if (says_mismatch(type, failure.text)) {
    const ProgressRecord* record = installed.record;
    meaning = fmt::format("the ranks are in different collectives: too much data arrived{}: ",
                          record == nullptr ? std::string() : collective_of(view(*record)));
    failure.text += fmt::format("\n  hint: {}", kSameOrderHint);
    failure.code = static_cast<int>(ExitCode::disagree);
  }
  failure.text = with_words(std::move(failure.text), meaning);
  return failure;
}

/// If several threads fail, only the first one reports.
void announce(const Failure& failure) {
  if (const TerminateHandler::Report* report = installed.report.exchange(nullptr)) {
    (*report)(failure);
  }
}

void on_assertion(const char* text) noexcept {
  end_process_within(deadlines::kTerminate, static_cast<int>(ExitCode::internal));
  announce({.code = static_cast<int>(ExitCode::internal), .text = text});
}

void on_terminate() {
  const std::type_info* thrown = abi::__cxa_current_exception_type();
  if (const int code = installed.finished;
      code != kNotFinished && thrown != nullptr && is_of_gloo(type_name(*thrown))) {
    end_process(code);
  }
  const Failure failure = terminate_failure();
  end_process_within(deadlines::kTerminate, failure.code);
  announce(failure);
  if (failure.code != kAborted) {
    end_process(failure.code);
  }
  if (const std::terminate_handler before = installed.before) {
    before();
  }
  std::abort();
}

}  // namespace

Failure current_failure() {
  Failure failure{.code = static_cast<int>(ExitCode::failed)};
  try {
    throw;
  } catch (const std::exception& error) {
    failure.text = error_text(error);
    failure.code = static_cast<int>(exit_code_of(error));
    const bool lost_peer =
        dynamic_cast<const CommError*>(&error) != nullptr && failure.code == static_cast<int>(ExitCode::peer_lost);
    failure.is_consequence = lost_peer || dynamic_cast<const AboutAnotherRank*>(&error) != nullptr;
  } catch (...) {
    failure.text = "error: " + current_exception_text();
  }
  return failure;
}

TerminateHandler::TerminateHandler(const ProgressRecord& record, Report report)
    : report_(std::move(report)),
      terminate_before_(std::set_terminate(on_terminate)),
      assertion_before_(set_assertion_listener(on_assertion)) {
  installed.finished = kNotFinished;
  installed.record = &record;
  installed.before = terminate_before_;
  installed.report = &report_;
}

TerminateHandler::~TerminateHandler() {
  installed.report = nullptr;
  installed.record = nullptr;
  set_assertion_listener(assertion_before_);
  std::set_terminate(terminate_before_);
}

void TerminateHandler::finished(int code) const noexcept { installed.finished = code; }

}  // namespace lockstep
