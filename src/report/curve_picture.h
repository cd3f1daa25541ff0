// A curve over a logarithmic axis as an SVG picture, for any browser.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

/// Points without a finite value, or with an x of 0 or less, are left out.
struct CurvePicture {
  std::span<const double> x;  ///< of the same length as y
  std::span<const double> y;
  std::string_view x_name;
  std::string_view y_name;
  std::optional<double> marked_x{};  ///< a line through it
};

std::string svg_of(const CurvePicture& curve);

}  // namespace lockstep
