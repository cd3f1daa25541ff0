#include "report/curve_picture.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(CurvePicture, HasTheCurveItsAxesAndTheMark) {
  const std::vector<double> x{1e-4, 1e-3, 1e-2, 1e-1};
  const std::vector<double> y{4, 3, 0, 2};
  const std::string svg = svg_of({.x = x, .y = y, .x_name = "learning rate", .y_name = "loss", .marked_x = 1e-3});
  EXPECT_THAT(svg, HasSubstr("points=\"80.0,30.0 286.7,117.5 493.3,380.0 700.0,205.0 \""))
      << "evenly, the smallest below";
  EXPECT_THAT(svg, AllOf(HasSubstr(">learning rate<"), HasSubstr(">loss<"), HasSubstr(">1e-3<"), HasSubstr(">3<")));
  EXPECT_THAT(svg, HasSubstr("<line x1=\"286.7\" y1=\"30.0\" x2=\"286.7\" y2=\"380.0\" stroke=\"#d62728\"/>"));
}

TEST(CurvePicture, LeavesOutWhatHasNoPlace) {
  const std::vector<double> x{0, 1e-3, 1e-2, 1e-1};
  const std::vector<double> y{1, 2, 1, kNan};
  EXPECT_THAT(svg_of({.x = x, .y = y, .x_name = "x", .y_name = "y"}), HasSubstr("points=\"80.0,30.0 700.0,380.0 \""));
  const std::vector<double> same{1, 1, 1, 1};
  EXPECT_THAT(svg_of({.x = same, .y = same, .x_name = "x", .y_name = "y"}), HasSubstr("points=\"390.0,205.0 "));
  const std::vector<double> rounded{2.3, std::nextafter(2.3, 3), 2.3, 2.3};
  EXPECT_THAT(svg_of({.x = x, .y = rounded, .x_name = "x", .y_name = "y"}), HasSubstr("</svg>")) << "it ends";
  const std::vector<double> nothing{kNan, kNan, kNan, kNan};
  EXPECT_THAT(svg_of({.x = x, .y = nothing, .x_name = "x", .y_name = "y"}),
              AllOf(HasSubstr("no finite value"), Not(HasSubstr("nan"))));
}

}  // namespace
}  // namespace lockstep
