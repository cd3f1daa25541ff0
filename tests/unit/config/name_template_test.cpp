#include "config/name_template.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

std::optional<double> value_of(std::string_view name) {
  return name == "step" ? std::optional(1200000.0) : name == "val_loss" ? std::optional(0.12345) : std::nullopt;
}

TEST(NameTemplate, IsFilled) {
  EXPECT_EQ(fill_name("at{step}-{val_loss}", value_of), "at1200000-0.1235");
  EXPECT_EQ(fill_name("{step}_loss={val_loss:.2f}", value_of), "1200000_loss=0.12");
  EXPECT_EQ(fill_name("{step}-{accuracy}", value_of), std::nullopt);
}

TEST(NameTemplate, IsChecked) {
  EXPECT_FALSE(find_name_fault(""));
  EXPECT_FALSE(find_name_fault("a.b-c=d{epoch}{val_loss:.9f}"));
  for (const char* bad : {"{", "}", "{step", "step}", "{step}}", "{{step}", "{}", "{step:}", "{step:.f}", "{step:.3g}",
                          "{a b}{step}", "{step} x", "{step}/x", "..{step}", "step-{step}", "best"}) {
    EXPECT_TRUE(find_name_fault(bad)) << bad;
  }
  EXPECT_FALSE(find_name_fault(std::string(116, 'x') + "{step}{val_loss:.9f}"));
  EXPECT_EQ(find_name_fault(std::string(117, 'x') + "{step}{val_loss:.9f}"),
            "the name has at least 129 characters, the limit is 128");
}

}  // namespace
}  // namespace lockstep
