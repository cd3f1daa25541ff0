#include "report/curve_picture.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace lockstep {
namespace {

constexpr double kWidth = 720;
constexpr double kHeight = 440;
constexpr double kLeft = 80;
constexpr double kRight = kWidth - 20;
constexpr double kTop = 30;
constexpr double kBottom = kHeight - 60;
constexpr int kLines = 5;  // about so many across

/// A range of values, and the pixels on which it lies.
class Axis {
 public:
  Axis(double first_pixel, double last_pixel) : first_pixel_(first_pixel), last_pixel_(last_pixel) {}

  void add(double value) {
    low_ = std::min(low_, value);
    high_ = std::max(high_, value);
  }
  double low() const { return low_; }
  double high() const { return high_; }
  double pixel(double value) const {
    const double share = high_ > low_ ? (value - low_) / (high_ - low_) : 0.5;
    return first_pixel_ + share * (last_pixel_ - first_pixel_);
  }

 private:
  double first_pixel_;
  double last_pixel_;
  double low_ = std::numeric_limits<double>::infinity();
  double high_ = -std::numeric_limits<double>::infinity();
};

// 1, 2 or 5 times a power of ten.
double round_step(double about) {
  const double power = std::pow(10, std::floor(std::log10(about)));
  const double factor = about / power;
  return power * (factor < 1.5 ? 1 : factor < 3.5 ? 2 : factor < 7.5 ? 5 : 10);
}

std::string text_at(double x, double y, std::string_view anchor, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, text);
}

std::string line_from(double x1, double y1, double x2, double y2, std::string_view color) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1, y1, x2, y2,
                     color);
}

}  // namespace

std::string svg_of(const CurvePicture& curve) {
  Axis across(kLeft, kRight);  // of logarithms
  Axis up(kBottom, kTop);
  std::vector<std::pair<double, double>> points;
  for (std::size_t i = 0; i < curve.x.size(); ++i) {
    if (curve.x[i] > 0 && std::isfinite(curve.x[i]) && std::isfinite(curve.y[i])) {
      points.emplace_back(std::log10(curve.x[i]), curve.y[i]);
      across.add(points.back().first);
      up.add(points.back().second);
    }
  }
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"14\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      kWidth, kHeight);
  svg += text_at((kLeft + kRight) / 2, kHeight - 15, "middle", curve.x_name);
  svg += text_at(kLeft, kTop - 12, "middle", curve.y_name);
  if (points.empty()) {
    return svg + text_at(kWidth / 2, kHeight / 2, "middle", "no finite value") + "</svg>\n";
  }
  for (double power = std::ceil(across.low()); power <= across.high(); ++power) {
    const double x = across.pixel(power);
    svg += line_from(x, kTop, x, kBottom, "#ddd") + text_at(x, kBottom + 20, "middle", fmt::format("1e{}", power));
  }
  if (up.high() > up.low()) {
    const double step = round_step((up.high() - up.low()) / kLines);
    const double first = std::ceil(up.low() / step);
    for (int i = 0; i <= 2 * kLines && (first + i) * step <= up.high();
         ++i) {  // values may differ in the last bit only
      const double value = (first + i) * step;
      const double y = up.pixel(value);
      svg += line_from(kLeft, y, kRight, y, "#ddd") + text_at(kLeft - 8, y + 5, "end", fmt::format("{:.6g}", value));
    }
  }
  svg += "<polyline fill=\"none\" stroke=\"#1f77b4\" stroke-width=\"2\" points=\"";
  for (const auto& [x, y] : points) {
    svg += fmt::format("{:.1f},{:.1f} ", across.pixel(x), up.pixel(y));
  }
  svg += "\"/>\n";
  if (curve.marked_x) {
    const double x = across.pixel(std::log10(*curve.marked_x));
    svg += line_from(x, kTop, x, kBottom, "#d62728") +
           text_at(x, kTop - 12, "middle", fmt::format("{:.3g}", *curve.marked_x));
  }
  return svg + "</svg>\n";
}

}  // namespace lockstep
