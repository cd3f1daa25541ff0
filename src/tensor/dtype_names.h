// Tensor dtypes as the safetensors format names them.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include <c10/core/ScalarType.h>

namespace lockstep {

inline constexpr std::array<std::pair<c10::ScalarType, std::string_view>, 19> kDtypeNames{{
    {c10::ScalarType::ComplexFloat, "C64"},
    {c10::ScalarType::Double, "F64"},
    {c10::ScalarType::Float, "F32"},
    {c10::ScalarType::Half, "F16"},
    {c10::ScalarType::BFloat16, "BF16"},
    {c10::ScalarType::Float8_e4m3fn, "F8_E4M3"},
    {c10::ScalarType::Float8_e4m3fnuz, "F8_E4M3FNUZ"},
    {c10::ScalarType::Float8_e5m2, "F8_E5M2"},
    {c10::ScalarType::Float8_e5m2fnuz, "F8_E5M2FNUZ"},
    {c10::ScalarType::Float8_e8m0fnu, "F8_E8M0"},
    {c10::ScalarType::Long, "I64"},
    {c10::ScalarType::Int, "I32"},
    {c10::ScalarType::Short, "I16"},
    {c10::ScalarType::Char, "I8"},
    {c10::ScalarType::UInt64, "U64"},
    {c10::ScalarType::UInt32, "U32"},
    {c10::ScalarType::UInt16, "U16"},
    {c10::ScalarType::Byte, "U8"},
    {c10::ScalarType::Bool, "BOOL"},
}};

/// nullopt: the format has no such dtype.
constexpr std::optional<std::string_view> dtype_name(c10::ScalarType type) noexcept {
  for (const auto& [known, name] : kDtypeNames) {
    if (known == type) {
      return name;
    }
  }
  return std::nullopt;
}

/// nullopt: safetensors has no dtype of this name, or lockstep does not support it.
constexpr std::optional<c10::ScalarType> dtype_of(std::string_view name) noexcept {
  for (const auto& [type, known] : kDtypeNames) {
    if (known == name) {
      return type;
    }
  }
  return std::nullopt;
}

}  // namespace lockstep
