#include "tensor/mismatch.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "base/text.h"
#include "tensor/shape_text.h"

namespace lockstep {
namespace {

std::string first_ten(std::span<const std::string> items, std::string_view separator) {
  const std::size_t shown = std::min<std::size_t>(items.size(), 10);
  std::string text = join(items.first(shown), separator);
  if (shown < items.size()) {
    text += fmt::format("{}and {} more", separator, items.size() - shown);
  }
  return text;
}

}  // namespace

bool Mismatch::compare(std::string_view name, const at::Tensor& found, const at::Tensor& expected) {
  if (found.sizes() == expected.sizes() && found.scalar_type() == expected.scalar_type()) {
    return true;
  }
  different.push_back(fmt::format("{} is {}, expected {}", name, kind_text(found), kind_text(expected)));
  return false;
}

std::string Mismatch::text() const {
  std::vector<std::string> parts;
  if (!missing.empty()) {
    parts.push_back(fmt::format("{} missing ({})", missing.size(), first_ten(missing, ", ")));
  }
  if (!unexpected.empty()) {
    parts.push_back(fmt::format("{} unexpected ({})", unexpected.size(), first_ten(unexpected, ", ")));
  }
  if (!different.empty()) {
    parts.push_back(first_ten(different, "; "));
  }
  return join(parts, "; ");
}

}  // namespace lockstep
