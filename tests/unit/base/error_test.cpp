#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <lockstep/base/error.h>
#include <lockstep/base/log.h>

#include "base/assertion.h"
#include "base/exception_text.h"

namespace lockstep {
namespace {

TEST(ErrorText, ShowsWhatAndHint) {
  EXPECT_EQ(error_text(DataError("sample 3: found 2 values, expected 4", "check the data set")),
            "error: sample 3: found 2 values, expected 4\n  hint: check the data set");
  EXPECT_EQ(error_text(IoError("cannot write /x: No space left on device")),
            "error: cannot write /x: No space left on device");
  EXPECT_EQ(error_text(std::runtime_error("boom")), "error: std::runtime_error: boom");
  const std::string frames =
      "\nException raised from mm at a.cpp:7 (most recent call first):\nframe #0: f\nframe #1: g\n";
  EXPECT_EQ(error_text(std::runtime_error("no such operator\nand a second line" + frames)),
            "error: std::runtime_error: no such operator\nand a second line\n"
            "  hint: TORCH_SHOW_CPP_STACKTRACES=1 shows LibTorch's stack");
  EXPECT_EQ(error_text(std::runtime_error("Target 7 is out of bounds." + frames)),
            "error: std::runtime_error: Target 7 is out of bounds.\n"
            "  hint: labels and indices go from 0 to the number of classes or rows less one; "
            "TORCH_SHOW_CPP_STACKTRACES=1 shows LibTorch's stack");
  EXPECT_EQ(error_text(std::runtime_error("expected scalar type Long but found Int" + frames)),
            "error: std::runtime_error: expected scalar type Long but found Int\n"
            "  hint: labels and indices are int64: convert them with .to(torch::kLong); "
            "TORCH_SHOW_CPP_STACKTRACES=1 shows LibTorch's stack");
}

TEST(ErrorText, NamesTheCausesOfANestedException) {
  const auto text_of = [](auto outer) {
    try {
      try {
        try {
          throw 42;
        } catch (...) {
          std::throw_with_nested(DataError("cannot read x.bin"));
        }
      } catch (...) {
        std::throw_with_nested(outer);
      }
    } catch (const std::exception& error) {
      return error_text(error);
    }
    return std::string();
  };
  EXPECT_EQ(
      text_of(std::runtime_error("no batch")),
      "error: std::runtime_error: no batch: caused by cannot read x.bin: caused by unknown exception of type int");
  EXPECT_EQ(text_of(IoError("no batch", "look at the disk")),
            "error: no batch: caused by cannot read x.bin: caused by unknown exception of type int\n"
            "  hint: look at the disk");
  EXPECT_THAT(text_of(ConfigError("no batch")), testing::HasSubstr("error: no batch: caused by cannot read x.bin"));
  EXPECT_EQ(text_of(ConfigError(std::vector<Problem>{{"--lr x", "use 0.1"}, {"--seed -1", ""}})),
            "error: --lr x\n  hint: use 0.1\nerror: --seed -1\n"
            "caused by cannot read x.bin: caused by unknown exception of type int");
}

TEST(ErrorText, ShowsATextThatWasThrown) {
  const auto text_of = [](const auto& thrown) {
    try {
      throw thrown;
    } catch (...) {
      return current_exception_text();
    }
  };
  EXPECT_EQ(text_of(std::string("no image")), "std::string: no image");
  EXPECT_EQ(text_of(static_cast<const char*>("no image")), "const char*: no image");
  EXPECT_EQ(text_of(static_cast<const char*>(nullptr)), "const char*: null");
  EXPECT_EQ(text_of(42), "unknown exception of type int");
}

// A copy that threw while an exception is thrown would end the process.
TEST(Errors, AreCopiedWithoutAnException) {
  EXPECT_TRUE(std::is_nothrow_copy_constructible_v<Error>);
  EXPECT_TRUE(std::is_nothrow_copy_constructible_v<ConfigError>);
  const ConfigError error(std::vector<Problem>{{"--lr x", "use 0.1"}});
  ConfigError moved = error;
  const ConfigError copy = std::move(moved);
  EXPECT_EQ(moved.problems().front().what, "--lr x");  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(copy.hint(), "use 0.1");
}

// Such as an object that is nested, but was made outside of a handler.
TEST(ErrorText, OfANestedExceptionWithoutACauseIsItsOwn) {
  struct Alone : std::runtime_error, std::nested_exception {
    Alone() : std::runtime_error("alone") {}
  };
  EXPECT_THAT(error_text(Alone()), testing::EndsWith("Alone: alone"));
}

TEST(ErrorText, HasNoCommandsToTheTerminal) {
  EXPECT_EQ(error_text(DataError("no run in a\x1b]0;title\x07z\nand a second line", "try b\x1b[31m\rc")),
            "error: no run in az\nand a second line\n  hint: try bc");
  EXPECT_EQ(error_text(ConfigError("a\x9b", "b\x1b[2J")), "error: a\xef\xbf\xbd\n  hint: b");
}

TEST(ErrorText, ListsAllProblemsOfAConfiguration) {
  const std::vector<Problem> problems{{"--lr x: expected a number", "use 0.1"},
                                      {"--seed -1: expected a whole number", ""}};
  const ConfigError error(problems);
  EXPECT_EQ(error_text(error),
            "error: --lr x: expected a number\n  hint: use 0.1\nerror: --seed -1: expected a whole number");
  EXPECT_STREQ(error.what(),
               "2 problems in the configuration; --lr x: expected a number; --seed -1: expected a whole number");
}

TEST(ConfigError, WithOneProblemHasItsText) {
  const ConfigError error("--lr x: expected a number", "use 0.1");
  EXPECT_STREQ(error.what(), "--lr x: expected a number");
  EXPECT_EQ(error.hint(), "use 0.1");
  EXPECT_EQ(error.problems().size(), 1U);
}

TEST(ExitCodeOf, IsTheErrorsOwn) {
  EXPECT_EQ(exit_code_of(ConfigError("x")), ExitCode::usage);
  EXPECT_EQ(exit_code_of(LaunchError("x")), ExitCode::cannot_run);
  EXPECT_EQ(exit_code_of(CommError("x")), ExitCode::peer_lost);
  EXPECT_EQ(exit_code_of(CommError("x", "", ExitCode::timeout)), ExitCode::timeout);
  EXPECT_EQ(exit_code_of(CheckpointError("x")), ExitCode::bad_data);
  EXPECT_EQ(exit_code_of(IoError("x")), ExitCode::io);
  EXPECT_EQ(exit_code_of(std::runtime_error("x")), ExitCode::failed);
}

TEST(AssertDeathTest, PrintsRankAndReasonAndEndsWithTheInternalCode) {
  const auto fail = [] {
    set_log_rank(3, 4);
    LOCKSTEP_ASSERT(1 + 1 == 3, "arithmetic is off");
  };
  EXPECT_EXIT(fail(), testing::ExitedWithCode(70),
              "internal error on rank 3: arithmetic is off; 1 \\+ 1 == 3 is false");
}

}  // namespace
}  // namespace lockstep
