// How this library was built, and which build a loaded program or library is. Torch-free.
#pragma once

#include <string>

namespace lockstep {

/// The GNU build id (hexadecimal) of the loaded file that contains `address`, else the size of its loaded segments;
/// "unknown": no file contains it.
std::string build_id_of(const void* address);

/// Build id of the running program.
std::string program_build_id();

/// The LibTorch with which this library was built.
struct LibTorchBuild {
  std::string version{};       ///< "2.11.0"; "": built without LibTorch
  std::string cuda_version{};  ///< "13.0"; "": a LibTorch without CUDA
};
LibTorchBuild libtorch_build();

std::string compiler();  ///< "GNU 12.2.0"

/// All of it in a line: "lockstep 0.1.0, LibTorch 2.11.0, CUDA 13.0, GNU 12.2.0".
std::string build_text();

bool built_with_cuda() noexcept;
bool built_with_nccl() noexcept;

}  // namespace lockstep
