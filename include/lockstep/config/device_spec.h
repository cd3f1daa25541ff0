// lockstep/config/device_spec.h
//
// The value of `devices` as the user writes it. plan/ turns this request into devices of the machine. Torch-free.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <lockstep/base/error.h>

namespace [[gnu::visibility("default")]] lockstep {

/// A request for devices as a value.
///
/// | written                        | means                                                                     |
/// |--------------------------------|---------------------------------------------------------------------------|
/// | "auto"                         | all usable GPUs, or one CPU rank                                          |
/// | "cpu"                          | the CPU                                                                   |
/// | 4, "4"                         | the first four GPUs; on CPU four ranks                                    |
/// | -1, "-1"                       | all GPUs                                                                  |
/// | {0, 2}, "0,2", "0, 2", "2,"    | these GPUs, in PCI order after CUDA_VISIBLE_DEVICES                      |
/// | "0-3", "cuda:0,2-3"            | ranges in a list                                                          |
/// | "usable:2"                     | the first two GPUs that are neither prohibited nor exclusively in use    |
/// | "free:2", "free:2@8GiB"        | the two GPUs with the most free memory, with at least 8 GiB free each     |
/// | 0, "0", "", "[]", "()"         | all rejected: they request no device; an empty vector as well             |
///
/// Text in brackets is a list: "[2]" is "2,". In C++ an empty `{}` is the default, "auto".
/// The constructor never throws: it keeps an invalid text and its problem, so that all problems of a configuration are
/// reported together. `bool`, floating point and `nullptr` do not compile.
class DeviceSpec {
 public:
  enum class Kind { automatic, cpu, all, count, indices, usable, most_free };

  DeviceSpec() : DeviceSpec("auto") {}
  DeviceSpec(int count);                           // NOLINT(google-explicit-constructor): .devices = 4
  DeviceSpec(std::initializer_list<int> indices);  // .devices = {0, 2}
  DeviceSpec(const std::vector<int>& indices);     // NOLINT(google-explicit-constructor)
  DeviceSpec(const char* text) : DeviceSpec(std::string_view(text)) {}         // NOLINT(google-explicit-constructor)
  DeviceSpec(const std::string& text) : DeviceSpec(std::string_view(text)) {}  // NOLINT(google-explicit-constructor)
  DeviceSpec(std::string_view text);                                           // NOLINT(google-explicit-constructor)
  DeviceSpec(std::nullptr_t) = delete;
  DeviceSpec(std::initializer_list<bool>) = delete;  // {true} is not GPU 1
  template <class T>
  requires std::same_as<T, bool> || std::floating_point<T> DeviceSpec(T)
  = delete;

  Kind kind() const noexcept { return kind_; }
  int count() const noexcept { return count_; }                                 ///< count, usable, most_free
  const std::vector<int>& indices() const& noexcept { return indices_; }        ///< as written
  std::int64_t min_free_bytes() const noexcept { return min_free_bytes_; }      ///< most_free; 0: no minimum
  const std::string& text() const& noexcept { return text_; }                   ///< as the user would write it
  const std::vector<Problem>& problems() const& noexcept { return problems_; }  ///< empty: valid
  std::vector<int> indices() && { return std::move(indices_); }
  std::string text() && { return std::move(text_); }
  std::vector<Problem> problems() && { return std::move(problems_); }
  bool operator==(const DeviceSpec& other) const;  ///< compares the meaning, not the text

 private:
  Kind kind_ = Kind::automatic;
  int count_ = 0;
  std::vector<int> indices_{};
  std::int64_t min_free_bytes_ = 0;
  std::string text_{};
  std::vector<Problem> problems_{};
};

}  // namespace lockstep
