#include "report/console_names.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

namespace lockstep {
namespace {

using testing::IsSupersetOf;
using testing::UnorderedElementsAre;

TEST(ConsoleNames, LeaveOutWhatThereCanBeHundredsOf) {
  std::vector<std::string> names{"loss", "val_loss", "grad_norm/encoder", "latency_p50", "latency_p99.9", "confusion"};
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 3; ++column) {
      names.push_back(fmt::format("confusion_{}_{}", row, column));
    }
  }
  EXPECT_THAT(names_for_console(names),
              UnorderedElementsAre("loss", "val_loss", "latency_p50", "latency_p99.9", "confusion"));
}

TEST(ConsoleNames, KeepEightThatDifferInNumbersAndThoseOfAnotherPrefix) {
  std::vector<std::string> names;
  for (int number = 0; number < 8; ++number) {
    names.push_back(fmt::format("recall_{}", number));
    names.push_back(fmt::format("val_recall_{}", number));
  }
  EXPECT_THAT(names_for_console(names), IsSupersetOf(names));
}

}  // namespace
}  // namespace lockstep
