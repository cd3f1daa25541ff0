// Python environment of a LibTorch wheel.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep {

/// bin/<name> of the environment that holds <site-packages>/torch; "" if there is none.
inline std::string find_beside_torch(const std::filesystem::path& torch, const std::string& name) {
  // <prefix>/lib/python3.x/site-packages/torch
  const auto prefix = torch.parent_path().parent_path().parent_path().parent_path();
  const auto program = prefix / "bin" / name;
  return std::filesystem::exists(program) ? program.string() : std::string();
}
inline std::string find_torchrun(const std::filesystem::path& torch) { return find_beside_torch(torch, "torchrun"); }
inline std::string find_python(const std::filesystem::path& torch) { return find_beside_torch(torch, "python3"); }

}  // namespace lockstep
