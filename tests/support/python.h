// Python environments: that of a LibTorch wheel, and those with packages that only tests need.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/text.h"
#include "support/process.h"

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

/// `program` as ranks of one machine that torchrun starts.
inline std::vector<std::string> under_torchrun(const std::filesystem::path& torch, int ranks,
                                               const std::vector<std::string>& flags,
                                               const std::vector<std::string>& program) {
  std::vector<std::string> words{find_torchrun(torch), "--standalone", "--no-python", "--nproc-per-node",
                                 std::to_string(ranks)};
  words.insert(words.end(), flags.begin(), flags.end());
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

/// Whether it finds these modules; it does not import them, which takes seconds. False without a Python.
inline bool has_modules(const std::string& python, std::vector<std::string> modules) {
  const std::string script = "import sys, importlib.util as u; sys.exit(not all(map(u.find_spec, sys.argv[1:])))";
  modules.insert(modules.begin(), {python, "-c", script});
  return !python.empty() && run_program(modules).code == 0;
}

/// The Python that has the packages `name` of cached_packages.py in the folder `scripts`; otherwise why there is none,
/// which does not begin with "/".
inline std::string python_with(const std::string& name, const std::string& scripts) {
  const auto found = run_program({scripts + "/cached_packages.py", name}, {}, ".", Process::Seconds(180));
  if (found.code != 0) {
    return "cached_packages.py " + name + " ended with code " + std::to_string(found.code) + ": " +
           std::string(trim(found.err));
  }
  return std::string(trim(found.out));
}

}  // namespace lockstep
